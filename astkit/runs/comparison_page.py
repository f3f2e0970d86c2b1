"""Page on a comparison: verdicts, tables and figures, as Markdown or HTML. Needs pandas.

``entries`` are those of `astkit.runs.paired`, ``verdicts`` those of `astkit.runs.verdict.judge`,
and ``metric`` is the name of the entries' ``value``.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from astkit.runs.intervals import Interval, mean_interval, ratio_interval
from astkit.runs.paired import COSTS, DENSE, Arm, Entry, by_arm, finite, known, ratios, share
from astkit.runs.verdict import Verdict, amount, unit

if TYPE_CHECKING:
    from astkit.runs.comparison import Comparison
    from astkit.widgets.style import Picture

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Does selecting samples pay?</title></head><body>
<style>
.astkit-comparison {{ font-family: sans-serif; margin: 1em }}
.astkit-comparison table {{ border-collapse: collapse; margin: 1em 0 }}
.astkit-comparison th, .astkit-comparison td
  {{ border: 1px solid #999; padding: .3em .6em; text-align: left; white-space: nowrap }}
.astkit-comparison th {{ white-space: normal; max-width: 12em }}
.astkit-comparison img {{ max-width: 100% }}
</style>
<div class="astkit-comparison">
{body}
</div></body></html>
"""
_TITLE = "Does selecting samples pay?"
_REACH = "Cost of reaching dense's final validation value, as a share of dense's whole run:"
_NONE = "–"


def markdown(report: Comparison) -> str:
    """Verdicts, tables and notes as Markdown, without figures."""
    verdicts = report.verdicts
    parts = [f"## {_TITLE}", "\n".join(f"- {_plain(each.sentence)}." for each in verdicts)]
    parts += [_rows(results(report.entries, verdicts, report.metric))]
    if verdicts:
        parts += [_REACH, _rows(reaching(verdicts)), _legend(verdicts)]
    return "\n\n".join([*parts, *map(_plain, report.notes)]) + "\n"


