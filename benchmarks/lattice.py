"""What each way of running the lattice costs: `python -m benchmarks.lattice` writes
lattice.json.

Forward and backward of one batch, as interleaved rounds on one thread: all flows at once, against
chunks of 16 flows a call (what the original ran) and against the plain loop over flows; stopping
early against all the steps allowed, where 5 % of the flows are stragglers; bf16 against fp32; words
decoded sample by sample against the whole batch at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

from astkit.files import write_json
from astkit.profiling import interleaved
from astkit.stamp import describe, stamp
from astkit.systems.lattice.model import (
    ADVANCE,
    ENERGY,
    MOVE,
    EnergyFlowLattice,
    LatticeConfig,
    LatticeOutput,
)
from astkit.systems.lattice.reference import run_reference
from astkit.systems.lattice.text import TextBridge, Vocabulary
from benchmarks import bench
from tests.systems.lattice.examples import inputs

RESULTS = bench.HERE / "lattice.json"
BOUNDS = {"loop / at once": 40, "chunks of 16 / at once": 10, "all steps / early stop": 2}
SIZE = LatticeConfig(width=12, height=12, depth=6)
BOUNDED = ("at_once", "early_stop")
"""Parts of the report with a bound; the others are stated."""
STRAGGLERS, ERROR = 0.05, 0.01
BATCH = 16


def train(model: EnergyFlowLattice, run: Callable[[], LatticeOutput]) -> LatticeOutput:
    """Forward and backward, without an optimiser's step."""
    model.zero_grad()
    output = run()
    output.y.square().mean().backward()
    return output


def measured(
    arms: dict[str, Callable[[], object]], rounds: int, over: str, warmup: int = 1
) -> dict[str, Any]:
    """Seconds of each arm, and the ratio of the arm ``over`` to the first one."""
    timed = interleaved(arms, rounds=rounds, warmup=warmup)
    first = next(iter(arms))
    ratios = {f"{over} / {first}": asdict(timed.ratio(over, first))}
    return {"seconds": dict(timed.seconds), "ratios": ratios}


def flows_at_once(rounds: int, loop_rounds: int, config: LatticeConfig, batch: int) -> Any:
    """The loop and the chunks over the vectorised steps; the slow loop in rounds of its own."""
    model, x = EnergyFlowLattice(config), inputs(batch, config.dim).float()

    def once() -> LatticeOutput:
        return train(model, lambda: model(x))

    chunks = {
        "at once": once,
        "chunks of 16": lambda: train(model, lambda: model(x, flows_per_call=16)),
    }
    loop = {"at once": once, "loop": lambda: train(model, lambda: run_reference(model, x))}
    chunked = measured(chunks, rounds, "chunks of 16")
    looped = measured(loop, loop_rounds, "loop", warmup=0 if loop_rounds < 3 else 1)
    return {
        "config": asdict(config),
        "batch": batch,
        "seconds": {"chunks": chunked["seconds"], "loop": looped["seconds"]},
        "ratios": {**looped["ratios"], **chunked["ratios"]},
    }


def early_stop(rounds: int, config: LatticeConfig, batch: int) -> dict[str, Any]:
    """All steps allowed over stopping early, and how far the two surfaces are apart.

    The flows of least energy go at z_min, and all but keep their energy and course.
    """
    x, model = inputs(batch, config.dim).float(), EnergyFlowLattice(config)
    with torch.no_grad():
        energy = model.mapper(x)
    border = energy.quantile(STRAGGLERS).item()
    two_speeds(model, border)
    early, whole = model(x), model(x, adaptive=False)
    arms = {
        "early stop": lambda: train(model, lambda: model(x)),
        "all steps": lambda: train(model, lambda: model(x, adaptive=False)),
    }
    steps = {"early stop": early.stats.steps, "all steps": whole.stats.steps}
    return {
        "config": asdict(config),
        "batch": batch,
        "stragglers": (energy < border).float().mean().item(),
        "steps": {name: each.double().mean().item() for name, each in steps.items()},
        "left": early.stats.left.double().mean().item(),
        "surface_error": ((early.surface - whole.surface).norm() / whole.surface.norm()).item(),
        **measured(arms, rounds, "all steps"),
    }


