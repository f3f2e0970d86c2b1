"""The validation data of a run, and early stopping by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from astkit.checks import check_count
from astkit.datasets import BatchSource, as_loader
from astkit.datasets.foreign import check_unshuffled, is_dataset, open_data
from astkit.trainers.config import TrainConfig
from astkit.trainers.evaluation import Metric, Metrics, as_metrics
from astkit.trainers.first_batch import sampled_rows


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
        best: value of the best epoch; ``since``: epochs after it; ``weights``: its weights.

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
        self.best: float | None = None
        self.since = 0
        self.weights: dict[str, Tensor] = {}

    def should_stop(self, values: Mapping[str, Any], model: nn.Module) -> bool:
        """Take in the metrics of an epoch; returns whether the run is to end."""
        if self.stop_after is None:
            return False
        name, higher = "val_loss", False
        if self.metrics:
            name, higher = f"val_{self.metrics[0].name}", bool(self.metrics[0].higher_is_better)
        value = float(values[name]) if higher else -float(values[name])
        self.since += 1
        if self.best is None or not value <= self.best:
            self.best, self.since = value, 0
            own = model.state_dict()
            self.weights = {name: part.detach().clone() for name, part in own.items()}
        return self.since >= self.stop_after

    def restore(self, model: nn.Module) -> None:
        """Give ``model`` the weights of the best epoch, if they are kept."""
        if self.weights:
            model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch so far."""
        return {"best": self.best, "since": self.since, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self.best, self.since, self.weights = state["best"], state["since"], state["weights"]
