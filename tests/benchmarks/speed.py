"""What the switches buy together: `python -m tests.benchmarks.speed` writes speed.json.

Images a second of all that "auto" picks over plain training (fp32, NCHW, eager, a DataLoader with
the worker count that is fastest), as interleaved rounds of whole passes; and what that costs in
accuracy, paired by seed: CIFAR-10 where its folder is named and the digits otherwise, trained with
the precision and memory order that "auto" picked for the timed network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from astkit.comparison.task import Task

from astkit.files import write_atomic
from astkit.gating import Gate
from astkit.stamp import describe, stamp
from astkit.tasks import task as known
from astkit.trainers import Budget, TrainConfig
from tests.benchmarks import switches
from tests.benchmarks.readings import difference

RESULTS = Path(__file__).with_name("speed.json")
BOUNDS = {"dense": 2.5, "batched gate": 2.0}  # where the CPU has bf16 of its own
RATE = 0.10
MARGIN = 0.005  # of accuracy: what the whole interval has to stay within


def speed(kind: str, rounds: int, batches: int, model: str = "simple_cnn") -> dict[str, Any]:
    """The arms of one kind of training: plain, resident data, and everything together."""
    rate = None if kind == "dense" else RATE
    bench = switches.Bench(model, batches, rate)
    plain = switches.best_workers(bench)
    chosen = [plain, switches.RESIDENT, switches.TOGETHER]
    measured = switches.measure(bench, chosen, rounds)
    ratio = measured.seconds.ratio(plain.name, switches.TOGETHER.name)
    native = bool(stamp()["bf16_native"])
    return {
        "kind": kind,
        "model": model,
        "workers": plain.workers,
        "speed": {"median": ratio.median, "low": ratio.low, "high": ratio.high, "n": ratio.n},
        "bound": BOUNDS[kind] if native else None,
        "table": measured.table().reset_index().to_dict("records"),
        **measured.to_dict(),
    }


def picked(report: dict[str, Any]) -> dict[str, Any]:
    """What "auto" became in the dense arm of a speed report, of what changes numbers."""
    decisions = report["speed"][0]["reports"][switches.TOGETHER.name]["decisions"]
    return {d["name"]: d["value"] for d in decisions if d["name"] in ("precision", "channels_last")}


def accuracy(
    asked: dict[str, Any],
    seeds: int,
    root: str | None,
    before: dict[str, Any],
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Test accuracy with the settings ``auto`` minus that with plain ones, for the same seeds.

    Saved after each seed; where ``before`` holds seeds of what is ``asked``, it goes on after them.
    """
    results = before["results"] if all(before.get(key) == asked[key] for key in asked) else []
    task = Task(**{**known(asked["dataset"], root=root), "config": TrainConfig(lr=asked["lr"])})
    tasks = {"plain": task, "auto": replace(task, config=replace(task.config, **asked["auto"]))}
    done = {result["seed"] for result in results}
    for seed in (each for each in range(seeds) if each not in done):
        for name, changed in tasks.items():
            for arm in BOUNDS:
                found = {"arm": f"{arm}, {name}", **trained(changed, arm, seed, asked["epochs"])}
                results.append(found)
                print(seed, found["arm"], f"{found['test_accuracy']:.2%}", flush=True)
        gaps = {arm: difference(results, f"{arm}, auto", f"{arm}, plain") for arm in BOUNDS}
        differences = {arm: gap._asdict() for arm, gap in gaps.items()}
        measured = {"margin": MARGIN, "differences": differences, "results": results}
        save({**asked, **_circumstances(), **measured})


def trained(task: Task, arm: str, seed: int, epochs: float) -> dict[str, Any]:
    """Accuracy and cost of one training, dense or gated."""
    policy = None if arm == "dense" else Gate(RATE, seed=seed)
    work = task.trainer(policy, seed, Budget(epochs=epochs))
    work.run()
    return {
        "seed": seed,
        "test_accuracy": work.evaluate(task.held("test"))["accuracy"],
        "rate": None if policy is None else policy.rate,
        "flops": work.ledger.flops.total,
        "setting_up": work.setting_up.record(),
    }


def _circumstances() -> dict[str, Any]:
    return {"stamp": stamp(), "threads": torch.get_num_threads()}


def main(arguments: list[str] | None = None) -> None:
    """Measure what is asked for and write it, beside what an earlier call has written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batches", type=int, default=6, help="of 128 images, a pass")
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=float, default=15)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--root", help="folder of CIFAR-10; the digits without it")
    parser.add_argument("--only", choices=("speed", "accuracy"))
    options = parser.parse_args(arguments)
    report = json.loads(options.out.read_text()) if options.out.exists() else {}

    def save(**parts: Any) -> None:
        report.update(parts)
        write_atomic(options.out, json.dumps(report, indent=1) + "\n")

    if options.only != "accuracy":
        rounds = (options.rounds, options.batches, options.model)
        save(**_circumstances(), speed=[speed(kind, *rounds) for kind in BOUNDS])
    if options.only != "speed":
        asked = {
            "dataset": "digits" if options.root is None else "cifar10",
            "epochs": options.epochs,
            "lr": options.lr,
            "augment": options.root is not None,
            "auto": picked(report),
        }
        before = report.get("accuracy", {})
        accuracy(asked, options.seeds, options.root, before, lambda part: save(accuracy=part))
    print(describe(report["stamp"]))
    for found in report.get("speed", []):
        print(found["kind"], found["speed"], "bound", found["bound"])


if __name__ == "__main__":
    main()
