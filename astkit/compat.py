"""Drop-in trainers with the original's signature: only the class name changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from astkit.gating import Gate, cross_entropy_rows
from astkit.trainers.config import TrainConfig
from astkit.trainers.sample_by_sample import SampleBySampleTrainer
from astkit.trainers.trainer import Trainer

_GATE = ("score", "controller", "criterion", "fallback", "min_active")


class AdaptiveSparseTrainer:
    """Batched gated training with the original's constructor.

    ``AdaptiveSparseTrainer(model, train_loader, val_loader, modality="vision", device="auto",
    config={...}).train(epochs=10)`` with ordinary ``(x, y)`` DataLoaders.

    Args:
        model: outputs ``[batch, classes]``.
        train_loader, val_loader: yield ``(x, y)``.
        modality: "vision" scores by loss and contrast as the original does, others by loss only.
        device: "auto" uses the available accelerator.
        config: ``target_activation_rate`` (0.1), ``score``, ``controller``, ``criterion`` (one loss
            per row), ``fallback``, ``min_active``, and any field of `TrainConfig`; ``lr`` is 1e-4
            by default, as in the original.

    Raises ``TypeError`` for unknown keys, ``ValueError`` for unknown values.
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: Any,
        val_loader: Any = None,
        modality: str = "vision",
        device: str = "auto",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        settings = {"target_activation_rate": 0.1, "lr": 1e-4, **(config or {})}
        rate = settings.pop("target_activation_rate")
        options = {name: settings.pop(name) for name in _GATE if name in settings}
        options.setdefault("score", "loss_and_contrast" if modality == "vision" else "loss")
        self.config = TrainConfig(**settings)
        self.gate = Gate(rate, **options, seed=self.config.seed)
        self.model, self.train_loader, self.val_loader = model, train_loader, val_loader
        self.device = device
        self.criterion = options.get("criterion", cross_entropy_rows)
        self.trainer: Trainer | None = None

    trainer_class: type[Trainer] = Trainer

    def train(self, epochs: int) -> dict[str, Any]:
        """Train for ``epochs`` epochs; returns measurements.

        ``final_val_accuracy`` in [0, 1], ``avg_activation_rate``, ``samples_trained``,
        ``samples_skipped``, ``training_seconds`` without validation, ``flops``, and ``epochs``, one
        mapping per epoch.
        """
        loaders = self.train_loader, self.val_loader
        options: Any = {"policy": self.gate, "config": self.config, "criterion": self.criterion}
        self.trainer = trainer = self.trainer_class(
            self.model, *loaders, epochs=epochs, device=self.device, **options
        )
        history = trainer.run()
        return {
            "final_val_accuracy": history.epochs[-1].get("val_accuracy"),
            "avg_activation_rate": self.gate.measured_rate,
            "samples_trained": trainer.ledger.samples.trained,
            "samples_skipped": trainer.ledger.samples.skipped,
            "training_seconds": trainer.ledger.seconds["training"],
            "flops": trainer.ledger.flops.total,
            "epochs": history.epochs,
        }


class SampleAdaptiveSparseTrainer(AdaptiveSparseTrainer):
    """Sample-by-sample variant, with an update for each active row as in the original."""

    trainer_class = SampleBySampleTrainer
