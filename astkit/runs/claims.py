"""The origin's published figures beside what was measured. Needs pandas.

Source: KAGGLE_AST_FINAL_REPORT.md in oluwafemidiakhoa/adaptive-sparse-training at 3e66290
(SimpleCNN on CIFAR-10, 40 epochs, target rate 0.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import pandas as pd

ORIGIN = "oluwafemidiakhoa/adaptive-sparse-training at 3e66290"
ACCURACY, RATE, SPEED, ENERGY = 0.612, 0.104, 11.5, 0.896

Result = dict[str, Any]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row a claim: the origin's figure, the measured one, how many seeds it rests on."""
    dense, gate = _arm(results, "dense"), _arm(results, "batched gate")
    rows = [
        ("accuracy of the gate", f"{ACCURACY:.1%}", _show(gate, "test_accuracy", "{:.1%}")),
        ("accuracy of dense training", "60 %, never run", _show(dense, "test_accuracy", "{:.1%}")),
        ("activation rate", f"{RATE:.1%}", _show(gate, "rate", "{:.1%}")),
        ("dense seconds / gate seconds", f"{SPEED} x", _quotient(dense, gate, "seconds")),
        ("dense FLOPs / gate FLOPs", "not counted", _quotient(dense, gate, "flops")),
        ("energy saved", f"{ENERGY:.1%} of its units", _units(dense, gate)),
    ]
    frame = pd.DataFrame(rows, columns=["claim", "origin", "measured"])
    return frame.assign(n=len(gate)).set_index("claim")


def _arm(results: Sequence[Result], name: str) -> list[Result]:
    return [result for result in results if result["arm"] == name]


def _show(runs: list[Result], key: str, form: str) -> str:
    return form.format(mean(run[key] for run in runs)) if runs else "not run"


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
