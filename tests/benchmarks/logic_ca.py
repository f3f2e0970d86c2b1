"""What the four ways to the automaton's gradient cost: `python -m tests.benchmarks.logic_ca`
writes logic_ca.json.

Losses and gradients of one batch, forward and backward, by each way, as interleaved rounds:

- Game of Life at several batch sizes, with the peak of memory and the difference to the loop;
- how far logits are apart after 5 updates by the batch and by the loop, in float64;
- the soft rollout over that of a packed circuit of random gates, which cannot be pruned;
- the synchronous checkerboard at batch 2, where a step is bound by memory: beside the ways, what
  its time would be without the flushing of denormals and without the fused gate layers.
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
from torch import Tensor

from astkit import rng
from astkit.files import write_atomic
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.circuit import Circuit, from_automaton
from astkit.logic_ca.gradients import denormals_flushed, first_channel_loss, gradients
from astkit.logic_ca.packed import PackedCircuit
from astkit.logic_ca.tasks import Task, checkerboard, game_of_life
from astkit.logic_ca.training import logic_trainer
from astkit.profiling import Timings, interleaved, peak_tensor_bytes
from astkit.stamp import describe, stamp
from tests.logic_ca.circuits import drawn

RESULTS = Path(__file__).with_name("logic_ca.json")
BATCHES = (1, 2, 5, 20, 80)
AT = 20
BOUNDS = {"life": 5.0}  # loop / batch, at a batch of 20
STRETCH = {"life": 8.0, "checkerboard": 1.6}
WAYS: dict[str, dict[str, Any]] = {
    "batch": {"parallel": "batch"},
    "vmap": {"parallel": "vmap"},
    "chunk of 5": {"parallel": "chunk", "chunk_size": 5},
    "loop": {"parallel": "loop"},
}
PACKED_MEANING = (
    "wall seconds of the soft rollout (float32, fused layers, no gradients) over those of the"
    " packed one, from the same tensor to a tensor: packing and unpacking included, pruning not"
)
Arm = Callable[[], Any]


def arms_of(task: Task, size: int, model: LogicCA) -> dict[str, Arm]:
    """The ways on one batch of ``task``."""
    batch = next(iter(task.source(batch_size=size).batches(0)))
    dtype = next(model.parameters()).dtype
    x, y, masks = batch.x.to(dtype), batch.y.to(dtype), task.masks(batch.index, 0, 0)
    return {
        name: partial(gradients, model, x, y, task.steps, masks, **way)
        for name, way in WAYS.items()
    }


def over_batches(
    task: Task, sizes: list[int], rounds: int, ways: list[str]
) -> list[dict[str, Any]]:
    """For each batch size the seconds of each way, their ratios to the loop, memory, difference."""
    found = []
    for size in sizes:
        model = LogicCA(task.config)
        arms = {name: arm for name, arm in arms_of(task, size, model).items() if name in ways}
        timed = interleaved(arms, rounds=rounds, warmup=2)
        found.append(
            {
                "task": task.name,
                "batch": size,
                **_plain(timed, "loop"),
                "peak_bytes": {name: peak_tensor_bytes(arm) for name, arm in arms.items()},
                "difference": _differences(task, size, list(arms)),
            }
        )
        print(task.name, size, {k: round(r["median"], 2) for k, r in found[-1]["ratios"].items()})
    return found


def updates_apart(task: Task, updates: int = 5) -> float:
    """Largest difference of the logits after some updates by the batch and by the loop."""
    ends = []
    for way in ("batch", "loop"):
        model = LogicCA(task.config).double()
        logic_trainer(task, iterations=updates, parallel=way, model=model, device="cpu").run()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return (ends[0] - ends[1]).abs().max().item()


def where_time_goes(task: Task, size: int, rounds: int) -> dict[str, Any]:
    """Parts and variants of one batch's gradient, against all of it as it is."""
    model = LogicCA(task.config)
    batch = next(iter(task.source(batch_size=size).batches(0)))
    forward = partial(model, batch.x, task.steps)

    def whole(fused: bool, flushed: bool) -> None:
        def run() -> None:
            losses = first_channel_loss(forward(fused=fused), batch.y)
            torch.autograd.grad(losses.sum(), list(model.parameters()))

        if flushed:
            with denormals_flushed():
                run()
        else:
            run()

    arms: dict[str, Arm] = {
        "as it is": partial(whole, True, True),
        "forward alone": forward,
        "half the cells": partial(_cut, model, task, batch.x, batch.y),
        "denormals kept": partial(whole, True, False),
        "plain gates": partial(whole, False, True),
    }
    timed = interleaved(arms, rounds=rounds, warmup=1)
    cells, values = task.height * task.width * size, task.config.gates_per_cell
    return {
        "task": task.name,
        "batch": size,
        **_plain(timed, "as it is"),
        "bytes_a_step": 4 * cells * values,
        "gates": cells * values * task.steps,
    }


