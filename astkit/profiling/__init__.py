"""Saying what it cost: samples, FLOPs, seconds and joules, counted or timed and never guessed."""

from astkit.profiling.benchmark import Comparison, Ratio, bootstrap_interval, compare
from astkit.profiling.energy import (
    EnergyComparison,
    EnergyMeter,
    EnergyReading,
    compare_energy,
    estimated,
    saved,
)
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.profiling.ledger import Flops, Ledger, Samples
from astkit.profiling.memory import MemoryReading, peak_memory, resident
from astkit.profiling.tensors import peak_tensor_bytes
from astkit.profiling.throughput import Throughput
from astkit.profiling.window import ProfilerWindow

__all__ = [
    "Comparison",
    "EnergyComparison",
    "EnergyMeter",
    "EnergyReading",
    "Flops",
    "FlopsPerSample",
    "Ledger",
    "MemoryReading",
    "ProfilerWindow",
    "Ratio",
    "Samples",
    "Throughput",
    "bootstrap_interval",
    "compare",
    "compare_energy",
    "count_flops",
    "estimated",
    "peak_memory",
    "peak_tensor_bytes",
    "resident",
    "saved",
]
