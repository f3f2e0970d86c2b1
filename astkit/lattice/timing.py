"""What a training step of a lattice costs, the ways that it can be computed in turns.

Every way computes the same surface; only "stopping" may leave late flows where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from astkit import rng
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.reference import run_reference
from astkit.profiling import Timings, interleaved

CHUNK = 16
"""Flows a call that the origin made: it cut them by its batch size."""

WAYS = ("flow by flow", f"chunks of {CHUNK}", "vectorised", "vectorised, stopping")


def stepper(config: LatticeConfig, batch: int, way: str) -> Callable[[], None]:
    """A function that runs one forward and backward pass of ``batch`` samples in a way of `WAYS`.

    Raises ``ValueError`` for an unknown way.
    """
    if way not in WAYS:
        raise ValueError(f"way is {way!r}: choose one of {', '.join(WAYS)}")
    model = EnergyFlowLattice(replace(config, noise=0.0))
    x = torch.randn(batch, config.dim, generator=rng.generator(config.seed, "timing"))
    x = torch.nn.functional.normalize(x)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        if way == WAYS[0]:
            found = run_reference(model, x, adaptive=False)
        else:
            chunk = CHUNK if way == WAYS[1] else None
            found = model.run(x, adaptive=way == WAYS[3], flows_per_call=chunk)
        found.y.square().mean().backward()

    return step


def measure(
    config: LatticeConfig, batch: int, ways: Sequence[str] = WAYS, rounds: int = 5
) -> Timings:
    """The ways timed in turns, the first of ``ways`` the baseline."""
    arms = {way: stepper(config, batch, way) for way in ways}
    return interleaved(arms, rounds=rounds, warmup=1, baseline=ways[0])


def grown(
    config: LatticeConfig, sizes: Sequence[tuple[int, int]], ways: Sequence[str], rounds: int = 3
) -> list[dict[str, Any]]:
    """Seconds of each way for each ``(side, batch)`` in ``sizes``: one mapping each.

    ``side``: cells along x and y; ``flows``: those that a batch starts with; ``seconds``: median.
    """
    rows = []
    for side, batch in sizes:
        sized = replace(config, width=side, height=side, max_flows=None)
        for entry in measure(sized, batch, ways, rounds).table():
            seconds = float(str(entry["seconds"]))
            size = {"side": side, "batch": batch, "flows": side * side * batch}
            rows.append({"way": entry["arm"], **size, "seconds": seconds, "rounds": rounds})
    return rows


def slopes(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each way, the slope of log seconds over log flows, by least squares: 1 is proportional."""
    fitted = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        x, y = ([math.log(row[key]) for row in own] for key in ("flows", "seconds"))
        middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
        square = sum((a - middle_x) ** 2 for a in x)
        cross = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
        fitted[way] = cross / square if square else math.nan
    return fitted
