"""Kill training with SIGKILL and resume it: `python -m tests.trainers.killing --kills 30`.

Each run trains in a forked process of its own, is killed once, and resumed to its end; it has to
end with the very weights, threshold, memory, metrics and counts of a run that nobody killed. Every
third kill strikes in the middle of writing a checkpoint: its file is there under a temporary name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from astkit import files
from astkit.datasets import Loader, load
from astkit.gating import Gate, Policy, RunInfo, Selection, Visit
from astkit.models import build
from astkit.stamp import stamp
from astkit.trainers import (
    Budget,
    Checkpoints,
    MetricsFile,
    SampleBySampleTrainer,
    TrainConfig,
    Trainer,
)
from astkit.trainers.history import read
from tests.trainers.states import timeless

RESULTS = Path(__file__).parents[1] / "benchmarks" / "kills.json"
DIGITS = load("digits")[0]
ROWS = 512


class LastLosses(Policy):
    """Of each fifth of an epoch the half whose loss was highest when it was last seen.

    Rows that were left out are scored every other round; weights make up for what is left out.
    """

    rounds = 5
    needs_index = needs_outputs = True
    state = ("losses", "wrong")

    def __init__(self) -> None:
        self.losses = torch.full((ROWS,), torch.inf)
        self.wrong = torch.zeros(ROWS, dtype=torch.int64)

    def plan(self, run: RunInfo) -> Selection:
        order = self.losses[run.rows].argsort(descending=True, stable=True)
        best, rest = run.rows[order].tensor_split([len(order) // 2])
        weight = 1.0 + self.wrong[best]
        scored = rest if run.round % 2 else None
        return Selection(best, weight, float(len(best)), score_only=scored, lr_factor=0.9)

    def observe(self, visit: Visit) -> None:
        self.losses[visit.index] = visit.losses
        self.wrong[visit.index] += ~visit.correct


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "dense": dict,
    "batched": lambda: {"policy": Gate(0.25, "loss_and_contrast")},
    "sample by sample": lambda: {"policy": Gate(0.25)},
    "planned": lambda: {"policy": LastLosses()},
}
EPOCHS: dict[str, float] = {"dense": 4, "batched": 4, "sample by sample": 0.7, "planned": 4}


def trainer(kind: str, folder: Path) -> Trainer:
    """A run that goes on from ``folder``, if it was begun there."""
    made = SampleBySampleTrainer if kind == "sample by sample" else Trainer
    return made(
        build("digits_cnn", (1, 8, 8), 10, seed=1),
        Loader(DIGITS.subset(range(ROWS)), 64, seed=1),
        Loader(DIGITS.subset(range(ROWS, 600)), 44, shuffle=False),
        budget=Budget(epochs=EPOCHS[kind]),
        config=TrainConfig(lr=3e-3, accumulation_steps=2),
        observers=[MetricsFile(folder / "metrics.jsonl")],
        checkpoints=Checkpoints(folder / "ckpt", every=3),
        resume=True,
        device="cpu",
        **KINDS[kind](),
    )


def outcome(run: Trainer, folder: Path) -> dict[str, Any]:
    """All that a run leaves behind and that is no time."""
    hasher = hashlib.sha256()
    state = run.optimizer.state_dict()["state"]
    moments = [tensor for moment in state.values() for tensor in moment.values()]
    for tensor in [*run.model.state_dict().values(), *moments]:
        hasher.update(tensor.numpy().tobytes())
    memory = {} if run.policy is None else run.policy.state_dict()
    found = {
        "weights and optimizer": hasher.hexdigest(),
        "memory": {n: v.tolist() if hasattr(v, "tolist") else v for n, v in memory.items()},
        "samples": asdict(run.ledger.samples),
        "flops": asdict(run.ledger.flops),
        "metrics": timeless(read(folder / "metrics.jsonl")),
    }
    return json.loads(json.dumps(found))


def child(work: Callable[[], None]) -> int:
    """Do ``work`` in a forked process; returns its id."""
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return process


def train(kind: str, folder: Path, strike: int | None = None) -> None:
    """Train to the end and keep the outcome; at the ``strike``-th write to the disk, be killed."""
    if strike is not None:
        fsync, count = os.fsync, iter(range(10**9))

        def deadly(descriptor: int) -> None:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if "_step" in Path(name).name and next(count) >= strike:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(descriptor)

        os.fsync = deadly
    run = trainer(kind, folder)
    run.run()
    files.write_atomic(folder / "outcome.json", json.dumps(outcome(run, folder)))


def kill_once(
    kind: str, folder: Path, seconds: float, chance: random.Random, middle: bool
) -> dict[str, Any]:
    """Begin a run, kill it, resume it; how it was struck and what it left."""
    writes = max(1, round(EPOCHS[kind]))  # at least as many checkpoints
    strike = chance.randrange(writes) if middle else None
    process = child(lambda: train(kind, folder, strike))
    delay = chance.uniform(0.0, 0.9 * seconds)
    if not middle:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    killed = os.WIFSIGNALED(status)
    ckpt = folder / "ckpt"
    found = sorted(path.name for path in ckpt.glob("*_step*")) if ckpt.exists() else []
    torn = [name for name in found if name.startswith(".")]
    again = child(lambda: train(kind, folder))
    _, status = os.waitpid(again, 0)
    assert status == 0, "the resumed run failed"
    left = json.loads((folder / "outcome.json").read_text())
    return {"killed": killed, "torn": bool(torn), "checkpoints": len(found), "outcome": left}


def measure(kind: str, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill runs of one kind ``kills`` times; counts, and what differed from the undisturbed run."""
    chance = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        start = time.perf_counter()
        _, status = os.waitpid(child(lambda: train(kind, whole)), 0)
        assert status == 0, "the undisturbed run failed"
        seconds = time.perf_counter() - start
        expected = json.loads((whole / "outcome.json").read_text())
        results = [
            kill_once(kind, Path(place) / str(n), seconds, chance, n % 3 == min(2, kills - 1))
            for n in range(kills)
        ]
    differing = [
        sorted(key for key in expected if result["outcome"][key] != expected[key])
        for result in results
    ]
    return {
        "kind": kind,
        "runs": kills,
        "killed": sum(result["killed"] for result in results),
        "with a checkpoint half written": sum(result["torn"] for result in results),
        "resumed from a checkpoint": sum(result["checkpoints"] > 0 for result in results),
        "equal to the undisturbed run": sum(not keys for keys in differing),
        "differing in": sorted({key for keys in differing for key in keys}),
        "training batches": sum(each["phase"] == "train" for each in expected["metrics"]),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure all kinds and write the counts with a stamp."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    import torch._dynamo  # takes seconds to load, once here instead of in every child

    torch.set_num_threads(1)  # before any kernel runs: its threads would not survive the fork
    kinds = [measure(kind, options.kills) for kind in KINDS]
    content = {"stamp": stamp(), "kinds": kinds}
    files.write_atomic(options.out, json.dumps(content, indent=1) + "\n")
    print(json.dumps(kinds, indent=1))


if __name__ == "__main__":
    main()
