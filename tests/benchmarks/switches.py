"""Benchmark of speed settings: each arm trains in its own process, one arm at a time.

Threads, allocator and peak memory are per process, so arms that differ in them cannot share
one. Each call trains for exactly one epoch, so that loader workers do not prefetch during
another arm's call.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from astkit import models, rng
from astkit.datasets import Images, Loader
from astkit.gating import Gate
from astkit.profiling import Timings, interleaved, peak_memory
from astkit.trainers import Budget, TrainConfig, Trainer

ENDLESS = Budget(epochs=1e9)
# imports in an optimizer's first step take seconds; done once for all arms
_PRELOAD = ["tests.benchmarks.switches", "torch._dynamo"]
STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # CIFAR-10's channels, units 0..1
PLAIN = {"fused": False, "threads": "auto"}
"""The defaults of plain PyTorch: fp32, NCHW, eager, a loop over parameters in the optimizer."""


@dataclass(frozen=True)
class Switch:
    """A speed setting of the same training.

    Attributes:
        name: name in tables.
        settings: arguments of `TrainConfig`, in addition to `PLAIN`.
        resident: keep the images on the device and normalise per batch; otherwise a
            DataLoader that normalises per image.
        workers: number of worker processes of that DataLoader.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    resident: bool = False
    workers: int = 0
    batch_size: int = 128


RESIDENT = Switch("resident data", resident=True)
SWITCHES: tuple[Switch, ...] = (
    Switch("plain"),
    RESIDENT,
    Switch("fused optimizer", {"fused": True}),
    Switch("bf16", {"precision": "bf16"}),
    Switch("channels_last", {"channels_last": True}),
    Switch("allocator", {"allocator": "on"}),
    Switch("micro-batches of 32", {"micro_batch": 32}),
    Switch("accumulation, 2 x 64", {"accumulation_steps": 2}, batch_size=64),
    Switch("metrics every 10", {"metrics_every": 10}),
)
COMPILED = Switch("compile", {"compile": True})
TOGETHER = Switch("all that auto picks", TrainConfig.fast().to_dict(), resident=True)


def synthetic(rows: int, shape: tuple[int, int, int] = (3, 32, 32)) -> Images:
    """Random noise in CIFAR-10's shape; the cost does not depend on the values."""
    random = rng.generator(0, "synthetic")
    pixels = torch.randint(256, (rows, *shape), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (rows,), generator=random)
    return Images(pixels, labels, tuple("0123456789"), "synthetic")


