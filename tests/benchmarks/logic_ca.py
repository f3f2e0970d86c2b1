"""What the four ways to the automaton's gradient cost: `python -m tests.benchmarks.logic_ca`
writes logic_ca.json.

Losses and gradients of one batch, forward and backward, by each way, as interleaved rounds, with
the peak of memory and the difference to the loop: the Game of Life at several batch sizes, and the
synchronous checkerboard at batch 2. Also how far logits are apart after 5 updates by the batch and
by the loop, in float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from astkit.files import write_atomic
from astkit.profiling import interleaved, peak_tensor_bytes
from astkit.stamp import describe, stamp
from astkit.systems.automaton.automaton import LogicCA
from astkit.systems.automaton.gradients import gradients
from astkit.systems.automaton.tasks import Task, checkerboard, game_of_life
from astkit.systems.automaton.training import AutomatonTrainer

RESULTS = Path(__file__).with_name("logic_ca.json")
BATCHES = (1, 2, 5, 20, 80)
AT, BOUND = 20, 5.0  # loop / batch of Life, at a batch of 20
WAYS: dict[str, dict[str, Any]] = {
    "batch": {"parallel": "batch"},
    "vmap": {"parallel": "vmap"},
    "chunk of 5": {"parallel": 5},
    "loop": {"parallel": "loop"},
}


def arms_of(task: Task, size: int, model: LogicCA) -> dict[str, Callable[[], Any]]:
    """The ways on one batch of ``task``."""
    batch = next(iter(task.source(batch_size=size).batches(0)))
    dtype = next(model.parameters()).dtype
    x, y, masks = batch.x.to(dtype), batch.y.to(dtype), task.masks(batch.index, 0, 0)
    return {
        name: partial(gradients, model, x, y, task.steps, masks, **way)
        for name, way in WAYS.items()
    }


def measured(task: Task, size: int, rounds: int) -> dict[str, Any]:
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


def differences(task: Task, size: int) -> dict[str, float]:
    """Largest difference to the loop's gradients in float64, relative to each layer's largest."""
    arms = arms_of(task, size, LogicCA(task.config).double())
    losses, wanted = arms["loop"]()
    found = {}
    for name, arm in arms.items():
        own, each = arm()
        pairs = [(own, losses), *((each[key], wanted[key]) for key in wanted)]
        found[name] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    return found


def updates_apart(task: Task, updates: int = 5) -> float:
    """Largest difference of the logits after some updates by the batch and by the loop."""
    ends = []
    for way in ("batch", "loop"):
        model = LogicCA(task.config).double()
        AutomatonTrainer(task, iterations=updates, parallel=way, model=model, device="cpu").run()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return (ends[0] - ends[1]).abs().max().item()


def main(arguments: list[str] | None = None) -> None:
    """Measure all of it and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=31, help="of Life; the checkerboard's 11")
    parser.add_argument("--board-rounds", type=int, default=11)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    options = parser.parse_args(arguments)
    life, board = game_of_life(), checkerboard()
    report: dict[str, Any] = {"stamp": stamp(), "threads": torch.get_num_threads()}
    report["life"] = [measured(life, size, options.rounds) for size in options.batches]
    report["updates_apart"] = updates_apart(life)
    report["checkerboard"] = [measured(board, 2, options.board_rounds)]
    write_atomic(options.out, json.dumps(report, indent=1) + "\n")
    print(describe(report["stamp"]))


if __name__ == "__main__":
    main()
