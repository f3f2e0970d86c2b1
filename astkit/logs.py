"""Log levels for numbers that cost something to compute: below INFO, computed only on request.

The standard ``logging`` module does the rest; astkit adds no handler and sets no level::

    logging.basicConfig()
    logging.getLogger("astkit").setLevel("PERFORMANCE")  # TRAINING and INFO come with it

The levels lie between DEBUG (10) and INFO (20), as DEBUG does below what a user sees by default.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

TRAINING = 15
"""Metrics of single batches: loss, rate, threshold."""
PERFORMANCE = 13
"""Throughput, utilisation and memory by windows of steps."""
PROFILING = 11
"""Operators of a profiled window."""

for _level, _name in (
    (TRAINING, "TRAINING"),
    (PERFORMANCE, "PERFORMANCE"),
    (PROFILING, "PROFILING"),
):
    logging.addLevelName(_level, _name)

logger = logging.getLogger("astkit")
# without a handler of its own logging would print warnings to stderr unasked
logger.addHandler(logging.NullHandler())


def enabled(level: int) -> bool:
    """Whether a record of ``level`` is wanted: a look into a dictionary, cheap for each batch."""
    return logger.isEnabledFor(level)


def record(level: int, what: str, metrics: Callable[[], Mapping[str, Any]]) -> None:
    """Log ``what`` and its metrics; ``metrics`` is called only where ``level`` is enabled.

    The record's message is ``what name=value ...``, floats with four significant digits; handlers
    find the values themselves as its attribute ``metrics``.
    """
    if not enabled(level):
        return
    values = dict(metrics())
    text = " ".join([what, *(f"{name}={_short(value)}" for name, value in values.items())])
    logger.log(level, "%s", text, extra={"metrics": values}, stacklevel=2)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