def _cut(model: LogicCA, task: Task, x: Tensor, y: Tensor) -> None:
    """One of two samples: what a loop over them does twice."""
    gradients(model, x[: len(x) // 2], y[: len(y) // 2], task.steps)


def packed_ratio(
    model: LogicCA,
    circuit: Circuit | None = None,
    *,
    size: int = 128,
    steps: int = 100,
    soft_steps: int,
    rounds: int = 7,
) -> dict[str, Any]:
    """Seconds per step of the soft rollout over those of the packed one, on ``size`` x ``size``.

    ``circuit`` is that of ``model`` by default; the soft arm takes ``soft_steps`` steps, and its
    seconds are scaled to ``steps``.
    """
    packed = PackedCircuit(from_automaton(model) if circuit is None else circuit)
    shape = (1, model.config.channels, size, size)
    x = torch.randint(2, shape, generator=rng.generator("packed")).float()

    def soft() -> None:
        with torch.no_grad():
            model(x, soft_steps)

    times = interleaved({"soft": soft, "packed": lambda: packed.rollout(x, steps)}, rounds=rounds)
    found, scale = times.ratio("soft", "packed"), steps / soft_steps
    return {
        "name": f"soft / packed rollout, {size} x {size}, {steps} steps",
        **{name: getattr(found, name) * scale for name in ("median", "low", "high")},
        "n": found.n,
        "bound": 50,
        "sense": "at least",
        "meaning": PACKED_MEANING,
        "soft_steps": soft_steps,
        "gates": model.config.gates_per_cell,
        "pruned_gates": packed.circuit.gates,
        "seconds": {"soft": times.median("soft") * scale, "packed": times.median("packed")},
    }


def _plain(timed: Timings, over: str) -> dict[str, Any]:
    """Seconds, and the ratio of ``over`` to each arm (above 1: the arm is faster)."""
    ratios = {name: asdict(timed.ratio(over, name)) for name in timed.seconds if name != over}
    return {"seconds": dict(timed.seconds), "over": over, "ratios": ratios}


def _differences(task: Task, size: int, names: list[str]) -> dict[str, float]:
    """Largest difference to the loop's gradients in float64, relative to each layer's largest."""
    model = LogicCA(task.config).double()
    arms = arms_of(task, size, model)
    losses, wanted = arms["loop"]()
    found = {}
    for name in names:
        own, each = arms[name]()
        pairs = [(own, losses), *((each[key], wanted[key]) for key in wanted)]
        found[name] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure all of it and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=31, help="of Life; the checkerboard's 11")
    parser.add_argument("--board-rounds", type=int, default=11)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--no-board", action="store_true", help="Game of Life alone")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"stamp": stamp(), "threads": torch.get_num_threads()}
    report["bounds"], report["stretch"] = BOUNDS, STRETCH
    report["life"] = over_batches(game_of_life(), options.batches, options.rounds, options.ways)
    report["updates_apart"] = updates_apart(game_of_life())
    if not options.no_board:
        report["packed"] = packed_ratio(drawn(game_of_life().config), soft_steps=5)
        board = checkerboard()
        report["checkerboard"] = over_batches(board, [2], options.board_rounds, options.ways)
        report["where"] = where_time_goes(board, 2, options.board_rounds)
    write_atomic(options.out, json.dumps(report, indent=1) + "\n")
    print(describe(report["stamp"]))


if __name__ == "__main__":
    main()
