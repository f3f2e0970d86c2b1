"""The origin's published figures beside what was measured. Needs pandas.

Source: KAGGLE_AST_FINAL_REPORT.md in oluwafemidiakhoa/adaptive-sparse-training at 3e66290
(SimpleCNN on CIFAR-10, 40 epochs, target rate 0.10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import pandas as pd

ORIGIN = "oluwafemidiakhoa/adaptive-sparse-training at 3e66290"
ACCURACY, RATE, SPEED, ENERGY = 0.612, 0.104, 11.5, 0.896

Result = dict[str, Any]


def table(report: Mapping[str, Any]) -> pd.DataFrame:
    """One row a claim: the origin's figure, the measured one, how many runs or rounds it rests on.

    ``report`` is what `astkit.runs.compare` keeps; its ``batches`` give the interleaved ratio.
    """
    dense, gate = _arm(report["results"], "dense"), _arm(report["results"], "batched gate")
    n = len(gate)
    rows = [
        ("accuracy of the gate", f"{ACCURACY:.1%}", _show(gate, "test_accuracy"), n),
        ("accuracy of dense training", "60 %, never run", _show(dense, "test_accuracy"), n),
        ("activation rate", f"{RATE:.1%}", _show(gate, "rate"), n),
        ("speed over dense, whole run", f"{SPEED} x", _quotient(dense, gate, "seconds"), n),
        ("speed over dense, a batch, interleaved", "not measured", *_interleaved(report)),
        ("FLOPs, dense over gate", "not counted", _quotient(dense, gate, "flops"), n),
        ("energy saved", f"{ENERGY:.1%} of its units", _units(dense, gate), n),
    ]
    return pd.DataFrame(rows, columns=["claim", "origin", "measured", "n"]).set_index("claim")


def _arm(results: Sequence[Result], name: str) -> list[Result]:
    return [result for result in results if result["arm"] == name]


def _show(runs: list[Result], key: str) -> str:
    return f"{mean(run[key] for run in runs):.1%}" if runs else "not run"


def _interleaved(report: Mapping[str, Any]) -> tuple[str, int]:
    for row in report.get("batches", ()):
        if row["arm"] == "batched gate":
            low, high = row["speedup_low"], row["speedup_high"]
            return f"{row['speedup']:.2f} x [{low:.2f}, {high:.2f}]", row["rounds"]
    return "not run", 0


def _quotient(dense: list[Result], gate: list[Result], key: str) -> str:
    if not dense or not gate:
        return "not run"
    return f"{mean(run[key] for run in dense) / mean(run[key] for run in gate):.2f} x"


def _units(dense: list[Result], gate: list[Result]) -> str:
    if not dense or not gate:
        return "not run"
    spent = mean(run["origin_energy_units"] for run in gate)
    share = 1 - spent / mean(run["origin_energy_units"] for run in dense)
    return f"joules not measured ({share:.1%} of its units)"


def full_length(results: Sequence[Result], epochs: float) -> pd.DataFrame:
    """Test accuracy of the arms that ran for ``epochs`` passes; "not run" for all others."""
    rows = [
        {
            "arm": result["arm"],
            "training steps": result["training_steps"],
            f"accuracy after {epochs:g} epochs": f"{result['test_accuracy']:.1%}"
            if result["epochs"][-1]["epoch"] >= epochs
            else "not run",
        }
        for result in results
    ]
    return pd.DataFrame(rows or [{"arm": "all", f"accuracy after {epochs:g} epochs": "not run"}])
