"""What the four ways to the automaton's gradient cost: `python -m benchmarks.logic_ca`
writes logic_ca.json.

Losses and gradients of one batch, forward and backward, by each way, as interleaved rounds, with
the peak of memory and the difference to the loop: the Game of Life at several batch sizes, and the
synchronous checkerboard at batch 2. Also how far logits are apart after 5 updates by the batch and
by the loop, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from astkit.files import write_json
from astkit.profiling import interleaved, peak_tensor_bytes
from astkit.stamp import describe, stamp
from astkit.systems.automaton.automaton import LogicCA
from astkit.systems.automaton.gradients import gradients
from astkit.systems.automaton.tasks import AutomatonTask, checkerboard, game_of_life
from astkit.systems.automaton.training import AutomatonTrainer
from benchmarks import bench

RESULTS = bench.HERE / "logic_ca.json"
BATCHES = [1, 2, 5, 20, 80]
AT, BOUND = 20, 5.0  # loop / batch of Life, at a batch of 20
WAYS: dict[str, dict[str, Any]] = {
    "batch": {"parallel": "batch"},
    "vmap": {"parallel": "vmap"},
    "chunk of 5": {"parallel": 5},
    "loop": {"parallel": "loop"},
}


def arms_of(task: AutomatonTask, size: int, model: LogicCA) -> dict[str, Callable[[], Any]]:
    """The ways on one batch of ``task``."""
    batch = next(iter(task.source(batch_size=size).batches(0)))
    dtype = next(model.parameters()).dtype
    x, y, masks = batch.x.to(dtype), batch.y.to(dtype), task.masks(batch.index, 0, 0)
    return {
        name: partial(gradients, model, x, y, task.steps, masks, **way)
        for name, way in WAYS.items()
    }


def measured(task: AutomatonTask, size: int, rounds: int) -> dict[str, Any]:
    """At one batch size the seconds of each way, their ratios to the loop, memory, difference."""
    arms = arms_of(task, size, LogicCA(task.config))
    timed = interleaved(arms, rounds=rounds, warmup=2)
    ratios = {name: asdict(timed.ratio("loop", name)) for name in arms if name != "loop"}
    print(task.name, size, {name: round(found["median"], 2) for name, found in ratios.items()})
    return {
        "task": task.name,
        "batch": size,
        "seconds": dict(timed.seconds),
        "over": "loop",
        "ratios": ratios,
        "peak_bytes": {name: peak_tensor_bytes(arm) for name, arm in arms.items()},
        "difference": differences(task, size),
    }


def differences(task: AutomatonTask, size: int) -> dict[str, float]:
    """Largest difference to the loop's gradients in float64, relative to each layer's largest."""
    arms = arms_of(task, size, LogicCA(task.config).double())
    losses, wanted = arms["loop"]()
    found = {}
    for name, arm in arms.items():
        own, each = arm()
        pairs = [(own, losses), *((each[key], wanted[key]) for key in wanted)]
        found[name] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    return found


def updates_apart(task: AutomatonTask, updates: int = 5) -> float:
    """Largest difference of the logits after some updates by the batch and by the loop."""
    ends = []
    for way in ("batch", "loop"):
        model = LogicCA(task.config).double()
        AutomatonTrainer(task, iterations=updates, parallel=way, model=model, device="cpu").run()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return (ends[0] - ends[1]).abs().max().item()


def main(arguments: list[str] | None = None) -> None:
    """Measure all of it and write it."""
    asked = bench.options(__doc__, RESULTS, arguments, rounds=31, board_rounds=11, batches=BATCHES)
    life, board = game_of_life(), checkerboard()
    report: dict[str, Any] = {"stamp": stamp(), "threads": torch.get_num_threads()}
    report["life"] = [measured(life, size, asked.rounds) for size in asked.batches]
    report["updates_apart"] = updates_apart(life)
    report["checkerboard"] = [measured(board, 2, asked.board_rounds)]
    write_json(asked.out, report)
    print(describe(report["stamp"]))


if __name__ == "__main__":
    main()
