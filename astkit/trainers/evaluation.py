"""Evaluation: values of each row of validation or test data, their means, and early stopping.

Values stay on the device during a pass and are copied to the host once at its end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from astkit import distributed, rng
from astkit.checks import check_count, check_types
from astkit.datasets import BatchSource, as_loader
from astkit.datasets.batch import IGNORED, Batch, count_rows, map_tensors, tensors
from astkit.datasets.foreign import (
    check_held_out,
    check_unshuffled,
    is_dataset,
    open_data,
    parts_of,
)
from astkit.gating.losses import class_outputs, labelled_losses, shown, singles
from astkit.trainers.config import TrainConfig


@runtime_checkable
class Aggregate(Protocol):
    """A metric that is no mean over rows, such as those of torchmetrics."""

    def update(self, outputs: Any, targets: Any) -> Any:
        """Take in a batch."""

    def compute(self) -> Any:
        """The value of all batches, convertible to ``float``."""


@dataclass(frozen=True)
class Metric:
    """A metric of validation and test data.

    Example::

        def log_loss(outputs, targets):
            return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

        metric = Metric("log_loss", log_loss, higher_is_better=False)
        Trainer(model, train, validation, epochs=1, metrics=metric).run()

    Attributes:
        name: reported as ``val_<name>``.
        function: ``(outputs, targets) -> [rows]``, averaged over rows; or an object with
            ``update(outputs, targets)`` and ``compute()``, of which every pass uses a copy.
        higher_is_better: the direction; by default that of an object with an attribute of this
            name, as the metrics of torchmetrics have.

    Raises ``ValueError`` for a function, or an object without a direction of its own, if
    ``higher_is_better`` is not given: a name does not tell.
    """

    name: str
    function: Callable[[Any, Any], Tensor] | Aggregate
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        check_types(name=(self.name, str), higher_is_better=(self.higher_is_better, bool | None))
        known = callable(self.function) or isinstance(self.function, Aggregate)
        if isinstance(self.function, type) or not known:
            raise ValueError(
                f"the metric {self.name!r} is {self.function!r:.60}: give a function (outputs,"
                " targets) -> [rows], or an object with update and compute"
            )
        higher = self.higher_is_better
        if higher is None:
            higher = getattr(self.function, "higher_is_better", None)
        if not isinstance(higher, bool):
            raise ValueError(
                f"the metric {self.name!r} does not say whether a higher value is better: give"
                f" metrics=[Metric({self.name!r}, function, higher_is_better=False)], or True"
            )
        object.__setattr__(self, "higher_is_better", higher)

    def rows(self, outputs: Any, targets: Any) -> Tensor:
        """One value per row, ``[rows]``; raises ``ValueError`` for another shape."""
        values = cast(Callable[[Any, Any], Tensor], self.function)(outputs, targets)
        count = count_rows(targets)
        if not isinstance(values, Tensor) or values.shape[:1] != (count,):
            raise ValueError(
                f"the metric {self.name!r} gave {shown(values)} for {count} rows: return one value"
                " per row, which is averaged over all rows, or give an object with update(outputs,"
                " targets) and compute()"
            )
        return values.flatten(1).float().mean(1) if values.ndim > 1 else values

    def number(self, whole: Any) -> float:
        """What ``compute`` of an object gives; raises ``ValueError`` if it is not one number."""
        value = whole.compute()
        with suppress(TypeError, ValueError, RuntimeError):
            if not isinstance(value, str):
                return float(value)
        raise ValueError(
            f"the metric {self.name!r} gave {shown(value)}, which is not one number: let compute"
            " return one, such as a mean over classes, and give several metrics by name"
        )

    def check(self, outputs: Any, targets: Any) -> None:
        """Raise ``ValueError`` unless it gives numbers for a few rows, of which NaN is one."""
        tried: Any = copy.deepcopy(self.function)
        try:
            if self.averaged:
                self.rows(outputs, targets)
            else:
                tried.update(outputs, targets)
                self.number(tried)
        except Exception as error:
            if "the metric" in str(error):  # others may be of two rows, as of an AUC of one class
                raise

    @property
    def averaged(self) -> bool:
        """Whether the metric is a mean over rows."""
        return not isinstance(self.function, Aggregate)


Metrics = Mapping[str, Callable[[Any, Any], Tensor] | Aggregate] | Sequence[Metric] | Metric | None


def as_metrics(metrics: Metrics) -> tuple[Metric, ...]:
    """The metrics as `Metric` objects; raises ``ValueError`` for what is none."""
    if isinstance(metrics, Mapping):
        metrics = [Metric(name, function) for name, function in metrics.items()]
    several = metrics is None or isinstance(metrics, Sequence)
    every: tuple[Any, ...] = tuple(metrics or ()) if several else (metrics,)  # type: ignore[arg-type]
    names: set[str] = {"loss", "label", "right", "labelled", "samples", "accuracy_interval"}
    for each in every:
        if not isinstance(each, Metric):
            raise ValueError(
                f"metrics holds a {type(each).__name__}: give"
                " metrics=[Metric(name, function, higher_is_better=...)]"
            )
        if each.name in names:
            raise ValueError(
                f"metrics holds the name {each.name} twice, or one that is reported anyway: choose"
                " another"
            )
        names.add(each.name)
    return every


@dataclass
class Measured:
    """What one pass over validation or test data gave.

    Attributes:
        rows: values of each row by name, float32 ``[rows]`` on the CPU: "loss" and metrics that are
            means; for classes "label" and "right" (1 or 0; NaN for an ignored label), which is
            "accuracy" too unless a metric has that name; of whole-number labels and of criteria
            with a mask "labelled" (1, or 0 for a row without a label, whose loss is NaN).
        aggregates: values of the other metrics by name.
        kept: outputs and targets of each batch on the CPU, if asked for.
    """

    rows: dict[str, Tensor] = field(default_factory=dict)
    aggregates: dict[str, float] = field(default_factory=dict)
    kept: list[tuple[Any, Any]] | None = None

    def values(self) -> dict[str, Any]:
        """``samples``, ``loss``, ``accuracy`` with its interval, and the metrics.

        Rows with an ignored label count in ``samples`` and in metrics only.
        """
        hidden = ("label", "right", "labelled")
        shown = {name: v for name, v in self.rows.items() if name not in hidden}
        if "labelled" in self.rows:
            shown["loss"] = shown["loss"][self.rows["labelled"] > 0]
        means: dict[str, float | None]
        means = {name: float(v.double().mean()) if len(v) else None for name, v in shown.items()}
        interval = None
        if "accuracy" in shown:
            right = shown["accuracy"][shown["accuracy"].isfinite()]
            means["accuracy"] = float(right.double().mean()) if len(right) else None
            # a metric of that name may be another
            if len(right) and bool(((right == 0) | (right == 1)).all()):
                interval = wilson_interval(int(right.sum()), len(right))
        return {
            "samples": len(self.rows["loss"]),
            "accuracy": None,
            **means,
            "accuracy_interval": interval,
            **self.aggregates,
        }


class Evaluation:
    """Collects the values of a pass, batch by batch.

    Args:
        criterion: one loss per row.
        metrics: further metrics.
        classes: whether the criterion takes integer targets as classes.
        keep: bytes of outputs and targets to keep at most, for metrics that are no means; 0 for
            none.
    """

    def __init__(
        self,
        criterion: Callable[[Any, Any], Any],
        metrics: Sequence[Metric],
        classes: bool = False,
        keep: int = 0,
    ) -> None:
        self.criterion, self.classes = criterion, classes
        self.metrics = metrics
        self._averaged = [each for each in metrics if each.averaged]
        # every pass starts with a metric as the user made it
        self._aggregates = {
            each.name: cast(Aggregate, copy.deepcopy(each.function))
            for each in metrics
            if not each.averaged
        }
        self._parts: dict[str, list[Tensor]] = {}
        self._divided: bool | None = None  # whether processes share a batch
        self._keep, self._kept = keep, list[tuple[Any, Any]]()

    def part(self, batch: Batch) -> Batch | None:
        """The rows of ``batch`` that this process evaluates; ``None`` if there are none.

        Each process evaluates all of them with a metric that is no mean over rows, and where the
        first batch has fewer than processes.
        """
        if self._divided is None:
            processes = distributed.world()
            self._divided = processes > 1 and batch.rows >= processes and not self._aggregates
        mine = distributed.share(batch.rows) if self._divided else slice(0, batch.rows)
        if mine.start == mine.stop:
            return None
        return batch.take(mine) if self._divided else batch

    def add(self, batch: Batch, outputs: Any) -> None:
        """Take in a batch."""
        losses, labelled = labelled_losses(self.criterion, outputs, batch.y)
        values = {"loss": losses}
        if labelled is not None:
            values = {"loss": losses.masked_fill(~labelled, math.nan), "labelled": labelled}
        pair = class_outputs(outputs, batch.y) if self.classes else None
        if pair is not None and labelled is not None:
            logits, labels = pair
            right = (logits.argmax(1) == labels).float()
            values["right"] = torch.where(labelled, right, math.nan)
            values["label"] = torch.where(labelled, labels, IGNORED)
            if "accuracy" not in self._aggregates:
                values["accuracy"] = values["right"]
        outputs = singles(outputs)  # as a criterion gets them
        values |= {each.name: each.rows(outputs, batch.y) for each in self._averaged}
        for name, each in values.items():
            self._parts.setdefault(name, []).append(each)
        for metric in self._aggregates.values():
            metric.update(outputs, batch.y)
        if self._keep:
            self._kept.append(map_tensors(Tensor.cpu, (outputs, batch.y)))
            self._keep -= sum(tensor.nbytes for tensor in tensors(self._kept[-1]))
            if self._keep <= 0:
                self._keep, self._kept = 0, []

    def result(self) -> Measured:
        """Values of all batches, and of all processes; every process must call it."""
        columns = {name: torch.cat(parts).float().cpu() for name, parts in self._parts.items()}
        if self._divided:
            processes = distributed.gather(*columns.values())
            together = [torch.cat(parts) for parts in zip(*processes, strict=True)]
            columns = dict(zip(columns, together, strict=True))
        aggregates = {
            each.name: each.number(self._aggregates[each.name])
            for each in self.metrics
            if not each.averaged
        }
        return Measured(columns, aggregates, self._kept or None)


class Best:
    """The weights of a model where a run was best so far.

    Attributes:
        score: the highest one that was looked at, ``None`` before; NaN is never best.
        weights: those that the model had then.
    """

    def __init__(self) -> None:
        self.score: float | None = None
        self.weights: dict[str, Any] = {}

    def look(self, score: float, model: nn.Module) -> bool:
        """Keep the weights of ``model`` if ``score``, higher is better, is the best so far."""
        if math.isnan(score) or (self.score is not None and score <= self.score):
            return False
        self.score = score
        self.weights = {  # an extra state of a module may be anything
            name: part.detach().clone() if isinstance(part, Tensor) else copy.deepcopy(part)
            for name, part in model.state_dict().items()
        }
        return True

    def restore(self, model: nn.Module) -> None:
        """Give ``model`` the best weights, if there are any."""
        if self.weights:
            model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Score and weights."""
        return {"score": self.score, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self.score, self.weights = state["score"], state["weights"]


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
        best: the best epoch so far, if ``stop_after`` is given; ``epochs_since``: epochs after it.

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
            # of one that shuffles, each process would have other rows
            (check_held_out if distributed.world() == 1 else check_unshuffled)(data)
            size = config.batch_size if is_dataset(data) else None  # a loader has its own
            self.source = as_loader(open_data(data), device, size, shuffle=False)
        self.rows = sampled_rows(self.source, config.validation_fraction)
        self.metrics = as_metrics(metrics)
        self.each_epoch = each_epoch
        self.stop_after = None if stop_after is None else check_count("stop_after", stop_after)
        if stop_after is not None and (self.source is None or not each_epoch):
            raise ValueError(
                f"stop_after is {stop_after}, but nothing is validated after an epoch: pass"
                " validation data"
            )
        self.best = Best()
        self.epochs_since = 0

    def should_stop(self, values: Mapping[str, Any], model: nn.Module) -> bool:
        """Take in the metrics of an epoch; returns whether the run is to end."""
        if self.stop_after is None:
            return False
        name, higher = "val_loss", False
        if self.metrics:
            name, higher = f"val_{self.metrics[0].name}", bool(self.metrics[0].higher_is_better)
        value = float(values.get(name, math.nan))  # without labels there is none
        if self.best.look(value if higher else -value, model):
            self.epochs_since = 0
        elif self.best.score is not None:
            self.epochs_since += 1
        return self.epochs_since >= self.stop_after

    def state_dict(self) -> dict[str, Any]:
        """The best epoch so far."""
        return {"best": self.best.state_dict(), "epochs_since": self.epochs_since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self.best.load_state_dict(state["best"])
        self.epochs_since = state["epochs_since"]


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


def check_undivided(source: BatchSource) -> None:
    """Raise ``ValueError`` for a loader that yields only this process's share of the rows."""
    parts = parts_of(getattr(source, "loader", None))
    if distributed.world() > 1 and any(isinstance(each, DistributedSampler) for each in parts):
        raise ValueError(
            "the validation data have a DistributedSampler, but the processes divide each batch"
            " themselves: pass the data set, or a DataLoader without that sampler"
        )


def wilson_interval(right: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion, from ``right`` of ``rows``: (low, high).

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA
    22 (1927). Assumes independent draws from a large population; for a part of a finite set it is
    conservative.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, weight = right / rows, z * z / rows
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / rows + weight / (4 * rows))
    # exactly 0 and 1 at the ends, without rounding errors
    return middle - half if right else 0.0, middle + half if right < rows else 1.0
