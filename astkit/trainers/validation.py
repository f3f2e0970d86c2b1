"""The validation data of a run, and early stopping by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.checks import check_count
from astkit.datasets import BatchSource, as_loader
from astkit.datasets.foreign import check_unshuffled, is_dataset, open_data
from astkit.trainers.config import TrainConfig
from astkit.trainers.evaluation import Metric, Metrics, as_metrics


class Validator:
    """What is evaluated after each epoch, and the best epoch so far.

    Args:
        data: a data set, a `Loader`, a DataLoader, or ``None``.
        metrics: further metrics.
        each_epoch: whether it is evaluated after each epoch.
        stop_after: epochs in a row that are not better, after which a run ends; ``None``: it does
            not, and no weights are kept.

    Attributes:
        source: the batches; ``rows``: those evaluated, int64 ``[n]``, ``None`` for all.
        best_score: of the best epoch, higher is better: a loss is negated. NaN is never best.
        epochs_since: epochs after it; ``weights``: its weights.

    Raises ``ValueError`` for ``stop_after`` without validation after each epoch.
    """

    def __init__(
        self,
        data: Any,
        metrics: Metrics,
        device: torch.device,
        config: TrainConfig,
        each_epoch: bool = True,
        stop_after: int | None = None,
    ) -> None:
        self.source: BatchSource | None = None
        if data is not None:
            check_unshuffled(data)
            size = config.batch_size if is_dataset(data) else None  # a loader has its own
            self.source = as_loader(open_data(data), device, size, shuffle=False)
        self.rows = sampled_rows(self.source, config.validation_fraction)
        self.metrics: tuple[Metric, ...] = as_metrics(metrics)
        self.each_epoch = each_epoch
        self.stop_after = None if stop_after is None else check_count("stop_after", stop_after)
        if stop_after is not None and (self.source is None or not each_epoch):
            raise ValueError(
                f"stop_after is {stop_after}, but nothing is validated after an epoch: pass"
                " validation data"
            )
        self.best_score: float | None = None
        self.epochs_since = 0
        self.weights: dict[str, Tensor] = {}

    def should_stop(self, values: Mapping[str, Any], model: nn.Module) -> bool:
        """Take in the metrics of an epoch; returns whether the run is to end."""
        if self.stop_after is None:
            return False
        name, higher = "val_loss", False
        if self.metrics:
            name, higher = f"val_{self.metrics[0].name}", bool(self.metrics[0].higher_is_better)
        value = float(values.get(name, math.nan))  # without labels there is none
        score = value if higher else -value
        if not math.isnan(score) and (self.best_score is None or score > self.best_score):
            self.best_score, self.epochs_since = score, 0
            own = model.state_dict()
            self.weights = {name: part.detach().clone() for name, part in own.items()}
        elif self.best_score is not None:
            self.epochs_since += 1
        return self.epochs_since >= self.stop_after

    def restore(self, model: nn.Module) -> None:
        """Give ``model`` the weights of the best epoch, if they are kept."""
        if self.weights:
            model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch so far."""
        return {
            "best_score": self.best_score,
            "epochs_since": self.epochs_since,
            "weights": self.weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self.best_score = state["best_score"]
        self.epochs_since = state["epochs_since"]
        self.weights = state["weights"]


def sampled_rows(validation: BatchSource | None, fraction: float) -> Tensor | None:
    """A fixed random sample of the rows of ``validation``, int64 ``[n]``, sorted; ``None`` for all.

    Raises ``ValueError`` for a source that cannot load selected rows.
    """
    if validation is None or fraction == 1:
        return None
    validation.batches(0, torch.zeros(1, dtype=torch.int64))  # raises if rows cannot be selected
    rows = validation.num_samples or 0
    count = max(1, round(fraction * rows))
    return rng.permutation(rows, "fast validation")[:count].sort().values
