"""Pictures of what differs between old rows and a target, and of what it would gain to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
def moments(table: pd.DataFrame, past: pd.DataFrame, today: str | float) -> Picture:
    """The gain of each decision at earlier moments of `astkit.forecast`, and that of today."""
    import pandas as pd

    figure = picture(height=3.2)
    axis = figure.axes[0]
    here: Any = pd.Timestamp(today) if isinstance(today, str) else today
    shown = table.set_index("decision")
    names = [name for name in past["decision"].unique() if name not in ("old", "both")]
    for name, marker in zip([*names, "both"], "x^o", strict=True):  # both before the others
        own = past[past["decision"] == name]
        alpha, color = (1.0, SELECTED) if name == "both" else (0.5, SOFT)
        style: dict[str, Any] = {"color": color, "alpha": alpha, "marker": marker}
        axis.plot(own["start"], own["gain"], linewidth=0.8, label=name, **style)
        axis.plot([here], shown.loc[[name], "gain"], **style)
    own = shown.loc[["both"]]
    errors = [own["gain"] - own["low"], own["high"] - own["gain"]]
    axis.errorbar([here], own["gain"], yerr=errors, capsize=3, color=SELECTED)
    axis.axhline(0, color=SOFT, linewidth=0.8)
    axis.set_ylim(bottom=max(axis.get_ylim()[0], FAR))
    axis.axvline(here, color=INK, linewidth=0.8, linestyle=":")
    axis.text(here, 1.0, "today ", ha="right", va="top", transform=axis.get_xaxis_transform())
    axis.set_ylabel(f"gain over old, {table['unit'].iloc[0]}")
    axis.set_xlabel(
        "start of the recent rows; today: both with the 95 % interval of the target's own folds"
    )
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
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
