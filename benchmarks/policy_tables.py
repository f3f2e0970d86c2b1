"""What docs/policies.md shows of the committed runs: two tables, as CSV files and charts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.colors
import numpy as np
import pandas as pd

from astkit.comparison import verdict
from astkit.comparison.statistics import DENSE, by_arm, cost_ratio
from astkit.comparison.verdict import Verdict
from astkit.files import read_json
from astkit.widgets.style import INK, SOFT, Picture, line, picture, styled
from benchmarks.bench import ROOT

SHARED = ROOT / "notebooks" / "results" / "06_shares.json"
STATIC = ROOT / "docs" / "static"
LOSS = 0.1  # percent or points: less is no loss that anybody would see
SHOWN = ("aim", "auto", "oracle")
LESS = ", less training"
"""Rows of runs with a share of the FLOPs, of whatever size."""
TAILS = {
    "balanced validation and test": "long tail, balanced target",
    "balanced validation, imbalanced test (the same runs)": "the same, imbalanced test",
    "imbalanced validation and test": "long tail, imbalanced target",
}
"""Kinds of long tails, in the words of a heading."""
WRONG = ("start", "middle", "end")
Entry = Mapping[str, Any]


def gains() -> pd.DataFrame:
    """Gain of each method over dense training by kind of data, in percent or points."""
    rows = pd.DataFrame(read_json(SHARED)["rows"])
    columns = ["condition", "policy", "n", "unit", "gain", "gain_low", "gain_high"]
    return rows[[*columns, "share", "share_low", "share_high"]].round(4)


def on_target() -> pd.DataFrame:
    """Gains where the rows of the target may be trained on, beside those of looking at them."""
    content = read_json(SHARED)
    columns = {
        "aim": "`aim` looks at them",
        "dense+target": "both, all rows alike",
        "aim+target": "`aim` may train on them",
    }
    found: dict[str, dict[str, str]] = {}
    for row in [*content["rows"], *content["aim_on_target"]]:
        if row["policy"] in columns:
            of_condition = found.setdefault(row["condition"], {})
            of_condition[columns[row["policy"]]] = gain_text(row)
    for row in content["aim_on_target"]:
        found[row["condition"]]["left of its FLOPs to train"] = f"{row['trained']:.0%}"
    shown = [each for each in found if columns["dense+target"] in found[each]]
    table = pd.DataFrame(found).T.reindex(shown)
    return table.fillna("not measured").rename_axis("training data")


def gain_text(row: Entry) -> str:
    """A gain with its interval."""
    low, high = row["gain_low"], row["gain_high"]
    return f"{row['gain']:+z.1f} {row['unit']} [{low:+z.1f}, {high:+z.1f}]"


def multipliers(lines: Sequence[Entry]) -> pd.DataFrame:
    """With which share of dense training's FLOPs each method reaches its bits, as text."""
    rows = {
        f"{each['condition']}, {'`aim`' if each['policy'] == 'aim' else each['policy']}": {
            "n": f"{each['n']}",
            "share of the FLOPs": "{share:.2f} [{low:.2f}, {high:.2f}]".format(**each),
            "multiplier": f"{1 / each['share']:.1f}",
        }
        for each in lines
    }
    return pd.DataFrame(rows).T.rename_axis("training data")


def share_text(row: Entry) -> str:
    """The share of what the oracle gains, where its gain excludes 0."""
    return "" if pd.isna(row["share"]) else f"{row['share']:.2f}"


def accuracies(tasks: Mapping[str, Sequence[Entry]], gone: Sequence[str]) -> pd.DataFrame:
    """Accuracy of each method by condition, and its difference to dense training, in points.

    ``gone``: policies that count for the correction of outcomes and have no row.
    """
    rows = []
    for task, runs in tasks.items():
        judged = {each.policy: each for each in verdict.judge(runs)}
        arms = by_arm(runs)
        for name in [name for name in arms if name not in gone]:
            values = [run["value"] for run in arms[name].values()]
            flops = cost_ratio(arms[name], arms[DENSE], "flops").mean
            row = {"condition": task, "policy": name, "seeds": len(values)}
            row |= {"accuracy": 100 * float(np.mean(values)), "flops": flops}
            row |= _difference(judged.get(name)) | _wrong(arms[name].values())
            rows.append(row)
    return pd.DataFrame(rows).round(3)


def _difference(judged: Verdict | None) -> dict[str, Any]:
    if judged is None:
        return {}
    mean, low, high, _ = judged.difference
    numbers = {"difference": 100 * mean, "low": 100 * low, "high": 100 * high}
    return {**numbers, "outcome": judged.outcome}