@torch.no_grad()
def two_speeds(built: EnergyFlowLattice, below: float) -> None:
    """Flows whose energy is ``below`` advance by z_min a step, all others by z_max.

    For one layer. The GRU's first unit is made to hold tanh(energy), and the head for z to read
    that unit alone; energies, x and y hardly change.
    """
    cell, heads = built.carrier.cells[-1], built.carrier.heads
    assert isinstance(cell, torch.nn.GRUCell)
    hidden = cell.hidden_size
    for row in (0, hidden, 2 * hidden):  # reset, update, new
        cell.weight_ih[row] = cell.weight_hh[row] = 0
        cell.bias_ih[row] = cell.bias_hh[row] = 0
    cell.bias_ih[hidden] = -50  # the update gate keeps nothing of the old state
    cell.weight_ih[2 * hidden, -1] = 1
    heads.weight[ADVANCE] = 0
    heads.weight[ADVANCE, 0] = 1e4
    heads.bias[ADVANCE] = -1e4 * math.tanh(below)
    heads.weight[ENERGY] *= 0.0001
    heads.weight[MOVE] *= 0.0001


def precision(rounds: int, config: LatticeConfig, batch: int) -> dict[str, Any]:
    """fp32 over bf16 autocast, in which places and energies keep their precision."""
    model, x = EnergyFlowLattice(config), inputs(batch, config.dim).float()

    def bf16() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            train(model, lambda: model(x))

    arms = {"bf16": bf16, "fp32": lambda: train(model, lambda: model(x))}
    return {"config": asdict(config), "batch": batch, **measured(arms, rounds, "fp32")}


def words(rounds: int, config: LatticeConfig, batch: int, size: int = 2000) -> dict[str, Any]:
    """Decoding the surfaces of a batch one by one, over all of them at once."""
    vocabulary = Vocabulary([f"word{number}" for number in range(size)], size)
    bridge = TextBridge(vocabulary, config.dim, config.cells)
    surface = inputs(batch, config.cells).float()
    arms = {
        "a batch": lambda: bridge.decode(surface),
        "a sample": lambda: [bridge.decode(row[None]) for row in surface],
    }
    return {"batch": batch, "vocabulary": size, **measured(arms, rounds, "a sample")}


def main(arguments: list[str] | None = None) -> None:
    """Measure all of them and write them; ``--cells`` are those along each side of the surface."""
    asked = bench.options(
        __doc__, RESULTS, arguments, rounds=15, loop_rounds=3, cells=12, batch=BATCH
    )
    torch.set_num_threads(1)
    rounds, batch = asked.rounds, asked.batch
    size = replace(SIZE, width=asked.cells, height=asked.cells)
    # at z_min, the stragglers take all 50 steps allowed; tau leaves samples that have more of them
    steps = {"depth": 20, "z_min": 19 / 50, "z_max": 3.0}
    deep = replace(size, **steps, spawn_threshold=1.0, tau=0.9)
    report = {
        "stamp": stamp(),
        "threads": torch.get_num_threads(),
        "bounds": BOUNDS,
        "at_once": flows_at_once(rounds, asked.loop_rounds, size, batch),
        "early_stop": early_stop(rounds, deep, batch),
        "precision": precision(rounds, size, batch),
        "words": words(rounds, size, batch),
    }
    write_json(asked.out, report)
    print(describe(report["stamp"]))
    for part in (*BOUNDED, "precision", "words"):
        for name, ratio in report[part]["ratios"].items():
            print(part, name, ratio, "bound", BOUNDS.get(name))


if __name__ == "__main__":
    main()
