"""A data decision carried out: how often each of old rows and target rows is to be drawn.

Of tables `astkit.forecast` decides; of other data the proxies of `powers`, which are fitted to old
rows and some of the target's, and judged on the rest of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astkit.aim.decisions import (
    BOTH,
    OLD,
    TARGET,
    WEIGHTED,
    Decision,
    Judge,
    Judgement,
    Z,
    choose,
    forward_folds,
    random_folds,
    ratio_by_trees,
)
from astkit.aim.forecast import SAID, Forecast, arrays, forecast, left_out
from astkit.aim.pair import Pair, units
from astkit.aim.powers import proxy_of
from astkit.datasets.table import Table

Array = np.ndarray[Any, Any]
WeightsOf = Callable[[Tensor, Tensor], Tensor]
"""``(rows of the target, old rows)``: weights of these, float64 ``[n]``, shaped by the former."""

TRIED = (OLD, BOTH, Decision(times=4), TARGET)
"""Without weights; a proxy of features is no guide to larger shares."""


@dataclass(frozen=True)
class Share:
    """A decision about joined data.

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


def share_of_tables(old: Table, new: Table) -> Share:
    """What `astkit.forecast` decides for two tables, carried out.

    A model keeps the columns that a decision leaves out.
    """
    found = forecast(old, new, in_order=new.in_order, date=new.date)
    decision, sentence = replace(found.decision, without=()), found.sentence
    if found.doubt:
        decision, sentence = BOTH, f"{sentence}: both are trained on"
    ratio = _ratio(old, new, found) if decision.weighted else None
    weights = weights_of(decision, len(old), len(new), ratio)
    lines: Any = found.table.to_dict("records")
    return Share(decision, sentence, weights, lines)


def weigh_table(old: Table, new: Table, seed: int = 0) -> tuple[Tensor | None, Forecast]:
    """Weights of old rows alone, float64 ``[N]`` with mean 1, if a forecast is sure of their gain.

    ``None`` for all rows alike. No other decision is judged.
    """
    tried = OLD, WEIGHTED[0]
    found = forecast(old, new, in_order=new.in_order, date=new.date, decisions=tried, seed=seed)
    if found.decision != tried[1] or found.doubt:
        return None, found
    return torch.from_numpy(_ratio(old, new, found)), found


def _ratio(old: Table, new: Table, found: Forecast) -> Array:
    """Weights of all old rows by inputs, without the telling columns, and label; mean 1."""
    kept = np.array([not left_out(name, found.telling) for name in old.names])
    return ratio_by_trees(arrays(old), arrays(new), kept, 0)(np.arange(len(new)))


def share_of_rows(pair: Pair, both: Pair, ratio: WeightsOf | None) -> Share:
    """What proxies on features decide, carried out.

    Args:
        pair: old rows and those of the target.
        both: the same rows joined, and those of the target.
        ratio: weights of old rows; ``None`` where these are like the target's.
    """
    count, everything = len(pair.target), torch.arange(len(pair.target))
    # of long texts a proxy reads the first rows alone
    fitted = torch.cat([len(pair.train) + everything, pair.sample])
    proxy = proxy_of(both, fitted)
    if proxy is None:
        return unknown(len(pair.train), count, "no proxy knows such targets")
    fit, unit = proxy
    own, in_order = units(pair.target).numpy(), pair.target.block > 1
    folds = forward_folds(own) if in_order else random_folds(own, pair.seed)
    sizes = np.zeros(len(pair.sample)), np.zeros(count)

    def of_fold(rows: Array) -> Array:
        assert ratio is not None
        return ratio(torch.from_numpy(rows), pair.sample).numpy()

    judge = _RowsJudge(
        old=(pair.sample.numpy(), sizes[0]),
        target=(everything.numpy(), sizes[1]),
        names=(),
        proxy=fit,  # type: ignore[arg-type]  # of weights alone
        losses=np.subtract,
        ratio=of_fold,
        folds=folds,
        units=own,
        unit=unit,
        forward=in_order,
        times=len(pair.train) / len(pair.sample),
    )
    found = judge.judge([*TRIED, *(() if ratio is None else WEIGHTED)])
    chosen, gain, error = choose(found, judge)
    decision, of_old = chosen.decision, None
    if decision.weighted and ratio is not None:
        of_old = ratio(everything, torch.arange(len(pair.train))).numpy()
    later = "later" if in_order else "other"
    sentence = _sentence(decision, gain, error, unit, f"a head on features, on {later} rows of it")
    weights = weights_of(decision, len(pair.train), count, of_old)
    return Share(decision, sentence, weights, [_line(each, unit, chosen) for each in found])


def unknown(old: int, new: int, reason: str) -> Share:
    """The answer where nothing can be judged: both, see `decisions.choose`."""
    sentence = f"forecast: cannot tell, {reason}: train on both"
    return Share(BOTH, sentence, weights_of(BOTH, old, new))


def weights_of(decision: Decision, old: int, new: int, ratio: Array | None = None) -> Tensor | None:
    """How often each of ``old`` and ``new`` rows is drawn, float64 ``[old + new]`` with mean 1.

    ``ratio``: of the old rows, mean 1, where these are weighted. ``None`` for `OLD`.
    """
    if decision == OLD:
        return None
    of_old = torch.ones(old, dtype=torch.float64) if ratio is None else torch.from_numpy(ratio)
    of_new = torch.full((new,), float(decision.times), dtype=torch.float64)
    both = torch.cat([of_old.double() * decision.old, of_new])
    return both / both.mean()


class _RowsJudge(Judge):
    """Judges by a proxy of features: a function of weights of all rows, those not fitted at 0."""

    def _losses(self, decision: Decision, ratio: Array | None, fit: Array, judge: Array) -> Array:
        old = np.ones(len(self.old[1]))
        if decision.weighted and ratio is not None:
            old = ratio
        new = np.zeros(len(self.target[1]))
        new[fit] = decision.times
        fit_all: Any = self.proxy
        losses: Array = fit_all(np.concatenate([new, old * decision.old * self.times]))
        return losses[judge]


def _sentence(decision: Decision, gain: float, error: float, unit: str, judged: str) -> str:
    said = SAID.get(decision.name, f"train on {decision.name}")
    if decision == OLD:
        return f"forecast: {said}: nothing else is better, judged by {judged}"
    digits = 2 if unit.startswith("bits") else 1
    low, high = gain - Z * error, gain + Z * error
    ends = f"[{low:.{digits}f}, {high:.{digits}f}]"
    if low <= 0:
        return f"forecast: {said}, whose gain cannot be told yet {ends} {unit}, judged by {judged}"
    return f"forecast: {said}: gains {gain:.{digits}f} {ends} {unit}, judged by {judged}"


def _line(one: Judgement, unit: str, chosen: Judgement) -> dict[str, Any]:
    """A line of the table, as `Forecast` has it."""
    return {
        "decision": one.decision.name,
        "gain": round(one.gain, 2),
        "low": round(one.low, 2),
        "high": round(one.high, 2),
        "unit": unit,
        "proxy": "head on features",
        "chosen": one is chosen,
    }
