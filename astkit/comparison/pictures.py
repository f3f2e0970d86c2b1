"""The figure of a comparison."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astkit.comparison.statistics import DENSE, by_arm, is_finite, pairs
from astkit.comparison.verdict import NONE_BETTER, Verdict, leading, unequal, unit

if TYPE_CHECKING:
    from astkit.comparison.report import Comparison
    from astkit.widgets.style import Picture


def draw_values(report: Comparison, names: Sequence[str] = ()) -> Picture:
    """The value of each run, with what the verdicts and controls say beside the methods.

    ``names``: all methods, while runs are to come; differences, which hold at the end, are left
    out then.
    """
    from astkit.widgets import comparison_plots

    scale = unit(report.metric)[0]
    known = [run for run in report.entries if is_finite(run["value"])]
    runs = [{**run, "arm": run["policy"], "value": run["value"] * scale} for run in known]
    beside: dict[str, dict[str, Any]] = {}
    for each in () if names else [*report.controls, *report.verdicts]:
        ends = [(each.dense + end) * scale for end in each.difference[1:3]]
        beside[each.policy] = {"gap": each.amount(each.difference), "ends": ends}
        if each in report.verdicts:
            beside[each.policy] |= {"words": _outcome(each), "bold": bool(each.better)}
    quantity = f"{report.metric} (%)" if scale > 1 else report.metric
    figure = comparison_plots.values_by_method(runs, beside, quantity, report.higher, names)
    message, below = (f"Runs so far: {len(known)}", " ") if names else headline(report)
    figure.headline(message)
    figure.axes[0].set_title(below, loc="left", size=9)
    return figure


def headline(report: Comparison) -> tuple[str, str]:
    """What the figure shows, and a line below it: of the best policy, or of the only one."""
    from astkit.widgets.comparison_plots import in_digits

    lead = leading(report.verdicts)
    if lead is None:
        return NONE_BETTER, ""
    arms, beats = by_arm(report.entries), operator.gt if lead.higher else operator.lt
    both = pairs(arms[lead.policy], arms[DENSE])
    won = sum(beats(run["value"], other["value"]) for run, other in both)
    below = f"better than dense training in {won} of {len(both)} seeds, {lead.cost}"
    scale = unit(lead.metric)[0]
    means = [scale * mean for mean in (lead.dense, lead.dense + lead.difference.mean)]
    dense, value = (in_digits(mean, means) + " %" * (scale > 1) for mean in means)
    if lead.better:
        return f"{lead.policy} brings the {lead.metric} from {dense} to {value}", below
    return f"{lead.policy}: {lead.words}: {lead.metric} {value}, dense training {dense}", below


def _outcome(verdict: Verdict) -> str:
    """The outcome in words, with the rule that decided and a budget that is not the same."""
    parts = [verdict.words, verdict.rule]
    if verdict.better and verdict.beats_random is False:
        parts.append("not shown to beat random")
    if unequal(verdict.flops):
        parts.append(verdict.cost)
    return ", ".join(dict.fromkeys(filter(None, parts)))
