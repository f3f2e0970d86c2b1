"""A data decision carried out: how often each of old rows and target rows is to be drawn.

Of tables `astkit.forecast` decides; of other data the proxies of `gains`, which are fitted to old
rows and some of the target's, and judged on the rest of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astkit.aim.decisions import (
    BOTH,
    OLD,
    PLAIN,
    WEIGHTED,
    Decision,
    Judge,
    answer,
    choose,
    folds_of,
)
from astkit.aim.forecast import Forecast, arrays, compared_inputs, forecast
from astkit.aim.gains import PROXIES, proxy_of
from astkit.aim.pair import Pair, units
from astkit.aim.proxies import ratio_by_trees
from astkit.datasets.dependence import Array
from astkit.datasets.table import Table

WeightsOf = Callable[[Tensor, Tensor], Tensor]
"""``(rows of the target, old rows)``: weights of these, float64 ``[n]``, shaped by the former."""


@dataclass(frozen=True)
class DataPlan:
    """A decision about joined data, carried out.

    Attributes:
        decision: what is trained on; ``sentence``: the answer in one line.
        weights: how often each of N old and M target rows is drawn, float64 ``[N + M]`` with mean
            1; ``None``: as in dense training, each old row once.
        table: a mapping for each decision that was judged, see `Forecast`.
        flops: of estimators on features; trees of a `Table` are timed.
    """

    decision: Decision
    sentence: str
    weights: Tensor | None
    table: Sequence[dict[str, Any]] = ()
    flops: float = 0.0


def plan_of_tables(old: Table, new: Table) -> DataPlan:
    """What `astkit.forecast` decides for two tables, carried out."""
    found = forecast(old, new)
    decision, sentence = found.decision, found.sentence
    if found.doubt:
        rows = "old rows" if decision == OLD else "both"
        sentence = f"{sentence}: {rows} are trained on"
    ratio = ratio_of_tables(old, new, found) if decision.weighted else None
    weights = times_drawn(decision, len(old), len(new), ratio)
    lines: Any = found.table.to_dict("records")
    return DataPlan(decision, sentence, weights, lines)


def ratio_of_tables(old: Table, new: Table, found: Forecast) -> Array:
    """Weights of old rows by label and columns that do not separate: float64 ``[N]``, mean 1."""
    kept = compared_inputs(old.names, found.separating)
    return ratio_by_trees(arrays(old), arrays(new), kept, 0)(np.arange(len(new)))


def plan_of_rows(pair: Pair, both: Pair, ratio: WeightsOf | None) -> DataPlan:
    """What proxies on features decide, carried out.

    Args:
        pair: old rows and those of the target.
        both: the same rows joined, and those of the target.
        ratio: weights of old rows; ``None`` where these are like the target's.
    """
    old, new = len(pair.train), len(pair.target)
    everything = torch.arange(new)
    # of long texts a proxy reads the first rows alone
    fitted = torch.cat([old + everything, pair.sample])
    proxy = proxy_of(both, fitted)
    if proxy is None:
        return plan_of_both(old, new, "no proxy knows such targets")
    own, in_order = units(pair.target).numpy(), pair.target.block > 1
    place = np.arange(len(fitted))[:, None]  # of the rows that a proxy may be fitted to
    none = np.zeros(len(fitted))

    def losses_of(x: Array, y: Array, weights: Array, others: Array) -> Array:
        every = none.copy()
        every[x[:, 0]] = weights
        return proxy.fit(every)[others[:, 0]]

    def of_fold(rows: Array) -> Array:
        assert ratio is not None
        return ratio(torch.from_numpy(rows), pair.sample).numpy()

    judge = Judge(
        old=(place[new:], none[new:]),
        target=(place[:new], none[:new]),
        proxy=losses_of,
        losses=np.subtract,
        ratio=of_fold,
        folds=folds_of(own, in_order, pair.seed),
        units=own,
        unit=proxy.unit,
        forward=in_order,
        rows_per_sample=old / len(pair.sample),
    )
    found = judge.judge([*PLAIN, *(() if ratio is None else WEIGHTED)])
    chosen, quoted = choose(found, judge)
    decision, of_old = chosen.decision, None
    if decision.weighted and ratio is not None:
        of_old = ratio(everything, torch.arange(old)).numpy()
    sentence = answer(quoted, judge.unit, judge.said(PROXIES[proxy.name]))
    weights = times_drawn(decision, old, new, of_old)
    lines = [each.line(judge.unit, proxy=proxy.name, chosen=each is chosen) for each in found]
    return DataPlan(decision, sentence, weights, lines)


def plan_of_both(old: int, new: int, reason: str) -> DataPlan:
    """The answer where nothing can be judged: both, see `decisions.choose`."""
    sentence = f"forecast: cannot tell, {reason}: train on both"
    return DataPlan(BOTH, sentence, times_drawn(BOTH, old, new))


def times_drawn(
    decision: Decision, old: int, new: int, ratio: Array | None = None
) -> Tensor | None:
    """How often each of ``old`` and ``new`` rows is drawn, float64 ``[old + new]`` with mean 1.

    ``ratio``: of the old rows, mean 1, where these are weighted. ``None`` for `OLD`.
    """
    if decision == OLD:
        return None
    of_old = torch.ones(old, dtype=torch.float64) if ratio is None else torch.from_numpy(ratio)
    of_new = torch.full((new,), float(decision.times), dtype=torch.float64)
    both = torch.cat([of_old.double() * decision.old, of_new])
    return both / both.mean()
