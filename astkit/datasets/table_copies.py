"""Columns that hold the label of a table: a model that sees them learns nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Wide = np.ndarray[Any, np.dtype[np.float64]]

SAMPLE = 2_000
"""Rows that are looked at first, and to which a sum of columns is fitted."""
ROUNDING = 1e-9
"""Share of the label's variance that a copy may leave unexplained."""


def columns_with_label(frame: pd.DataFrame, label: Any, regression: bool) -> list[str]:
    """Names of columns of ``frame`` that are copies of ``label [rows]``, or that add up to it.

    A copy has one value for each value of the label and another one for each other: the names of
    classes beside their numbers. Where most values occur once that says nothing; then numbers are
    copies if they are equal to rounding after a scale and a shift, of logarithms too.
    """
    places = np.unique(label, return_inverse=True)[1].astype(np.int64)
    wide = np.asarray(label, np.float64)
    repeats = len(places) >= 2 * (int(places.max()) + 1)
    found = []
    for name in frame:
        column = frame[name]
        if repeats:
            copy = _is_paired(column[:SAMPLE], places[:SAMPLE]) and _is_paired(column, places)
        else:
            copy = regression and column.dtype.kind == "f" and _is_scaled(column, wide)
        if copy and column.notna().all():
            found.append(str(name))
    if regression:
        found += _summands(frame.drop(columns=found), wide)
    return found


def _is_paired(column: pd.Series[Any], places: np.ndarray[Any, Any]) -> bool:
    """Whether each value of ``column`` goes with one of ``places`` alone, and the reverse."""
    codes = column.factorize()[0].astype(np.int64)
    pairs = len(np.unique(codes * (int(places.max()) + 1) + places))
    return pairs == len(np.unique(codes)) == len(np.unique(places))


def _is_scaled(column: pd.Series[Any], y: Wide) -> bool:
    """Whether ``y = a + b x``, of the numbers or of logarithms of either."""
    x = column.to_numpy("float64")
    return _fits(x[:SAMPLE], y[:SAMPLE]) and _fits(x, y)


def _fits(x: Wide, y: Wide) -> bool:
    sides = [[values, *([np.log(values)] if values.min() > 0 else [])] for values in (x, y)]
    for one in sides[0]:
        for other in sides[1]:
            left, right = one - one.mean(), other - other.mean()
            whole = float((left**2).sum() * (right**2).sum())
            if whole > 0 and 1 - float((left * right).sum()) ** 2 / whole < ROUNDING:
                return True
    return False


def _summands(frame: pd.DataFrame, label: Wide) -> list[str]:
    """Columns of which each counts once, with either sign, and that make the label."""
    names = [str(name) for name in frame if frame[name].dtype.kind == "f"]
    names = [name for name in names if frame[name].notna().all() and frame[name].std() > 0]
    step = max(1, len(frame) // SAMPLE)
    some = frame[names].iloc[::step].to_numpy("float64")
    if not names or len(some) < 2 * len(names) + 2:
        return []
    mean, deviation = some.mean(0), some.std(0)
    deviation[deviation == 0] = 1.0
    inputs = np.column_stack([(some - mean) / deviation, np.ones(len(some))])
    factors = np.linalg.lstsq(inputs, label[::step], rcond=None)[0][:-1] / deviation
    found = [place for place, factor in enumerate(factors) if abs(abs(factor) - 1) < 1e-3]
    total = np.zeros(len(label))
    for place in found:
        total += np.sign(factors[place]) * frame[names[place]].to_numpy("float64")
    alike = np.allclose(total, label, rtol=1e-6, atol=1e-6 * float(label.std()))
    return [names[place] for place in found] if found and alike else []
