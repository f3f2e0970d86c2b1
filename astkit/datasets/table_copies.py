"""Columns that hold the label of a table: a model that sees them learns nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = 2_000
"""Rows that are looked at first, and to which a sum of columns is fitted."""
ROUNDING = 1e-9
"""Share of the label's variance that a scaled copy may leave unexplained."""


def columns_with_label(frame: pd.DataFrame, label: Any, regression: bool) -> list[str]:
    """Names of columns of ``frame`` that are copies of ``label [rows]``, or that add up to it.

    A copy has one value for each value of the label and another one for each other: the names of
    classes beside their numbers. Where most values occur once that says nothing; then numbers are
    copies if they are equal to rounding after a scale and a shift.
    """
    y = np.asarray(label, np.float64)
    values, places = np.unique(y, return_inverse=True)
    full = [str(name) for name in frame if frame[name].notna().all()]
    numbers = [n for n in full if regression and frame[n].dtype.kind == "f" and frame[n].std() > 0]
    if len(y) >= 2 * len(values):
        found = full
        for rows in (SAMPLE, len(y)):  # the first ones tell most columns apart
            parts = {name: frame[name][:rows].groupby(places[:rows]).nunique() for name in found}
            found = [name for name, each in parts.items() if each.max() == 1]
        found = [name for name in found if frame[name].nunique() == len(values)]
    else:
        found = [name for name in numbers if np.corrcoef(frame[name], y)[0, 1] ** 2 > 1 - ROUNDING]
    rest = [name for name in numbers if name not in found]
    step = max(1, len(y) // SAMPLE)
    some = frame[rest].iloc[::step].to_numpy("float64")
    deviation = np.array([frame[name].std() for name in rest])
    inputs = np.column_stack([(some - some.mean(0)) / deviation, np.ones(len(some))])
    factors = np.linalg.lstsq(inputs, y[::step], rcond=None)[0][:-1] / deviation
    # each counts once, with either sign
    signs = {n: np.sign(f) for n, f in zip(rest, factors, strict=True) if abs(abs(f) - 1) < 1e-3}
    total = sum(sign * frame[name].to_numpy("float64") for name, sign in signs.items())
    if signs and np.allclose(total, y, rtol=1e-6, atol=1e-6 * float(y.std())):
        found += signs
    return found
