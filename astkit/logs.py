"""Log levels for metrics that are computed only on request; below INFO, above DEBUG.

astkit adds no handler and sets no level; configure the standard ``logging`` module::

    logging.basicConfig()
    logging.getLogger("astkit").setLevel("PERFORMANCE")  # includes TRAINING and INFO
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

TRAINING = 15
"""Metrics per batch: loss, rate, threshold."""
PERFORMANCE = 13
"""Throughput, utilisation and memory per window of steps."""
PROFILING = 11
"""Operators of a profiled window."""

logging.addLevelName(TRAINING, "TRAINING")
logging.addLevelName(PERFORMANCE, "PERFORMANCE")
logging.addLevelName(PROFILING, "PROFILING")

logger = logging.getLogger("astkit")
logger.addHandler(logging.NullHandler())  # without a handler logging prints warnings to stderr

enabled = logger.isEnabledFor


def record(level: int, what: str, metrics: Callable[[], Mapping[str, Any]]) -> None:
    """Log ``what`` and its metrics; ``metrics`` is called only if ``level`` is enabled.

    The message is ``what name=value ...``, floats with four significant digits; handlers can
    access the values as the record's attribute ``metrics``.
    """
    if not enabled(level):
        return
    values = dict(metrics())
    short = {name: f"{v:.4g}" if isinstance(v, float) else v for name, v in values.items()}
    pairs = (f"{name}={value}" for name, value in short.items())
    logger.log(level, "%s", " ".join([what, *pairs]), extra={"metrics": values}, stacklevel=2)
