"""Metrics that nobody asked for make nobody wait: reads of tensors are counted where they happen.

A read of a tensor's value makes an accelerator finish all that is queued before it. On the CPU it
costs little, but it can be counted there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import astkit
from astkit import logs, models
from astkit.datasets import Loader, load
from astkit.gating import Gate
from astkit.profiling import Throughput
from astkit.trainers import Budget, DenseStep, GatedStep, SampleStep, TrainConfig, Trainer

PACKAGE = Path(astkit.__file__).parent
READS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")
METRICS = {"metrics", "_metrics", "_report", "log"}  # functions that make or hand on metrics
STEPS = {
    "dense": DenseStep,
    "gated": lambda: GatedStep(Gate(0.3)),
    "gated, top k": lambda: GatedStep(Gate(0.3, "loss_and_contrast", "top_k")),
    "per batch": lambda: SampleStep(Gate(0.3), "per_batch"),
}
EPOCHS, BATCHES = 2, 6  # batches a pass


class Sync(NamedTuple):
    """One read of a tensor, or one wait for a device."""

    method: str
    part: str  # of the package: "trainers", "gating", ..., or the name of a module beside them
    functions: tuple[str, ...]  # of that part, the innermost first


class Syncs(list[Sync]):
    """All that were counted, and those of some parts or functions."""

    def of(self, *parts: str, functions: set[str] | None = None) -> list[Sync]:
        return [
            sync
            for sync in self
            if sync.part in parts and (functions is None or functions & {*sync.functions})
        ]


def _caller() -> tuple[str, tuple[str, ...]]:
    """The part of the package nearest to the present call, and its functions on the stack."""
    part, functions, frame = "", [], sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        here = path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else ""
        part = part or here
        if here and here == part:
            functions.append(frame.f_code.co_name)
        frame = frame.f_back
    return part, tuple(functions)


@pytest.fixture
def counted_syncs(monkeypatch) -> Iterator[Syncs]:
    """Reads of tensors and waits for devices during the test, attributed by the stack."""
    syncs, inside = Syncs(), []

    def counting(name: str, original: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            if inside:  # one read may be made of another
                return original(*args, **kwargs)
            inside.append(name)
            try:
                syncs.append(Sync(name, *_caller()))
                return original(*args, **kwargs)
            finally:
                inside.pop()

        return wrapper

    for name in READS:
        monkeypatch.setattr(Tensor, name, counting(name, getattr(Tensor, name)))
    wait = counting("synchronize", torch.accelerator.synchronize)
    monkeypatch.setattr(torch.accelerator, "synchronize", wait)
    return syncs


def build(step: str, **config) -> Trainer:
    images = load("digits")[0].subset(range(BATCHES * 32))
    return Trainer(
        models.build("digits_cnn", (1, 8, 8), 10),
        Loader(images, 32),
        Loader(images.subset(range(48)), 24),
        budget=Budget(epochs=EPOCHS),
        step=STEPS[step](),
        config=TrainConfig(**config),
        device="cpu",
    )


@pytest.mark.parametrize(
    ("step", "every"),
    [("dense", 1), ("gated", 4), ("gated, top k", 10**6), ("per batch", 4)],
)
def test_metrics_are_read_for_reports_alone(counted_syncs, step, every):
    trainer = build(step, metrics_every=every)
    history = trainer.run()
    reports = math.ceil(EPOCHS * BATCHES / every)
    assert trainer.position.step == EPOCHS * BATCHES
    assert [entry["loss"] is not None for entry in history.steps] == [True] * reports
    assert len(counted_syncs.of("trainers", functions=METRICS)) == reports


@pytest.mark.parametrize(
    ("step", "level"),
    [("dense", logs.PERFORMANCE), ("gated", None), ("per batch", logs.PERFORMANCE)],
)
def test_profiling_reads_no_tensor_and_waits_for_nothing(counted_syncs, caplog, step, level):
    caplog.set_level("INFO", "astkit")
    trainer = build(step)
    speed = Throughput(trainer.ledger, trainer.device, every=3, level=level)
    trainer.observers.append(speed)
    trainer.run()
    assert bool(speed.rows) == (level is None)
    assert not counted_syncs.of("profiling", "logs.py")
    assert not [sync for sync in counted_syncs if sync.method == "synchronize"]