def html(report: Comparison) -> str:
    """A page that needs no other files, with figures; notebooks can display it in a cell."""
    verdicts = report.verdicts
    said = "".join(f"<li>{escape(each.sentence)}.</li>" for each in verdicts)
    parts = [f"<h2>{_TITLE}</h2>", f"<ul>{said}</ul>"]
    parts += [results(report.entries, verdicts, report.metric).to_html(index=False)]
    if verdicts:
        parts += [f"<p>{escape(_REACH)}</p>", reaching(verdicts).to_html(index=False)]
        parts += [f"<p>{escape(_legend(verdicts))}</p>"]
    for alt, figure in pictures(report.entries, verdicts).items():
        png = base64.b64encode(figure.png()).decode()
        parts.append(f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{png}"></p>')
    parts += [f"<p>{escape(note)}</p>" for note in report.notes]
    return _PAGE.format(body="\n".join(parts))


def results(entries: Sequence[Entry], verdicts: Sequence[Verdict], metric: str) -> pd.DataFrame:
    """One row per arm, controls included, as text: means over seeds, and intervals to dense.

    Seeds without a finite value are left out; n is then "4 of 5".
    """
    arms, judged = by_arm(entries), {each.policy: each for each in verdicts}
    return pd.DataFrame(
        [
            {"policy": name, **_row(arm, arms.get(DENSE, {}), judged.get(name), metric)}
            for name, arm in arms.items()
        ]
    )


def _row(arm: Arm, dense: Arm, judged: Verdict | None, metric: str) -> dict[str, str]:
    runs = [run for run in arm.values() if finite(run["value"])]
    means = {
        key: mean_interval(run[key] for run in runs).mean
        for key in ("value", "trained", "rate", "worst_class")
    }
    shares = {}
    for key, cost in COSTS.items():
        found: Interval | None = getattr(judged, key, None)
        mean = ratio_interval(known(ratios(arm, dense, key))).mean
        shares[f"{cost} / dense"] = found.text(".2f") if found else _text(mean, ".2f")
    return {
        "n": f"{len(runs)}" + f" of {len(arm)}" * (len(runs) < len(arm)),
        metric: _text(means["value"], ".2%" if unit(metric)[0] > 1 else ".4g"),
        f"{metric} minus dense": amount(judged.difference, metric) if judged else _NONE,
        **shares,
        "samples trained": _text(means["trained"], ",.0f"),
        "rate": _text(means["rate"], ".2f"),
        "worst class": _text(means["worst_class"], ".2%"),
    }


def reaching(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """One row per policy, as text: cost of reaching dense's value, and further differences."""
    rows = []
    for each in verdicts:
        row = {"policy": each.policy, "reached by": f"{each.reached} of {each.n}"}
        for key, name in COSTS.items():
            reach: Interval | None = getattr(each, f"reach_{key}")
            row[name] = reach.text(".2f") if reach else _NONE
        others = {
            f"validation {each.metric} minus dense, after dense's seconds": (
                each.at_equal_seconds,
                each.metric,
            ),
            f"{each.metric} minus random at the same rate": (each.to_random, each.metric),
            "worst class minus dense": (each.worst_class, "accuracy"),
        }
        rows.append(row | {name: _gap(*found, each.n) for name, found in others.items()})
    return pd.DataFrame(rows)


def _gap(found: Interval | None, metric: str, n: int) -> str:
    """A difference as text, with its number of seeds if that is smaller than ``n``."""
    return amount(found, metric) + f", n = {found.n}" * (0 < found.n < n) if found else _NONE


def pictures(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> dict[str, Picture]:
    """The figures that the entries allow, by their descriptions."""
    if not verdicts:
        return {}
    from astkit.widgets import comparison_plots

    metric, higher = verdicts[0].metric, verdicts[0].higher
    scale, name = unit(metric)
    rows = [
        {"arm": each.policy, "against": against, "outcome": each.outcome}
        | {key: getattr(gap, key) * scale for key in ("mean", "low", "high")}
        for each in verdicts
        for against, gap in (("dense", each.difference), ("random", each.to_random))
        if gap and gap.n
    ]
    quantity = f"{metric} ({name})" if name != metric else metric
    found = {"differences to dense": comparison_plots.differences(rows, quantity, higher)}
    dense = by_arm(entries)[DENSE]
    curves = [
        {"arm": entry["policy"], "seed": entry["seed"], "value": point[-1]}
        | {
            key: share(cost, dense[entry["seed"]][key])
            for key, cost in zip(COSTS, point, strict=False)
        }
        for entry in entries
        if entry["seed"] in dense
        for point in entry["curve"]
    ]
    if curves and any(all(row[key] is not None for row in curves) for key in COSTS):
        marks = [
            {"arm": each.policy}
            | {key: getattr(getattr(each, f"reach_{key}"), "mean", None) for key in COSTS}
            for each in verdicts
        ]
        found["validation value by cost"] = comparison_plots.cost_to_reach(curves, marks, metric)
    return found


def _legend(verdicts: Sequence[Verdict]) -> str:
    said = "Means over n seeds with 95 % intervals (Student), paired by seed"
    if len(verdicts) > 1:
        said += (
            f", jointly for all {len(verdicts)} policies (Bonferroni). Outcomes are by Holm's test;"
        )
        said += " an interval that ends at 0 was cut off there, since the test excludes 0, and with"
        said += " such intervals all hold together in 93 % of simulated comparisons"
    return f"{said}. Numbers of further seeds are for a probability of 0.8 to decide."


def _text(value: float, spec: str) -> str:
    return _NONE if math.isnan(value) else format(value, spec)


def _rows(table: pd.DataFrame) -> str:
    lines = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines)


def _plain(text: str) -> str:
    """``text`` without a meaning in Markdown."""
    return re.sub(r"([\\|<*`])", r"\\\1", text.replace("\n", " "))
