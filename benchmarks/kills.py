"""Runs killed at any moment end as runs that were not.

`python -m benchmarks.kills --kills 30` kills training with SIGKILL and resumes it.

Each run trains in a forked process of its own, is killed once, and resumed to its end; it has to
end with the very weights, threshold, memory, metrics and counts of a run that nobody killed. Every
third kill strikes in the middle of writing a checkpoint: its file is there under a temporary name.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from astkit.datasets import Loader, load
from astkit.files import write_json
from astkit.gating import Gate
from astkit.models import build
from astkit.stamp import stamp
from astkit.trainers import (
    Budget,
    Checkpoints,
    SampleBySampleTrainer,
    TrainConfig,
    Trainer,
)
from benchmarks import bench
from tests.trainers.states import Hardest, Records, outcome, same, timeless

RESULTS = bench.HERE / "kills.json"
DIGITS = load("digits")[0]
ROWS = 512


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "dense": dict,
    "batched": lambda: {"policy": Gate(0.25, "loss_and_contrast")},
    "sample by sample": lambda: {"policy": Gate(0.25)},
    "planned": lambda: {"policy": Hardest(ROWS)},
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
        observers=[Records()],
        checkpoints=Checkpoints(folder / "ckpt", every=3),
        resume=True,
        device="cpu",
        **KINDS[kind](),
    )


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
    metrics = timeless(run.reports.observers[1].kept)
    torch.save({**outcome(run), "metrics": metrics}, folder / "outcome.pt")


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
    return {"killed": killed, "torn": bool(torn), "checkpoints": len(found), "left": left(folder)}


def left(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "outcome.pt", weights_only=False)
    return found


def measure(kind: str, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill runs of one kind ``kills`` times; counts, and what differed from the undisturbed run."""
    chance = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        start = time.perf_counter()
        _, status = os.waitpid(child(lambda: train(kind, whole)), 0)
        assert status == 0, "the undisturbed run failed"
        seconds = time.perf_counter() - start
        expected = left(whole)
        results = [
            kill_once(kind, Path(place) / str(n), seconds, chance, n % 3 == min(2, kills - 1))
            for n in range(kills)
        ]
    differing = [
        sorted(key for key in expected if not same(result["left"][key], expected[key]))
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


def main() -> None:
    """Measure all kinds and write the counts with a stamp."""
    asked = bench.options(__doc__, RESULTS, kills=30)
    import torch._dynamo  # takes seconds to load, once here instead of in every child

    torch.set_num_threads(1)  # before any kernel runs: its threads would not survive the fork
    kinds = [measure(kind, asked.kills) for kind in KINDS]
    write_json(asked.out, {"stamp": stamp(), "kinds": kinds})
    print(*kinds, sep="\n")


if __name__ == "__main__":
    main()
