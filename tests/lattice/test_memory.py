"""The estimate against what a process really took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from astkit.lattice.config import LatticeConfig
from astkit.lattice.memory import estimate_memory

WITHIN = 0.25
SMALL = LatticeConfig()
MIDDLE = LatticeConfig(width=20, height=20, depth=10, hidden=64)
LARGE = LatticeConfig(width=24, height=24, depth=12, hidden=64, layers=2)
RECOMPUTED = LatticeConfig(width=24, height=24, depth=12, hidden=64, layers=2, recompute_every=3)

PROGRAM = """
import json, sys, torch
from astkit import rng
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice
from astkit.profiling import peak_memory

def steps(config, training):
    model = EnergyFlowLattice(config)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, config.dim, generator=rng.generator(0))
    for _ in range(3):
        with torch.set_grad_enabled(training):
            y = model(torch.nn.functional.normalize(x, dim=1)).y
        if training:
            y.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

torch.set_num_threads(1)
settings, training = json.loads(sys.argv[1])
tiny = LatticeConfig(dim=8, width=3, height=3, depth=3, hidden=4, mapper_width=8)
steps(tiny, True)  # what the libraries allocate once
with peak_memory() as peak:
    steps(LatticeConfig(**settings), training)
print(peak.reading.grown)
"""


def measured(config: LatticeConfig, training: bool) -> int:
    """Bytes that a process grew by, from before the model was built to its peak."""
    # a heap that does not break up, so that what is measured is tensors
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([asdict(config), training])],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def check(config: LatticeConfig, training: bool) -> None:
    ratio = estimate_memory(config, 16, training) / measured(config, training)
    assert 1 - WITHIN <= ratio <= 1 + WITHIN


def test_the_estimate_holds_for_a_small_lattice() -> None:
    check(SMALL, training=True)


@pytest.mark.full
@pytest.mark.parametrize("config", [MIDDLE, LARGE, RECOMPUTED], ids=["middle", "large", "again"])
def test_the_estimate_holds_in_training(config: LatticeConfig) -> None:
    check(config, training=True)


@pytest.mark.full
@pytest.mark.parametrize("config", [MIDDLE, LARGE], ids=["middle", "large"])
def test_the_estimate_holds_without_gradients(config: LatticeConfig) -> None:
    check(config, training=False)


def test_the_estimate_grows_with_what_is_asked_for() -> None:
    once = estimate_memory(SMALL, 16)
    assert estimate_memory(SMALL, 32) > 1.5 * once
    assert estimate_memory(SMALL, 16, training=False) < 0.5 * once
    assert estimate_memory(SMALL, 16, flows=288) > 1.5 * once
    assert estimate_memory(SMALL, 16, steps=10) > 1.3 * once
    assert estimate_memory(RECOMPUTED, 16) < 0.5 * estimate_memory(LARGE, 16)
    assert estimate_memory(LatticeConfig(lattice=False), 16) < 0.5 * once


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        estimate_memory(SMALL, 0)
