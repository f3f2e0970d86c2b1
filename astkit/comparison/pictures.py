"""The figures of a comparison, from entries as in `astkit.Comparison` and their verdicts."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astkit.comparison.statistics import (
    COSTS,
    DENSE,
    Arm,
    Entry,
    by_arm,
    cost_share,
    is_finite,
    pairs,
)
from astkit.comparison.verdict import Verdict, unequal, unit

if TYPE_CHECKING:
    from astkit.widgets.style import Picture


def pictures(
    entries: Sequence[Entry], verdicts: Sequence[Verdict], controls: Sequence[Verdict] = ()
) -> list[Picture]:
    """The figures that the entries allow."""
    if not verdicts:
        return []
    from astkit.widgets import comparison_plots

    metric, dense = verdicts[0].metric, by_arm(entries)[DENSE]
    figures = []
    if any(each.n for each in [*controls, *verdicts]):
        figures.append(draw_values(entries, metric, verdicts[0].higher, verdicts, controls))
    curves = [
        {"arm": entry["policy"], "seed": entry["seed"], "value": point[-1]}
        | {
            key: cost_share(cost, dense[entry["seed"]][key])
            for key, cost in zip(COSTS, point, strict=False)
        }
        for entry in entries
        if is_finite(entry["value"]) and is_finite(dense.get(entry["seed"], {}).get("value"))
        for point in entry["curve"]
        if is_finite(point[-1])
    ]
    if curves and any(all(row[key] is not None for row in curves) for key in COSTS):
        held_out = next(iter(dense.values())).get("validation_rows")
        figures.append(comparison_plots.values_by_cost(curves, metric, held_out))
    return figures


def draw_values(
    entries: Sequence[Entry],
    metric: str,
    higher: bool,
    verdicts: Sequence[Verdict] = (),
    controls: Sequence[Verdict] = (),
    names: Sequence[str] = (),
) -> Picture:
    """The value of each run, with what ``verdicts`` and ``controls`` say beside the methods.

    ``names``: the methods that there will be, while runs are to come.
    """
    from astkit.widgets import comparison_plots

    scale = unit(metric)[0]
    known = [entry for entry in entries if is_finite(entry["value"])]
    runs = [
        {"arm": run["policy"], "seed": run["seed"], "value": run["value"] * scale} for run in known
    ]
    beside: dict[str, dict[str, Any]] = {}
    for each in [*controls, *verdicts]:
        ends = [(each.dense + end) * scale for end in each.difference[1:3]]
        beside[each.policy] = {"gap": each.amount(each.difference), "ends": ends}
    for each in verdicts:
        beside[each.policy] |= {"words": _outcome(each), "bold": bool(each.better)}
    arms = dict.fromkeys([*names, *(run["policy"] for run in known)])
    last = {each.policy for each in verdicts if unequal(each.flops)}  # of other budgets
    names = sorted(arms, key=last.__contains__)
    quantity = f"{metric} (%)" if scale > 1 else metric
    figure = comparison_plots.values_by_method(runs, beside, quantity, higher, names)
    if verdicts:
        message, below = headline(verdicts, by_arm(known))
        figure.headline(message)
        figure.axes[0].set_title(below, loc="left", size=9)
    return figure


def headline(verdicts: Sequence[Verdict], arms: Mapping[str, Arm]) -> tuple[str, str]:
    """What the figure shows, and a line below it: of the best policy, or of the only one."""
    from astkit.widgets.comparison_plots import in_digits

    known = [each for each in verdicts if each.n]
    better = [each for each in known if each.better]
    if not better and len(known) != 1:
        return "No policy is shown to be better than dense training", ""
    lead = max(better or known, key=lambda each: abs(each.difference.mean))
    both = pairs(arms[lead.policy], arms[DENSE])
    beats = operator.gt if lead.higher else operator.lt
    won = sum(beats(run["value"], other["value"]) for run, other in both)
    below = f"better than dense training in {won} of {len(both)} seeds, {lead.cost}"
    scale = unit(lead.metric)[0]
    means = [scale * mean for mean in (lead.dense, lead.dense + lead.difference.mean)]
    dense, value = (in_digits(mean, means) + " %" * (scale > 1) for mean in means)
    if better:
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
