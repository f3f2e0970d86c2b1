"""Pictures of what differs between old rows and a target, and of what it would gain to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astkit.widgets.style import INK, PAPER, SELECTED, SOFT, Picture, picture, styled

if TYPE_CHECKING:
    import pandas as pd

FAR = -60
"""Percent of a loss below which an arrow has the number: no such decision is taken."""


@styled
def separating_columns(table: pd.DataFrame, title: str) -> Picture:
    """The AUC of each column of `astkit.explain`, and what is new in it."""
    shown = table.iloc[::-1]
    figure = picture(height=0.8 + 0.28 * len(shown))
    axis = figure.axes[0]
    axis.barh(shown["column"], shown["auc"] - 0.5, left=0.5, color=SELECTED)
    for place, (value, new) in enumerate(zip(shown["auc"], shown["new"], strict=True)):
        axis.text(max(value, 0.5) + 0.005, place, new, va="center", fontsize=9, color=SOFT)
    axis.set(xlim=(0.5, 1.35), xticks=[0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    axis.set_xlabel("AUC of telling old rows from the target by this column alone")
    axis.set_title(title, loc="left", wrap=True)
    return figure


@styled
def decisions(table: pd.DataFrame) -> Picture:
    """The foretold gain of each decision of `astkit.forecast` with its interval."""
    shown = table.iloc[::-1]
    figure = picture(height=0.8 + 0.24 * len(shown))
    axis = figure.axes[0]
    errors = [shown["gain"] - shown["low"], shown["high"] - shown["gain"]]
    places = np.arange(len(shown))
    axis.errorbar(shown["gain"], places, xerr=errors, fmt="o", color=SELECTED, capsize=3)
    chosen = shown["chosen"].astype(bool)
    axis.plot(shown["gain"][chosen], places[chosen], "s", color=INK, zorder=3, label="chosen")
    axis.axvline(0, color=SOFT, linewidth=0.8)
    axis.set(yticks=places, yticklabels=shown["decision"])
    unit = str(table["unit"].iloc[0]) if len(table) else ""
    axis.set_xlabel(f"gain over the old rows, {unit}, with 95 % intervals")
    axis.set_xlim(left=max(axis.get_xlim()[0], FAR))
    for place, gain in enumerate(shown["gain"]):
        if gain < FAR:
            box = {"fc": PAPER, "ec": "none", "pad": 1}
            axis.text(FAR, place, f" ◀ {gain:.0f}", va="center", color=SELECTED, bbox=box)
    if len(shown):
        axis.legend(loc="lower right", frameon=False)
    return figure
