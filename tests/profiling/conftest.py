"""A counter whose joules are known, a machine on which there is none, and images of noise."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

from astkit import rng
from astkit.datasets import Images
from astkit.profiling import energy_counters
from astkit.profiling.energy_counters import EnergyCounter, RaplCounter, UnavailableError


def noise(rows, shape=(1, 8, 8), seed=0):
    with rng.isolated("cpu", seed):
        pixels = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8)
        labels = torch.randint(0, 10, (rows,))
    return Images(pixels, labels, tuple("0123456789"), "noise")


class Machine(EnergyCounter):
    """A clock and a counter of what it draws, which moves in steps like the real ones."""

    def __init__(self, step_s=0.1, scope="test bench"):
        super().__init__("fake", scope, self._millijoules)
        self.step_s, self.now = step_s, 1000.0
        self._times, self._joules = [0.0, self.now], [0.0, 50.0]
        self.reads, self.failing = 0, False

    def clock(self):
        return self.now

    def spend(self, seconds, watts):
        self.now += seconds
        self._times.append(self.now)
        self._joules.append(self._joules[-1] + seconds * watts)

    def spent(self, at):
        return float(np.interp(at, self._times, self._joules))

    def _millijoules(self):
        self.reads += 1
        if self.failing:
            raise UnavailableError("the cable is out")
        return (self.spent(math.floor(self.now / self.step_s) * self.step_s) * 1e3,)


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """A machine without NVML or RAPL."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(energy_counters, "RaplCounter", lambda: RaplCounter(tmp_path / "powercap"))
    return tmp_path
