"""Weighted sums of scores, from objects or from text such as "0.7*loss + 0.3*contrast"."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor

from astkit.gating.losses import Criterion, cross_entropy_rows
from astkit.gating.scored import Scored
from astkit.gating.significance import (
    ContextScore,
    RelativeScore,
    Score,
    finite_only,
    score_rows,
)
from astkit.names import resolve

_TERM = re.compile(r"\s*(?:(\d+\.?\d*|\.\d+)\s*\*)?\s*([a-z]\w*)\s*", re.ASCII)


def named_score(text: str, criterion: Criterion = cross_entropy_rows) -> Score:
    """Builds a score from a registered name or a weighted sum such as "loss + 0.5*el2n".

    A term is ``name`` or ``weight*name`` with a weight of 0 or more. See `WeightedSum`.

    Raises ``ValueError`` for an unknown name or an invalid sum.
    """
    if not set(text) & set("+*-"):
        return _registered(text, criterion)
    matches = [_TERM.fullmatch(term) for term in text.split("+")]
    terms = [(float(m[1] or 1), _registered(m[2], criterion)) for m in matches if m]
    if len(terms) < len(matches):
        raise ValueError(
            f"score {text!r} is not a weighted sum: join terms such as 0.7*loss by +, with weights"
            " of 0 or more"
        )
    return WeightedSum(terms)


def _registered(name: str, criterion: Criterion) -> Score:
    made = resolve("score", name)
    if not isinstance(made, type):  # a plain function needs no construction
        return cast(Score, made)
    options = {"criterion": criterion} if "criterion" in signature(made).parameters else {}
    return cast(Score, made(**options))


class WeightedSum(RelativeScore):
    """``sum(weight * score / mean(score))``; means are taken over the finite rows of the batch.

    Dividing by the mean makes the weights independent of the scale of each term. If a mean is 0,
    the normalised score of rows above 0 is 1. Rows with a non-finite term get the score NaN. Unlike
    the original's rule (`LossAndContrast`), values are not clamped.

    Args:
        terms: pairs of a weight (0 or more) and a non-negative score that is not a `RelativeScore`.
            Terms with weight 0 are dropped.

    Raises ``ValueError`` for invalid weights or terms, and for a term with negative values.
    """

    def __init__(self, terms: Sequence[tuple[float, Score]]) -> None:
        weights = [weight for weight, _ in terms]
        if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ValueError(
                f"a weighted score got the weights {weights}: give numbers of 0 or more, at least"
                " one of them above 0"
            )
        self.terms = [(float(weight), term) for weight, term in terms if weight > 0]
        scores = [term for _, term in self.terms]
        for term in scores:
            if isinstance(term, RelativeScore):
                raise ValueError(
                    f"{_name(term)} compares a row with its batch already, so it cannot be a term"
                    " of a weighted score: use a score of single rows, such as loss or contrast"
                )
        self.needs_index = any(getattr(term, "needs_index", False) for term in scores)
        self._contextual = [term for term in scores if isinstance(term, ContextScore)]

    def features(self, batch: Scored) -> Tensor:
        columns = [score_rows(term, batch) for _, term in self.terms]
        columns = [each if each.dtype == torch.float64 else each.float() for each in columns]
        features = torch.stack(columns, dim=1)
        lowest = features.nan_to_num(0.0, 0.0, 0.0).amin(0).tolist()
        for (_, term), value in zip(self.terms, lowest, strict=True):
            if value < 0:
                raise ValueError(
                    f"{_name(term)} gave {value:g}, but a weighted score divides each term by its"
                    " mean, so no term may be negative: use a score and a criterion that are 0 or"
                    " more"
                )
        return features

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        scale = torch.where(reference > 0, reference, features)
        share = torch.where(scale > 0, features / scale, 0.0)
        weights = share.new_tensor([weight for weight, _ in self.terms])
        return finite_only((share * weights).sum(1), features)

    def state_dict(self) -> dict[str, Any]:
        states = [term.state_dict() for term in self._contextual]
        return {"terms": states} if any(states) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for term, own in zip(self._contextual, state["terms"], strict=True):
            if own:
                term.load_state_dict(own)


def _name(term: object) -> str:
    return str(getattr(term, "__name__", type(term).__name__))
