"""Energy: joules from a counter, or ``None`` with the reason; never a constant and never 0."""

from astkit.profiling.energy.compare import EnergyComparison, compare_energy
from astkit.profiling.energy.meter import EnergyMeter
from astkit.profiling.energy.reading import EnergyReading, estimated, saved

__all__ = [
    "EnergyComparison",
    "EnergyMeter",
    "EnergyReading",
    "compare_energy",
    "estimated",
    "saved",
]
