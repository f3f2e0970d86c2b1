"""The original's published figures and the measured ones. Needs pandas.

Source: KAGGLE_AST_FINAL_REPORT.md in oluwafemidiakhoa/adaptive-sparse-training at 3e66290
(SimpleCNN on CIFAR-10, 40 epochs, target rate 0.10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

ACCURACY, RATE, SPEED, ENERGY = 0.612, 0.104, 11.5, 0.896

_UNITS = "joules not measured ({:.1%} of its units)"

Result = dict[str, Any]


def table(report: Mapping[str, Any]) -> pd.DataFrame:
    """One row per claim: the original's figure, the measured one, and its number of runs or rounds.

    ``report`` is what `astkit.runs.compare.load` returns.
    """
    n = sum(result["arm"] == "batched gate" for result in report["results"])

    def mean(key: str, arm: str = "batched gate") -> float:
        values = [result[key] for result in report["results"] if result["arm"] == arm]
        return float(np.mean(values)) if values else math.nan

    def quotient(key: str) -> float:
        return mean(key, "dense") / mean(key)

    saved = 1 - 1 / quotient("origin_energy_units")
    dense_accuracy = mean("test_accuracy", "dense")
    rows = [
        ("accuracy of the gate", f"{ACCURACY:.1%}", _shown("{:.1%}", mean("test_accuracy")), n),
        ("accuracy of dense training", "60 %, never run", _shown("{:.1%}", dense_accuracy), n),
        ("activation rate", f"{RATE:.1%}", _shown("{:.1%}", mean("rate")), n),
        ("speed over dense, whole run", f"{SPEED} x", _shown("{:.2f} x", quotient("seconds")), n),
        ("speed over dense, a batch, interleaved", "not measured", *_interleaved(report)),
        ("FLOPs, dense over gate", "not counted", _shown("{:.2f} x", quotient("flops")), n),
        ("energy saved", f"{ENERGY:.1%} of its units", _shown(_UNITS, saved), n),
    ]
    return pd.DataFrame(rows, columns=["claim", "origin", "measured", "n"]).set_index("claim")


def _shown(form: str, value: float) -> str:
    return "not run" if math.isnan(value) else form.format(value)


def _interleaved(report: Mapping[str, Any]) -> tuple[str, int]:
    for row in report.get("batches", ()):
        if row["arm"] == "batched gate":
            low, high = row["speedup_low"], row["speedup_high"]
            return f"{row['speedup']:.2f} x [{low:.2f}, {high:.2f}]", row["rounds"]
    return "not run", 0
