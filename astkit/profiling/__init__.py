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

__all__ = [
    "Comparison",
    "EnergyComparison",
    "EnergyMeter",
    "EnergyReading",
    "Flops",
    "FlopsPerSample",
    "Ledger",
    "Ratio",
    "Samples",
    "bootstrap_interval",
    "compare",
    "compare_energy",
    "count_flops",
    "estimated",
    "saved",
]
