"""Saying what it cost: samples, FLOPs, seconds and joules, counted or timed and never guessed."""

from astkit.profiling.benchmark import (
    EnergyComparison,
    Ratio,
    Timings,
    bootstrap_interval,
    compare_energy,
    interleaved,
)
from astkit.profiling.energy import EnergyMeter, EnergyReading, saved
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.profiling.ledger import Flops, Ledger, Samples
from astkit.profiling.memory import MemoryReading, peak_memory, resident
from astkit.profiling.throughput import Throughput
from astkit.profiling.window import ProfilerWindow, peak_tensor_bytes

__all__ = [
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
    "Timings",
    "bootstrap_interval",
    "compare_energy",
    "count_flops",
    "interleaved",
    "peak_memory",
    "peak_tensor_bytes",
    "resident",
    "saved",
]
