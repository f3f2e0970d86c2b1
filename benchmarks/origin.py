"""The original's package beside the kit, at one target rate: `python -m benchmarks.origin`.

Dense training, the kit's gate and adaptive-sparse-training train the same network from the same
weights on the digits, with the same optimizer and a constant learning rate. Rows are counted where
the network is called; seconds are CPU seconds of one thread, without evaluation. Needs the package
on the path, such as from ``pip install --no-deps --target DIR adaptive-sparse-training==1.0.1`` and
``PYTHONPATH=DIR``. Writes notebooks/results/origin.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from astkit import models
from astkit.comparison.statistics import by_arm, cost_ratio, gaps, mean_interval
from astkit.comparison.verdict import amount
from astkit.datasets import Loader, Splits, split
from astkit.files import write_json
from astkit.gating import Gate
from astkit.stamp import stamp
from astkit.trainers import TrainConfig, Trainer
from benchmarks import bench

RESULTS = bench.RESULTS / "origin.json"
PACKAGE = "adaptive-sparse-training"
RATE, EPOCHS, BATCH, LR, SEEDS = 0.1, 15, 128, 3e-3, range(10)
Row = dict[str, Any]


class Rows:
    """Counts the rows of a model's forward passes with gradients and without."""

    def __init__(self, model: nn.Module) -> None:
        self.scored = self.trained = 0
        model.register_forward_pre_hook(self._count)

    def _count(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        if torch.is_grad_enabled():
            self.trained += len(inputs[0])
        else:
            self.scored += len(inputs[0])


def kit(model: nn.Module, parts: Splits, seed: int, policy: Gate | None) -> Callable[[], float]:
    """Training with the kit; it returns the share of the rows that were selected."""
    loader = Loader(parts.train, BATCH, normalize=parts.train.channel_stats(), seed=seed)
    config = TrainConfig(lr=LR, schedule="constant")
    trainer = Trainer(model, loader, policy=policy, epochs=EPOCHS, config=config, device="cpu")

    def train() -> float:
        trainer.run()
        return trainer.ledger.samples.trained / (EPOCHS * len(parts.train.labels))

    return train


def package(model: nn.Module, parts: Splits, seed: int) -> Callable[[], float]:
    """Training with the original's package, which evaluates nothing here."""
    from adaptive_sparse_training import AdaptiveSparseTrainer, ASTConfig

    loader = Loader(parts.train, BATCH, normalize=parts.train.channel_stats(), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), LR, weight_decay=0.01, fused=True)
    config = ASTConfig(target_activation_rate=RATE, use_amp=False, device="cpu")
    trainer = AdaptiveSparseTrainer(model, None, None, config, optimizer)

    def train() -> float:
        rates = []
        for epoch in range(EPOCHS):
            trainer.train_loader = [(x, y) for _, x, y in loader.batches(epoch)]
            rates.append(trainer.train_epoch(epoch)["activation_rate"])
        return sum(rates) / EPOCHS

    return train


def measure(method: str, seed: int, parts: Splits) -> Row:
    """One run."""
    model = models.build("digits_cnn", parts.train.shape, parts.train.num_classes, seed=seed)
    if method == PACKAGE:
        train = package(model, parts, seed)
    else:
        train = kit(model, parts, seed, Gate(RATE, seed=seed) if method == "gate" else None)
    rows = Rows(model)
    start = time.process_time()
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
        rate = train()
    seconds = time.process_time() - start
    test = Loader(parts.test, 500, shuffle=False, normalize=parts.train.channel_stats())
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for _, x, y in test.batches(0))
    value = right / len(parts.test.labels)
    row = {"policy": method, "seed": seed, "value": value, "rate": rate, "seconds": seconds}
    return {**row, "scored": rows.scored, "trained": rows.trained}


def table(rows: list[Row]) -> pd.DataFrame:
    """One row per method, as text: rows are multiples of the rows that an epoch offers."""
    arms = by_arm(rows)
    offered = mean_interval(run["trained"] for run in arms["dense"].values()).mean
    shown = {}
    for name, arm in arms.items():
        means = {
            key: mean_interval(run[key] for run in arm.values()).mean
            for key in ("value", "rate", "scored", "trained")
        }
        gap = gaps(arm, arms["dense"]).estimate().interval()
        shown[name] = {
            "n": str(len(arm)),
            "selected": f"{means['rate']:.1%}",
            "rows forward only": f"{means['scored'] / offered:.2f}",
            "rows forward and backward": f"{means['trained'] / offered:.2f}",
            "CPU seconds / dense": cost_ratio(arm, arms["dense"], "seconds").text(".2f"),
            "test accuracy": f"{means['value']:.2%}",
            "against dense": "–" if name == "dense" else amount(gap, "accuracy"),
        }
    return pd.DataFrame(shown).T.rename_axis("method")


def main() -> None:
    """Train each method with each seed in turn, and write the results."""
    torch.set_num_threads(1)
    parts = split("digits")
    for method in ("dense", "gate", PACKAGE):  # the first steps import and select kernels
        measure(method, 0, parts)
    rows = [measure(method, seed, parts) for seed in SEEDS for method in ("dense", "gate", PACKAGE)]
    settings = {"rate": RATE, "epochs": EPOCHS, "batch": BATCH, "lr": LR}
    content = {"stamp": stamp(), "settings": settings, PACKAGE: version(PACKAGE), "rows": rows}
    write_json(RESULTS, content)
    print(table(rows).to_string())


if __name__ == "__main__":
    main()
