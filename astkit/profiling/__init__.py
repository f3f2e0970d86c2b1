"""Saying what it cost: samples, FLOPs and seconds, counted or timed and never estimated."""

from astkit.profiling.benchmark import Comparison, Ratio, bootstrap_interval, compare
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.profiling.ledger import Flops, Ledger, Samples

__all__ = [
    "Comparison",
    "Flops",
    "FlopsPerSample",
    "Ledger",
    "Ratio",
    "Samples",
    "bootstrap_interval",
    "compare",
    "count_flops",
]
