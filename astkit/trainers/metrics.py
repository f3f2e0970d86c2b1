"""Metrics of an evaluation: functions with a name and a direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from astkit.batch import count_rows


@dataclass(frozen=True)
class Metric:
    """A mean over rows.

    Attributes:
        name: shown as ``val_<name>``.
        function: ``(outputs, targets) -> [rows]``.
        higher_is_better: the direction; ``None`` where it has none, so that no checkpoint can be
            the best by it.
    """

    name: str
    function: Callable[[Any, Any], Tensor]
    higher_is_better: bool | None = None

    def rows(self, outputs: Any, targets: Any) -> Tensor:
        """One value a row, ``[rows]``; ``ValueError`` for a function that gives another shape."""
        values = self.function(outputs, targets)
        count = count_rows(targets)
        if not isinstance(values, Tensor) or values.shape[:1] != (count,):
            shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"the metric {self.name!r} gave {shape} for {count} rows: return one value a row,"
                " which is averaged over all rows"
            )
        return values.flatten(1).float().mean(1) if values.ndim > 1 else values


def as_metrics(
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] | Sequence[Metric] | None,
) -> tuple[Metric, ...]:
    """Metrics from a mapping of names to functions, or as they are."""
    if metrics is None:
        return ()
    if isinstance(metrics, Mapping):
        return tuple(
            each if isinstance(each, Metric) else Metric(name, each)
            for name, each in metrics.items()
        )
    return tuple(metrics)
