"""Report of a comparison: verdicts, tables and figures, as Markdown, HTML or JSON. Needs pandas.

``entries`` are those of `astkit.comparison.statistics`, ``verdicts`` those of `verdict.judge`, and
``metric`` is the name of the entries' ``value``.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
from torch import Tensor

from astkit.comparison.statistics import (
    COSTS,
    DENSE,
    RANDOM,
    Arm,
    Entry,
    Interval,
    Rows,
    Seeds,
    by_arm,
    cost_ratio,
    differences,
    finite,
    gaps,
    known,
    mean_interval,
    pairs,
    ratio_interval,
    share,
)
from astkit.comparison.verdict import Verdict, amount, unequal, unit
from astkit.gating.forecast import Forecast

if TYPE_CHECKING:
    from astkit.widgets.style import Picture

SCHEMA = 1
"""Version of `to_json`; it is raised when a key changes its meaning or goes."""
MEANS = ("value", *COSTS, "joules", "trained", "scored", "rate", "worst_class")
TITLE = "Does choosing samples help here?"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>
<style>
.astkit-comparison {{ font-family: sans-serif; margin: 1em }}
.astkit-comparison table {{ border-collapse: collapse; margin: 1em 0 }}
.astkit-comparison th, .astkit-comparison td
  {{ border: 1px solid #999; padding: .3em .6em; text-align: left }}
.astkit-comparison img {{ max-width: 100% }}
</style>
<div class="astkit-comparison">
{body}
</div></body></html>
"""
_SECOND = (
    "Share of the samples that were trained on; FLOPs and time until the validation value stays at"
    " least as good as the final one of dense training, as a share of its whole run; validation"
    " value after equal time and recall of the worst class, both minus dense training."
)
_NONE = "–"


class Compared(Protocol):
    """What is reported: a `Comparison`; see there for the attributes."""

    entries: list[dict[str, Any]]
    metric: str
    higher: bool
    baseline: list[str]
    forecast: Forecast | None
    notes: list[str]

    @property
    def before(self) -> list[str]: ...

    @property
    def verdicts(self) -> list[Verdict]: ...

    @property
    def resampled(self) -> bool: ...

    def test_rows(self, entry: Entry, /) -> Tensor | None: ...


