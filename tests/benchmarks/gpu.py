"""What a GPU is wanted for: `python -m tests.benchmarks.gpu --out FILE` writes one JSON.

Does the gate make the GPU wait, how many times faster than row by row is it there, what does it
cost a batch, which switches pay, and how does the transformer end at a rate of 0.10 against dense
training at equal FLOPs. The parts know nothing of one another: one that fails is recorded with its
error and the others go on. It runs on a CPU too; ``--quick`` tries everything out in a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from astkit.comparison.task import Task
from astkit.trainers.learner import choose_device
from torch import Tensor, nn

from astkit import models
from astkit.datasets import Loader
from astkit.files import write_atomic
from astkit.gating import DeviceGate, Gate, cross_entropy_rows
from astkit.profiling import Timings, interleaved
from astkit.profiling.ledger import synchronizer
from astkit.stamp import describe, stamp
from astkit.tasks import task as known
from astkit.trainers import Budget, SampleStep, TrainConfig, Trainer
from tests.benchmarks import switches as speed
from tests.benchmarks.measure import BATCH, RATE, synthetic
from tests.gating.syncs import Syncs

Part = dict[str, Any]
ENDLESS = Budget(epochs=1e9)
ORIGINAL: Part = {
    "make_model": partial(models.SimplifiedViT, (3, 32, 32), 10),
    "config": TrainConfig(lr=1e-4, weight_decay=0.01, clip_norm=1.0),
}
"""The original's settings for its published run, KAGGLE_AST_FINAL_REPORT.md at 3e66290."""
FP16 = speed.Switch("fp16", {"precision": "fp16"})
GATES: dict[str, Callable[[], Gate]] = {
    "gate, log_integral": lambda: Gate(RATE),
    "gate, top_k": lambda: Gate(RATE, controller="top_k"),
    "device gate": lambda: DeviceGate(RATE),
}


def sync_check(device: torch.device, quick: bool) -> Part:
    """How often the host waits in plain gated steps, the loop itself included."""
    steps, rows = (5, 16) if quick else (50, BATCH)
    data = synthetic(rows)
    x, y = (data.images / 255).to(device), data.labels.to(device)
    found = {}
    for name, build in GATES.items():
        step = plain_step(build(), models.build("simple_cnn", data.shape, 10).to(device), x, y)
        step()
        with waits(device) as names:
            for _ in range(steps):
                step()
        found[name] = {"waits": len(names), "kinds": sorted(set(names))}
    how = (
        "torch.cuda.set_sync_debug_mode"
        if device.type == "cuda"
        else "operations whose result the host reads"
    )
    return {"steps": steps, "batch": rows, "counted_by": how, "gates": found}


def plain_step(gate: Gate, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One gated step in somebody's own loop: score, select, train."""
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=x.device.type in ("cpu", "cuda"))

    def step() -> None:
        chosen = gate(model, x, y)
        few, labels = chosen.take((x, y))
        adamw.zero_grad(set_to_none=True)
        chosen.mean(cross_entropy_rows(model(few), labels)).backward()
        adamw.step()

    return step


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """What makes the host wait for ``device`` in a block, one entry each time."""
    if device.type != "cuda":
        with Syncs() as syncs:
            yield syncs.names
        return
    names: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield names
        finally:
            torch.cuda.set_sync_debug_mode("default")
            texts = [str(each.message) for each in caught]
            names += [text for text in texts if "synchronizing" in text]


def against_rows(device: torch.device, quick: bool) -> Part:
    """Training SimpleCNN by every gate and row by row, each as a run of the kit's trainer."""
    rows, batch = (64, 16) if quick else (8 * BATCH, BATCH)
    task, by_row = noise("SimpleCNN", device, rows, batch), "sample by sample, per batch"
    ways = {
        "dense": task.trainer(None, 0, ENDLESS),
        "batched gate": task.trainer(Gate(RATE), 0, ENDLESS),
        by_row: task.trainer(None, 0, ENDLESS, step=SampleStep(Gate(RATE), "per_batch")),
        "device gate": task.trainer(DeviceGate(RATE), 0, ENDLESS),
    }
    runs = {name: work.steps().__next__ for name, work in ways.items()}
    times = interleaved(runs, rounds=3 if quick else 31, synchronize=synchronizer(device))
    return {
        "meaning": "wall seconds of one training step; ratios are taken within a round",
        "batch": batch,
        "row_by_row_over_batched": ratio(times, by_row, "batched gate"),
        "gate_over_device_gate": ratio(times, "batched gate", "device gate"),
        "dense_over_batched": ratio(times, "dense", "batched gate"),
        **asdict(times),
        "table": times.table(),
    }


def noise(model: str, device: torch.device, rows: int, batch_size: int) -> Task:
    """A task on noise in the shape of CIFAR-10: what a pixel shows does not change its cost."""
    data = synthetic(rows)
    source = Loader(data, batch_size)
    make = partial(getattr(models, model), data.shape, 10)
    return Task(make, source, source, source, device=str(device))


def ratio(times: Timings, a: str, b: str) -> Part:
    """Seconds of ``a`` over those of ``b``, as plain values."""
    return vars(times.ratio(a, b))


