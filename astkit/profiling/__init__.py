"""Costs of a run: samples, FLOPs, seconds, joules and memory, all counted or measured."""

from astkit.profiling.benchmark import Timings, bootstrap_interval, interleaved
from astkit.profiling.energy import EnergyMeter, EnergyReading
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.profiling.ledger import Flops, Ledger, Samples
from astkit.profiling.memory import peak_memory
from astkit.profiling.throughput import Throughput
from astkit.profiling.window import ProfilerWindow, peak_tensor_bytes

__all__ = [
    "EnergyMeter",
    "EnergyReading",
    "Flops",
    "FlopsPerSample",
    "Ledger",
    "ProfilerWindow",
    "Samples",
    "Throughput",
    "Timings",
    "bootstrap_interval",
    "count_flops",
    "interleaved",
    "peak_memory",
    "peak_tensor_bytes",
]