def _wrong(runs: Any) -> dict[str, float]:
    """Percentage of wrong labels among the rows trained on, where there are any."""
    shares = np.mean([run["wrong_share"] for run in runs], axis=0)
    if not shares.any():
        return {}
    places = (0, len(shares) // 2, -1)
    return {f"wrong_{name}": 100 * shares[at] for name, at in zip(WRONG, places, strict=True)}


def gains_message(table: pd.DataFrame) -> str:
    """Where `aim` gains, as the title of its chart."""
    own = table[table["policy"] == "aim"]
    better = int((own["gain_low"] > 0).sum())
    worse = int(((own["gain_high"] < 0) & (own["gain"] <= -LOSS)).sum())
    lost = f"loses in {worse}" if worse else "loses in none"
    return f"aim gains in {better} of {len(own)} kinds of data and {lost}"


def gains_words(table: pd.DataFrame) -> str:
    """The chart of gains as alternative text."""
    own = table[(table["policy"] == "aim") & (table["gain_low"] > 0)]
    said = [f"{row.condition} {row.gain:+z.1f} {row.unit}" for row in own.itertuples(index=False)]
    return f"{gains_message(table)}: {'; '.join(said)}"


@styled
def gains_chart(table: pd.DataFrame) -> Picture:
    """A row for each kind of data, percent above points; numbers of `aim` at the right."""
    units = {"%": "loss, % lower than that of dense training", "points": "accuracy, points higher"}
    counts = [table[table["unit"] == unit]["condition"].nunique() for unit in units]
    figure = picture(height=1.4 + 0.27 * sum(counts))
    figure.clear()
    grid = figure.add_gridspec(2, 1, height_ratios=counts)
    for place, (unit, label) in enumerate(units.items()):
        axis = figure.add_subplot(grid[place])
        found = table[table["unit"] == unit]
        conditions = list(found["condition"].unique())
        axis.axvline(0, color=INK, lw=1.2)
        for name in SHOWN:
            rows = found[found["policy"] == name]
            places = [conditions.index(condition) for condition in rows["condition"]]
            ends = [rows["gain"] - rows["gain_low"], rows["gain_high"] - rows["gain"]]
            look: dict[str, Any] = {"color": line(name)["color"], "fmt": line(name)["marker"]}
            if name == "oracle":
                look |= {"fmt": "|", "ms": 14, "mew": 2, "elinewidth": 0}
            if name == "auto":
                look |= {"mfc": "none", "ms": 8, "elinewidth": 0}
            axis.errorbar(rows["gain"], places, xerr=np.abs(ends), label=name, **look)
        own = found[found["policy"] == "aim"].set_index("condition")["gain"]
        beside: Any = {"transform": axis.get_yaxis_transform(), "va": "center", "size": 8.5}
        for condition, gain in own.items():
            axis.text(1.01, conditions.index(condition), f"{gain:+z.1f}", **beside)
        names = [textwrap.shorten(name.replace(", 8 epochs", ""), 62) for name in conditions]
        axis.set_yticks(range(len(names)), names, size=8.5)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_xlabel(label)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(SHOWN))
    figure.suptitle(gains_message(table), size=11)
    return figure


def accuracy_message(table: pd.DataFrame) -> str:
    """How often a policy that chooses by difficulty is shown to be better, and worse."""
    judged = table[table["outcome"].notna() & (table["flops"] > 0.95)]
    better, worse = (int((judged["outcome"] == each).sum()) for each in ("better", "worse"))
    return f"of {len(judged)} comparisons, {better} are better than dense training, {worse} worse"


def accuracy_words(table: pd.DataFrame) -> str:
    """The chart of accuracies as alternative text: what is shown to be better or worse."""
    shown = table[table["outcome"].isin(["better", "worse"])]
    said = [
        f"{condition}: "
        + ", ".join(f"{row.policy} {row.difference:+.1f}" for row in found.itertuples(index=False))
        for condition, found in shown.groupby("condition", sort=False)
    ]
    return f"{accuracy_message(table)}: {'; '.join(said)}"


@styled
def accuracy_chart(table: pd.DataFrame) -> Picture:
    """A row for each policy, a column for each condition; what is shown is bold and coloured."""
    table = table[table["outcome"].notna()]
    names = table["policy"].str.replace(r", .* of the FLOPs", LESS, regex=True)
    table = table.assign(policy=names)
    policies = sorted(names.unique())
    conditions = sorted(table["condition"].unique(), key=_order)
    figure = picture(height=2.0 + 0.27 * len(policies))
    axis = figure.axes[0]
    colours = {"better": "#CBE5C8", "worse": "#F3C9B5"}
    for row in table.to_dict("records"):
        at = conditions.index(row["condition"]), policies.index(row["policy"])
        shown = row["outcome"] in colours
        look: Any = {"weight": "bold", "color": INK} if shown else {"color": SOFT}
        axis.text(*at, f"{row['difference']:+z.1f}", ha="center", va="center", size=9, **look)
        if shown:
            corner = at[0] - 0.47, at[1] - 0.42
            fill = matplotlib.colors.to_rgba(colours[row["outcome"]])
            axis.add_patch(matplotlib.patches.Rectangle(corner, 0.94, 0.84, fc=fill, lw=0))
    wrapped = [textwrap.fill(_short(each), 20) for each in conditions]
    axis.set_xticks(range(len(conditions)), wrapped, size=8, rotation=55, ha="left")
    axis.set_yticks(range(len(policies)), policies, size=9)
    axis.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.set(xlim=(-0.5, len(conditions) - 0.5), ylim=(len(policies) - 0.5, -0.5))
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.set_xlabel(
        "points of accuracy above dense training; bold: shown (Holm); columns: data, epochs"
    )
    figure.suptitle(accuracy_message(table), size=11)
    return figure


def _order(condition: str) -> tuple[str, float]:
    name, epochs = condition.split(", ")[:2]
    return name, float(epochs.removesuffix(" epochs"))


def _short(condition: str) -> str:
    """The heading of a column: kind of data, and epochs."""
    name, epochs, *rest = condition.split(", ", 2)
    name = TAILS.get("".join(rest), name.replace(" (share 0.4)", ""))
    return f"{name}, {epochs.removesuffix(' epochs')}"