def markdown(report: Compared) -> str:
    """Verdicts, tables and notes as Markdown, without figures."""
    parts = [f"## {TITLE}", *map(_plain, report.before)]
    parts.append("\n".join(f"- {_plain(each.sentence)}." for each in report.verdicts))
    for title, table in _tables(report).items():
        lines = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
        parts.append(title)
        parts.append("\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines))
    return "\n\n".join([*filter(None, parts), *map(_plain, report.notes)]) + "\n"


def html(report: Compared) -> str:
    """A page that needs no other files, with figures; notebooks can display it in a cell."""
    verdicts = report.verdicts
    said = "".join(f"<li>{escape(each.sentence)}.</li>" for each in verdicts)
    before = "".join(f"<p>{escape(sentence)}</p>" for sentence in report.before)
    parts = [f"<h2>{TITLE}</h2>", before, f"<ul>{said}</ul>"]
    for title, table in _tables(report).items():
        parts += [f"<p>{escape(title)}</p>", table.to_html(index=False)]
    for alt, figure in pictures(
        report.entries, verdicts, report.test_rows, report.resampled
    ).items():
        png = base64.b64encode(figure.png()).decode()
        parts.append(f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{png}"></p>')
    parts += [f"<p>{escape(note)}</p>" for note in report.notes]
    return _PAGE.format(title=TITLE, body="\n".join(parts))


def _tables(report: Compared) -> dict[str, pd.DataFrame]:
    """The tables by what is said above them."""
    verdicts, metric = report.verdicts, report.metric
    tables = {legend(verdicts): results(report.entries, verdicts, metric)}
    if verdicts:
        tables[_SECOND] = further(report.entries, verdicts, metric)
    return tables


def to_json(report: Compared) -> dict[str, Any]:
    """The report as plain values, for scripts; what is not known is ``None``.

    Keys: ``schema`` (`SCHEMA`), ``metric``, ``higher`` (whether a higher value is better),
    ``unit`` (its ``name``, and the ``factor`` by which differences are shown), ``forecast`` (the
    fields of `Forecast`, or null), ``baseline`` (what has to be known of it), ``legend`` (what
    intervals and outcomes cover), ``notes``, and two
    lists:

    - ``verdicts``, one for each policy: ``sentence``, ``better`` (true, false or null), and all
      attributes of `astkit.comparison.verdict.Verdict`; an interval has ``mean``, ``low``, ``high``
      and ``n``, in the metric's unit;
    - ``figures``, one for each method: ``policy``, its `means`, and, except for dense training,
      the intervals ``reach_flops``, ``reach_seconds``, ``after_equal_time`` and
      ``worst_class_gap``, and ``reached``, a number of seeds: see `further`.
    """
    verdicts, arms = report.verdicts, by_arm(report.entries)
    figures = []
    for name, row in means(report.entries).items():
        figure: dict[str, Any] = {"policy": name, **row}
        if name != DENSE:
            figure |= _beside(arms[name], arms[DENSE], report.higher)
        figures.append(figure)
    factor, name = unit(report.metric)
    plain: dict[str, Any] = _json(
        {
            "schema": SCHEMA,
            "metric": report.metric,
            "higher": report.higher,
            "unit": {"name": name, "factor": factor},
            "forecast": None if report.forecast is None else report.forecast._asdict(),
            "baseline": list(report.baseline),
            "legend": legend(verdicts),
            "verdicts": [
                {"sentence": each.sentence, "better": each.better, **vars(each)}
                for each in verdicts
            ],
            "figures": figures,
            "notes": list(report.notes),
        }
    )
    return plain


def _json(value: Any) -> Any:
    """``value`` with plain mappings and lists, and None for NaN and infinities."""
    value = value._asdict() if isinstance(value, Interval | Seeds) else value
    if isinstance(value, Mapping):
        return {key: _json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def legend(verdicts: Sequence[Verdict]) -> str:
    """What intervals and outcomes cover, in a few sentences."""
    if not verdicts:
        return ""
    rows = all(each.test_rows for each in verdicts)
    over = "seeds and test rows" if rows else "seeds only, so they hold for these test rows alone"
    said = f"Differences are paired by seed, with single 95 % intervals over {over}."
    compared = verdicts[0].compared
    if compared > 1:
        said += f" Outcomes are corrected for the {compared} policies compared (Holm): at most a"
        said += " 5 % chance of any wrong sign."
    if any(each.of_possible.n for each in verdicts):
        said += " The oracle knows what is wrong with the data: its gain is the possible one."
    return f"{said} Numbers of further seeds are for a probability of 0.8."


def means(entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """By method: ``seeds``, how many ``failed``, means of `MEANS` over the others (or NaN).

    Seeds without a finite value have failed.
    """
    rows: dict[str, dict[str, float]] = {}
    for name, arm in by_arm(entries).items():
        runs = [run for run in arm.values() if finite(run["value"])]
        rows[name] = {"seeds": len(arm), "failed": len(arm) - len(runs)}
        rows[name] |= {key: mean_interval(run.get(key) for run in runs).mean for key in MEANS}
    return rows


def results(entries: Sequence[Entry], verdicts: Sequence[Verdict], metric: str) -> pd.DataFrame:
    """One row per method, controls included, as text: means over seeds, and intervals to dense.

    Seeds without a finite value are left out; the number of seeds is then "4 of 5".
    """
    arms, judged = by_arm(entries), {each.policy: each for each in verdicts}
    rows = []
    for name, average in means(entries).items():
        arm, verdict = arms[name], judged.get(name)
        some = f"{average['seeds'] - average['failed']} of " * (average["failed"] > 0)
        row = {
            "policy": name,
            "seeds": f"{some}{average['seeds']}",
            metric: _text(average["value"], ".2%" if unit(metric)[0] > 1 else ".4g"),
            "minus dense": amount(verdict.difference, metric) if verdict else _NONE,
        }
        for key, cost in COSTS.items():
            row[f"{cost} / dense"] = cost_ratio(arm, arms.get(DENSE, {}), key).text(".2f")
        if any(each.of_possible.n for each in verdicts):
            row["of the possible gain"] = verdict.of_possible.text(".2f") if verdict else _NONE
        rows.append(row)
    return pd.DataFrame(rows)


def further(entries: Sequence[Entry], verdicts: Sequence[Verdict], metric: str) -> pd.DataFrame:
    """One row per policy, as text: see the sentence above the table."""
    arms, average, rows = by_arm(entries), means(entries), []
    for each in verdicts:
        beside = _beside(arms[each.policy], arms[DENSE], each.higher)
        rate = average[each.policy]["rate"]
        row = {"policy": each.policy, "trained on": _text(rate, ".2f")}
        for key, cost in COSTS.items():
            reached: Interval = beside[f"reach_{key}"]
            some = f"{beside['reached']} of {each.n} seeds"
            row[f"{cost} needed"] = reached.text(".2f") if reached.n else some
        gaps_to = {
            "after equal time": (beside["after_equal_time"], metric),
            "minus random": (each.to_random, metric),
            "worst class": (beside["worst_class_gap"], "accuracy"),
        }
        for name, (gap, of) in gaps_to.items():
            row[name] = amount(gap, of) + f", n = {gap.n}" * (0 < gap.n < each.n)
        rows.append(row)
    return pd.DataFrame(rows)


def _beside(arm: Arm, dense: Arm, higher: bool) -> dict[str, Any]:
    """Intervals that decide no outcome, by name; of n = 0 if unknown, or not reached by a seed."""
    costs = {key: reach(arm, dense, key, higher) for key in COSTS}
    beside: dict[str, Any] = {
        "reached": max(len(known(values)) for values in costs.values()),
        "after_equal_time": mean_interval(at_equal_seconds(arm, dense)),
        "worst_class_gap": mean_interval(differences(arm, dense, "worst_class")),
    }
    for key, values in costs.items():  # the mean over those seeds that reach it would be too low
        beside[f"reach_{key}"] = ratio_interval([] if None in values else known(values))
    return beside


def reach(arm: Arm, dense: Arm, key: str, higher: bool) -> list[float | None]:
    """Cost of reaching the final validation value of dense training, as a share of its whole run.

    By seed; ``key``: "flops" or "seconds". None for a seed at which it is not reached or not known.
    """
    place, costs = list(COSTS).index(key), list[float | None]()
    for run, control in pairs(arm, dense):
        target, measured = _last(control), finite(run[key])
        points = [(p[place], p[2] if finite(p[2]) else math.nan) for p in run["curve"] if measured]
        cost = reached_at(points, target, higher) if finite(target) else None
        costs.append(share(cost, control[key]))
    return costs


def _last(run: Entry) -> float | None:
    return run["curve"][-1][2] if run["curve"] else None


def reached_at(
    points: Sequence[tuple[float, float]], target: float, higher: bool = True
) -> float | None:
    """Cost from which on all values are at least as good as ``target``, or None.

    ``points`` are (cost, value) by increasing cost, with values linear in between. The first time
    of reaching a value (as in DAWNBench, Coleman et al. 2017) would be earlier for noisier curves.
    """
    good = [value >= target if higher else value <= target for _, value in points]
    if not good or not good[-1]:
        return None
    first = max((place + 1 for place, each in enumerate(good) if not each), default=0)
    cost, value = points[first]
    if first == 0 or not math.isfinite(points[first - 1][1]):
        return cost
    before, worse = points[first - 1]
    return before + (cost - before) * (target - worse) / (value - worse)


def at_equal_seconds(arm: Arm, dense: Arm) -> list[float | None]:
    """Validation value after the seconds of dense training minus its final one, by seed.

    A run that is shorter counts with its final value; None if unknown, or if dense training ended
    before the run was validated for the first time.
    """
    gaps = list[float | None]()
    for run, control in pairs(arm, dense):
        target, value = _last(control), None
        if run["curve"] and finite(run["seconds"]) and control["seconds"]:
            _, seconds, values = np.array(run["curve"], dtype=float).T  # None becomes NaN
            if control["seconds"] >= seconds[0]:
                value = float(np.interp(control["seconds"], seconds, values))
        gaps.append(value - target if finite(value) and finite(target) else None)
    return gaps


def pictures(
    entries: Sequence[Entry],
    verdicts: Sequence[Verdict],
    rows: Rows | None = None,
    resampled: bool = False,
) -> dict[str, Picture]:
    """The figures that the entries allow, by their descriptions; ``rows``: see `verdict.judge`."""
    if not verdicts:
        return {}
    from astkit.widgets import comparison_plots

    metric, arms = verdicts[0].metric, by_arm(entries)
    _, name = unit(metric)
    quantity = f"{metric} ({name})" if name != metric else metric
    controls = {
        name: gaps(arm, arms[DENSE], rows, resampled).estimate().interval()
        for name, arm in arms.items()
        if name.startswith(RANDOM)
    }
    forest = comparison_plots.differences(_forest(controls, verdicts), quantity, verdicts[0].higher)
    figures = {"differences to dense training": forest}
    dense = arms[DENSE]
    curves = [
        {"arm": entry["policy"], "seed": entry["seed"], "value": point[-1]}
        | {
            key: share(cost, dense[entry["seed"]][key])
            for key, cost in zip(COSTS, point, strict=False)
        }
        for entry in entries
        if entry["seed"] in dense
        for point in entry["curve"]
        if finite(point[-1])
    ]
    if curves and any(all(row[key] is not None for row in curves) for key in COSTS):
        marks = []
        for each in verdicts:
            beside = _beside(arms[each.policy], dense, each.higher)
            reached = {key: beside[f"reach_{key}"].mean for key in COSTS}
            marks.append({"arm": each.policy, **reached})
        held_out = next(iter(dense.values())).get("validation_rows")
        figures["validation value by cost"] = comparison_plots.cost_to_reach(
            curves, marks, metric, held_out
        )
    return figures


def _forest(controls: Mapping[str, Interval], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Rows of the figure of differences: the random ``controls`` to dense, and the policies."""
    scale, rows = unit(verdicts[0].metric)[0], list[dict[str, Any]]()

    def add(arm: str, against: str, gap: Interval, words: str = "") -> None:
        if gap.n:
            ends = {key: getattr(gap, key) * scale for key in ("mean", "low", "high")}
            rows.append({"arm": arm, "against": against, "outcome": words, "n": gap.n, **ends})

    for name, gap in controls.items():
        add(name, "dense", gap)
    for each in sorted(verdicts, key=lambda each: unequal(each.flops)):  # other budgets last
        label = each.policy
        if unequal(each.flops):
            label += f", {each.flops.mean:.2f} x the FLOPs"
        unlike = ", not shown to beat random" * bool(each.better and each.beats_random is False)
        add(label, "dense", each.difference, each.words + unlike)
        add(label, "random", each.to_random)
    return rows


def _text(value: float, spec: str) -> str:
    return _NONE if math.isnan(value) else format(value, spec)


def _plain(text: str) -> str:
    """``text`` without a meaning in Markdown."""
    return re.sub(r"([\\|<*`])", r"\\\1", text.replace("\n", " "))
