"""Arms of a comparison: ways of training the same task, each of which changes one thing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from astkit import models
from astkit.background import BackgroundWriter
from astkit.datasets import Loader, Splits, split
from astkit.gating import Gate, RandomSubset
from astkit.profiling import EnergyMeter
from astkit.trainers import (
    Budget,
    Checkpoints,
    DenseStep,
    GatedStep,
    MetricsFile,
    Observer,
    SampleStep,
    Step,
    TrainConfig,
    Trainer,
    choose_device,
)

ARMS: dict[str, str] = {
    "dense": "every sample, every epoch",
    "dense, equal FLOPs": "every sample, until the batched gate's FLOPs are spent",
    "dense, equal seconds": "every sample, until the batched gate's seconds are spent",
    "random": "a random share of the samples, chosen before loading",
    "batched gate": "one scoring pass a batch, one step on the active samples",
    "sample by sample, per batch": "the same decisions and gradients, one sample at a time",
    "sample by sample, per sample": "the original's loop: a step for each active sample",
}


CHECKPOINT_BATCHES, CHECKPOINT_SECONDS = 100, 60.0  # rare enough not to show in an arm's seconds

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "model": "digits_cnn",
        "epochs": 15,
        "batch_size": 128,
        "gate": {"score": "loss", "controller": "log_integral"},
        "config": {"lr": 3e-3},
    },
    # the original's settings for its published run, KAGGLE_AST_FINAL_REPORT.md at 3e66290
    "cifar10": {
        "model": "simple_cnn",
        "epochs": 40,
        "batch_size": 128,
        "augment": ("crop", "flip"),
        "gate": {"score": "loss_and_contrast", "controller": "origin_pi"},
        "config": {"lr": 1e-4, "weight_decay": 0.01, "clip_norm": 1.0},
    },
}


@dataclass(frozen=True)
class Task:
    """The task that all arms of a comparison share.

    ``gate`` holds the arguments of `Gate` except its seed; its ``target_rate`` is also the rate of
    the random arm.
    """

    splits: Splits
    model: str
    epochs: float
    batch_size: int = 128
    augment: Sequence[str] = ()
    gate: dict[str, Any] = field(default_factory=lambda: {"target_rate": 0.1})
    config: TrainConfig = field(default_factory=TrainConfig)
    device: str = "auto"

    def settings(self) -> dict[str, Any]:
        """All settings except the data, as plain values."""
        plain = {name: value for name, value in vars(self).items() if name != "splits"}
        sizes = {part: len(images) for part, images in vars(self.splits).items()}
        return {
            "dataset": self.splits.train.name,
            "sizes": sizes,
            **plain,
            "config": self.config.to_dict(),
        }

    def loader(self, split: str, seed: int = 0) -> Loader:
        """Batches of one split; only the training split is shuffled and augmented."""
        training = split == "train"
        return Loader(
            getattr(self.splits, split),
            self.batch_size if training else 4 * self.batch_size,
            augment=self.augment if training else (),
            shuffle=training,
            seed=seed,
            normalize=self.splits.train.channel_stats(),
        )


def task(
    dataset: str,
    target_rate: float = 0.1,
    *,
    root: str | None = None,
    device: str = "auto",
    gate: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Task:
    """The preset of ``dataset``, with changes to its ``gate``, its ``config`` and its other fields.

    Raises ``ValueError`` for a dataset without a preset, ``FileNotFoundError`` for missing files.
    """
    if dataset not in PRESETS:
        raise ValueError(f"unknown dataset {dataset!r}: choose one of {', '.join(PRESETS)}")
    preset = {**PRESETS[dataset], **options}
    preset["gate"] = {"target_rate": target_rate, **preset["gate"], **(gate or {})}
    preset["config"] = TrainConfig.from_dict({**preset["config"], **(config or {})})
    return Task(splits=split(dataset, root or None), device=device, **preset)


def trainer(
    task: Task,
    arm: str,
    seed: int,
    budget: Budget | None = None,
    observers: Sequence[Observer] = (),
    folder: Path | None = None,
) -> Trainer:
    """A trainer for one arm; all arms share the initial weights and the order of batches.

    With a ``folder`` it writes its metrics and checkpoints there, and resumes from them.

    Raises ``ValueError`` for an unknown arm, or if the arm needs a ``budget`` and none is given.
    """
    if arm not in ARMS:
        raise ValueError(f"unknown arm {arm!r}: choose one of {', '.join(ARMS)}")
    if budget is None and "equal" in arm:
        raise ValueError(f"arm {arm!r} needs the budget of the batched gate: pass `budget`")
    shape, classes = task.splits.train.shape, task.splits.train.num_classes
    checkpoints = None
    if folder is not None:
        writer = BackgroundWriter()
        checkpoints = Checkpoints(
            folder / "ckpt", every=CHECKPOINT_BATCHES, pause=CHECKPOINT_SECONDS, writer=writer
        )
        observers = [*observers, MetricsFile(folder / "metrics.jsonl", writer)]
    return Trainer(
        models.build(task.model, shape, classes, seed),
        task.loader("train", seed),
        task.loader("validation"),
        budget=budget or Budget(epochs=task.epochs),
        step=_step(task, arm, seed),
        policy=RandomSubset(task.gate["target_rate"], seed) if arm == "random" else None,
        config=replace(task.config, seed=seed),
        observers=observers,
        meter=EnergyMeter(choose_device(task.device)),
        device=task.device,
        checkpoints=checkpoints,
        resume=folder is not None,
    )


def _step(task: Task, arm: str, seed: int) -> Step:
    if arm == "batched gate":
        return GatedStep(Gate(**task.gate, seed=seed))
    if arm.startswith("sample by sample"):
        update = "per_batch" if arm.endswith("per batch") else "per_sample"
        return SampleStep(Gate(**task.gate, seed=seed), update)  # type: ignore[arg-type]
    return DenseStep()


def stepper(task: Task, arm: str, seed: int = 0) -> Callable[[], object]:
    """A function that trains one arm on its next batch, for interleaved timing of arms."""
    work = trainer(task, arm, seed, Budget(epochs=1e9))
    work.validation = None
    steps = work.steps()
    return lambda: next(steps)


def run(
    task: Task,
    arm: str,
    seed: int,
    budget: Budget | None = None,
    observers: Sequence[Observer] = (),
    folder: Path | None = None,
) -> dict[str, Any]:
    """Train one arm and evaluate it once on the test split at the end; returns plain values.

    ``folder``: see `trainer`; ``wall_seconds`` of a resumed arm exclude the time before it resumed.
    Accuracies are in [0, 1]; ``rate`` is the share of active samples, ``None`` for arms without a
    gate; ``steps`` and ``epochs`` are the logged history.
    """
    work = trainer(task, arm, seed, budget, observers, folder)
    start = time.perf_counter()
    history = work.run()
    wall_seconds = time.perf_counter() - start
    ledger, gate = work.ledger, getattr(work.step, "gate", None)
    seconds, phases, energy = dict(ledger.seconds), dict(ledger.phases), ledger.energy()
    test = work.evaluate(task.loader("test"))
    return {
        "arm": arm,
        "seed": seed,
        "test_accuracy": test["accuracy"],
        "test_rows": test["samples"],
        "val_accuracy": history.epochs[-1]["val_accuracy"],
        "rate": gate.rate if isinstance(gate, Gate) else None,
        "fallback_rows": gate.fallback_rows if isinstance(gate, Gate) else 0,
        **{f"samples_{name}": count for name, count in asdict(ledger.samples).items()},
        "flops": ledger.flops.total,
        "uncounted": sorted(ledger.uncounted),
        **{f"flops_{name}": count for name, count in asdict(ledger.flops).items()},
        "seconds": seconds["training"],
        "evaluation_seconds": seconds["evaluation"],
        "wall_seconds": wall_seconds,
        "phases": phases,
        "joules": energy.joules,
        "joules_reason": energy.reason,
        "energy_backend": energy.backend,
        "steered": work.steering.steered,
        "events": history.events,
        "setting_up": work.setting_up.record(),
        "origin_energy_units": ledger.origin_energy_units,
        "training_steps": work.position.step,
        "threads": torch.get_num_threads(),
        "device": str(work.device),
        "epochs": history.epochs,
        "steps": history.steps,
    }


def budget_for(arm: str, gated: dict[str, Any] | None) -> Budget | None:
    """The arm's budget, given the batched gate's result for the same seed."""
    if "equal" not in arm:
        return None
    if gated is None:
        raise ValueError(f"arm {arm!r} needs a result of 'batched gate' first: run that arm before")
    flops = arm.endswith("FLOPs")
    return Budget(flops=gated["flops"]) if flops else Budget(seconds=gated["seconds"])
