"""Drop-in trainers with the original's signature: only the class name changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from astkit.gating import Gate
from astkit.trainers.config import TrainConfig
from astkit.trainers.progress import Progress
from astkit.trainers.sample_by_sample import SampleBySampleTrainer
from astkit.trainers.trainer import Trainer

_GATE_KEYS = {
    "target_activation_rate": "target_rate",
    "score": "score",
    "controller": "controller",
    "criterion": "criterion",
    "fallback": "fallback",
    "min_active": "min_active",
}


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

    Raises ``ValueError`` for unknown keys or values.
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
        settings = dict(config or {})
        options = {new: settings.pop(old) for old, new in _GATE_KEYS.items() if old in settings}
        options.setdefault("score", "loss_and_contrast" if modality == "vision" else "loss")
        self.config = TrainConfig.from_dict({"lr": 1e-4, **settings}, also=_GATE_KEYS)
        self.gate = Gate(**options, seed=self.config.seed)
        self.model, self.train_loader, self.val_loader = model, train_loader, val_loader
        self.device = device
        self.criterion = options.get("criterion")
        self.trainer: Trainer | None = None

    def _trainer(self, *args: Any, **options: Any) -> Trainer:
        return Trainer(*args, **options)

    def train(self, epochs: int) -> dict[str, Any]:
        """Train for ``epochs`` epochs; returns measurements.

        ``final_val_accuracy`` in [0, 1], ``avg_activation_rate``, ``samples_trained``,
        ``samples_skipped``, ``training_seconds`` without validation, ``flops``, and ``epochs``, one
        mapping per epoch.
        """
        options = {} if self.criterion is None else {"criterion": self.criterion}
        self.trainer = trainer = self._trainer(
            self.model,
            self.train_loader,
            self.val_loader,
            epochs=epochs,
            policy=self.gate,
            config=self.config,
            observers=[Progress()],
            device=self.device,
            **options,
        )
        history = trainer.run()
        return {
            "final_val_accuracy": history.epochs[-1].get("val_accuracy"),
            "avg_activation_rate": self.gate.rate,
            "samples_trained": trainer.ledger.samples.trained,
            "samples_skipped": trainer.ledger.samples.skipped,
            "training_seconds": trainer.ledger.seconds["training"],
            "flops": trainer.ledger.flops.total,
            "epochs": history.epochs,
        }


class SampleAdaptiveSparseTrainer(AdaptiveSparseTrainer):
    """Sample-by-sample variant; ``update`` is "per_sample" (as the original) or "per_batch"."""

    update: Literal["per_sample", "per_batch"] = "per_sample"

    def _trainer(self, *args: Any, **options: Any) -> Trainer:
        return SampleBySampleTrainer(*args, update=self.update, **options)
