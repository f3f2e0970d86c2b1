"""A counter whose joules are known."""

import math

import numpy as np
import pytest

from astkit.profiling import EnergyMeter
from astkit.profiling.energy import EnergyCounter


class Machine:
    """A clock and a counter of what it draws, which moves in steps like the real ones."""

    def __init__(self, step_s=0.1, scope="test bench"):
        self.step_s, self.scope, self.now, self.failing = step_s, scope, 1000.0, False
        self._times, self._joules = [0.0, self.now], [0.0, 50.0]

    def meter(self):
        meter = EnergyMeter()
        meter.counter = EnergyCounter("fake", self.scope, self.read, self.step_s)
        meter._clock = lambda: self.now
        return meter

    def spend(self, seconds, watts):
        self.now += seconds
        self._times.append(self.now)
        self._joules.append(self._joules[-1] + seconds * watts)

    def spent(self, at):
        return float(np.interp(at, self._times, self._joules))

    def read(self):
        if self.failing:
            raise OSError("the cable is out")
        return self.spent(math.floor(self.now / self.step_s) * self.step_s)


@pytest.fixture
def machine():
    return Machine()