def overhead(device: torch.device, quick: bool) -> Part:
    """Microseconds that a decision takes a batch, given its scores, by every gate."""
    calls, rounds, table = (5, 2, []) if quick else (100, 15, [])
    for rows in (BATCH,) if quick else (BATCH, 1024):
        scores = [
            torch.rand(rows, generator=torch.Generator().manual_seed(number)).to(device)
            for number in range(calls)
        ]
        clocks = {name: decisions(build(), scores) for name, build in GATES.items()}
        times = interleaved(clocks, rounds=rounds, synchronize=synchronizer(device))
        for row in times.table():
            figures = {
                f"microseconds{name}": 1e6 * float(str(row[f"seconds{name}"])) / calls
                for name in ("", "_low", "_high")
            }
            queued = on_gpu(clocks[str(row["arm"])], device, rounds)
            gpu = None if queued is None else 1e3 * queued / calls
            table.append(
                {
                    "gate": row["arm"],
                    "batch": rows,
                    "n": rounds,
                    **figures,
                    "event_microseconds": gpu,
                }
            )
    return {
        "meaning": "wall microseconds a call of select, until the device is done, the median of"
        f" rounds of {calls} calls; event_microseconds: the same between two CUDA events",
        "table": table,
    }


def decisions(gate: Gate, scores: list[Tensor]) -> Callable[[], None]:
    """A function that decides on each of ``scores`` in turn."""

    def decide() -> None:
        for each in scores:
            gate.select(each)

    return decide


def on_gpu(work: Callable[[], None], device: torch.device, rounds: int) -> float | None:
    """Median milliseconds between two CUDA events around ``work``; ``None`` without CUDA."""
    if device.type != "cuda":
        return None
    spent = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        spent.append(float(first.elapsed_time(last)))
    return median(spent)


def switches(device: torch.device, quick: bool) -> Part:
    """Precision, memory format, compilation and the like, each beside the plain setting."""
    bench = speed.Bench(batches=1 if quick else 40, device=str(device))
    tried = {switch.name: switch for switch in (*speed.SWITCHES, FP16, speed.COMPILED)}
    del tried[speed.RESIDENT.name], tried["plain"]
    if quick:
        tried = {name: tried[name] for name in ("fused optimizer",)}
    # images that are loaded one by one would hide what the other switches do
    plain, *others = (replace(each, resident=True) for each in (speed.SWITCHES[0], *tried.values()))
    return {
        "meaning": "a pass of device-resident noise, SimpleCNN, dense; each switch takes turns with"
        " the plain setting, so a switch that cannot run here stops no other",
        "pairs": {arm.name: attempt(partial(pair, bench, plain, arm, quick)) for arm in others},
    }


def pair(bench: speed.Bench, plain: speed.Switch, arm: speed.Switch, quick: bool) -> Part:
    """What ``arm`` takes against ``plain``."""
    found = speed.measure(bench, (plain, arm), rounds=2 if quick else 15)
    return {"plain_over_switch": ratio(found.seconds, plain.name, arm.name), **found.to_dict()}


def transformer(device: torch.device, quick: bool, epochs: float, seeds: int) -> Part:
    """SimplifiedViT on CIFAR-10 at a rate of 0.10, gated, and dense at equal FLOPs."""
    if quick:
        task = noise("SimplifiedViT", device, 64, 32)
    else:
        task = Task(**{**known("cifar10"), **ORIGINAL}, device=str(device))
    results = []
    for seed in range(seeds):
        gate = {"score": "loss_and_contrast", "controller": "origin_pi"}
        gated = trained("gate", task.trainer(Gate(RATE, **gate), seed, Budget(epochs=epochs)), task)
        equal = task.trainer(None, seed, Budget(flops=gated["flops"]))
        results += [gated, trained("dense, equal FLOPs", equal, task)]
    return {"epochs": epochs, "n": seeds, "results": results}


def trained(arm: str, work: Trainer, task: Task) -> Part:
    """Accuracy and cost of a training run."""
    work.run()
    energy = work.ledger.energy()
    return {
        "arm": arm,
        "seed": work.config.seed,
        "test_accuracy": work.evaluate(task.held("test"))["accuracy"],
        "flops": work.ledger.flops.total,
        "seconds": work.ledger.seconds["training"],
        "joules": energy.joules,
        "joules_reason": energy.reason,
    }


def attempt(part: Callable[[], Part]) -> Part:
    """What ``part`` returns with the seconds it took, or its error."""
    start = time.perf_counter()
    try:
        found = part()
    except Exception as error:  # the other parts must still run
        found = {"error": f"{type(error).__name__}: {error}"}
    return {**found, "part_seconds": time.perf_counter() - start}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every part and write the results in one piece."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="small numbers, to try things out")
    parser.add_argument("--epochs", type=float, default=40, help="of the transformer, gated")
    parser.add_argument("--seeds", type=int, default=1, help="runs of the transformer an arm")
    options = parser.parse_args(arguments)
    device, quick = choose_device(options.device), options.quick
    content = {"stamp": stamp(), "device": str(device), "quick": quick, "parts": {}}
    content["load_before"] = os.getloadavg()
    print(describe(content["stamp"]))
    parts = {
        "sync_check": lambda: sync_check(device, quick),
        "against_rows": lambda: against_rows(device, quick),
        "overhead": lambda: overhead(device, quick),
        "switches": lambda: switches(device, quick),
        "transformer": lambda: transformer(device, quick, options.epochs, options.seeds),
    }
    for name, part in parts.items():
        found = content["parts"][name] = attempt(part)
        print(f"{name}: {found.get('error', 'done')} ({found['part_seconds']:.1f} s)", flush=True)
        # after every part: a machine that is taken away leaves what it has measured
        write_atomic(options.out, json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