class Items(Dataset[tuple[Tensor, int]]):
    """A map-style dataset of single images, scaled and normalised."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in STATS)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = self.images.images[row].float() / 255
        return (image - self.mean) / self.std, int(self.images.labels[row])


@dataclass(frozen=True)
class Bench:
    """The task of all arms: a registered model on ``batches`` batches of noise per epoch.

    ``rate``: target rate of the batched gate; ``None`` for dense training.
    """

    model: str = "simple_cnn"
    batches: int = 6
    rate: float | None = None
    device: str = "cpu"

    @property
    def rows(self) -> int:
        """Images per epoch."""
        return 128 * self.batches

    def trainer(self, switch: Switch) -> Trainer:
        """A trainer that differs from the plain one only by ``switch``."""
        images = synthetic(self.rows)
        settings = {**PLAIN, **switch.settings}
        if switch.resident:
            train: Any = Loader(images, switch.batch_size, normalize=STATS, resident=True)
        else:
            train = DataLoader(
                Items(images),
                switch.batch_size,
                shuffle=True,
                num_workers=switch.workers,
                persistent_workers=switch.workers > 0,
            )
        return Trainer(
            models.build(self.model, images.shape, 10),
            train,
            budget=ENDLESS,
            policy=None if self.rate is None else Gate(self.rate),
            config=TrainConfig.from_dict(settings),
            device=self.device,
        )


class _Arm:
    """The training of one switch, in its own process."""

    def __init__(self, bench: Bench, switch: Switch, threads: int) -> None:
        torch.set_num_threads(threads)
        self.work = bench.trainer(switch)
        self.records = self.work.steps()
        self.device, self.before = bench.device, peak_memory(bench.device) or 0
        self.first: dict[str, Any] | None = None

    def one_pass(self) -> None:
        for _ in range(len(self.work.train)):
            next(self.records)
        # the first epoch starts workers and fills caches: exclude it
        self.first = self.first or self._time()

    def report(self) -> dict[str, Any]:
        """Time of all epochs but the first, memory, and resolved settings."""
        time, first = self._time(), self.first or {"phases": {}, "seconds": 0, "training_steps": 0}
        phases = {name: s - first["phases"].get(name, 0.0) for name, s in time["phases"].items()}
        rest = {name: time[name] - first[name] for name in ("seconds", "training_steps")}
        peak = peak_memory(self.device)
        memory = None if peak is None else peak - self.before
        return {
            "time": {"phases": phases, **rest},
            "memory": memory,
            **self.work.setting_up.record(),
        }

    def _time(self) -> dict[str, Any]:
        return {
            "phases": dict(self.work.ledger.phases),
            "seconds": self.work.ledger.seconds["training"],
            "training_steps": self.work.position.step,
        }


_here: list[_Arm] = []  # the arm of this process


def _ask(bench: Bench, switch: Switch, threads: int, what: str) -> Any:
    if not _here:
        _here.append(_Arm(bench, switch, threads))
    return getattr(_here[0], what)()


@contextmanager
def running(bench: Bench, switches: Sequence[Switch]) -> Iterator[dict[str, Callable[[str], Any]]]:
    """The arms of ``switches`` by name, each in its own process until the context exits.

    An arm called with "one_pass" trains for one epoch, with "report" it returns its measurements.
    Raises ``RuntimeError`` with the arm's error if it fails.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    threads = torch.get_num_threads()
    pools = {switch.name: ProcessPoolExecutor(1, mp_context=context) for switch in switches}

    def ask(switch: Switch, what: str) -> Any:
        try:
            return pools[switch.name].submit(_ask, bench, switch, threads, what).result()
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"the arm {switch.name!r} failed: {kind}: {error}") from error

    try:
        yield {switch.name: partial(ask, switch) for switch in switches}
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Measured:
    """Seconds and report of every arm; the first arm is the baseline."""

    bench: Bench
    switches: Sequence[Switch]
    seconds: Timings
    reports: Mapping[str, dict[str, Any]]

    def table(self) -> pd.DataFrame:
        """One row per switch: images per second, speed relative to the baseline, memory."""
        rows = {}
        for row, switch in zip(self.seconds.table(), self.switches, strict=True):
            grown = self.reports[switch.name]["memory"]
            rows[switch.name] = {
                "images / s": self.bench.rows / float(str(row["seconds"])),
                "speed": row["speedup"],
                "low": row["speedup_low"],
                "high": row["speedup_high"],
                "n": row["rounds"],
                "peak memory, MB": None if grown is None else grown / 1e6,
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")

    def to_dict(self) -> dict[str, Any]:
        """The measurements as plain values, for JSON."""
        raw = {name: list(values) for name, values in self.seconds.seconds.items()}
        return {
            "bench": vars(self.bench),
            "seconds": raw,
            "baseline": self.seconds.baseline,
            "reports": dict(self.reports),
        }


def measure(
    bench: Bench, switches: Sequence[Switch] = SWITCHES, rounds: int = 7, warmup: int = 1
) -> Measured:
    """Time one epoch of each arm in each of ``rounds`` interleaved rounds."""
    with running(bench, switches) as arms:
        passes = {name: partial(arm, "one_pass") for name, arm in arms.items()}
        seconds = interleaved(passes, rounds=rounds, warmup=warmup, baseline=switches[0].name)
        reports = {name: arm("report") for name, arm in arms.items()}
    return Measured(bench, switches, seconds, reports)


def best_workers(bench: Bench, rounds: int = 3) -> Switch:
    """The plain arm with the fastest number of workers, from 0 to the number of threads."""
    counts = range(torch.get_num_threads() + 1)
    tried = [Switch(f"{n} workers", workers=n) for n in counts]
    found = measure(bench, tried, rounds).seconds
    best = min(tried, key=lambda switch: found.median(switch.name))
    return Switch("plain", workers=best.workers)
