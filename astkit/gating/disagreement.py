"""Uncertainty as disagreement between the model and its exponential moving average (EMA)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from astkit.batch import call
from astkit.gating.scored import Scored, evaluating
from astkit.gating.significance import ContextScore
from astkit.gating.uncertainty import class_logits, log_shares


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence per row, in nats, from 0 to ``ln 2``: ``[batch]``.

    The inputs are log-probabilities ``[batch, classes]``. Source: Lin, "Divergence
    Measures Based on the Shannon Entropy" (1991).
    """
    p, q, apart = first.exp(), second.exp(), (first - second).abs()
    # p log(p/m) + q log(q/m) with m = (p + q) / 2, in a form that is exactly 0 for equal shares
    nearer = -torch.log1p(torch.expm1(-apart) / 2)
    terms = (p + q) * nearer - torch.minimum(p, q) * apart
    return (terms.sum(1) / 2).clamp_min(0)  # rounding can give values below 0


class Disagreement(ContextScore):
    """Jensen-Shannon divergence, in nats, between the model and its EMA teacher.

    The teacher starts as a copy of the model. Before each scoring call (each row, in sample-by-
    sample training) its parameters are updated by ``teacher += (1 - decay) * (model - teacher)``
    and its buffers are copied. The first call returns 0. Source of the teacher: Tarvainen and
    Valpola, "Mean teachers are better role models" (NeurIPS 2017); of the score, the mean
    divergence of a committee of two from its average vote: McCallum and Nigam, "Employing EM and
    Pool-Based Active Learning for Text Classification" (ICML 1998).

    Costs one additional forward pass per sample. Labels are not used. The state dict contains the
    teacher's parameters.

    Raises ``ValueError`` for a ``decay`` outside (0, 1).
    """

    extra_forwards = 1

    def __init__(self, decay: float = 0.99) -> None:
        if not 0 < decay < 1:
            raise ValueError(
                f"decay is {decay}, but it must lie between 0 and 1: 0.99 averages over about 100"
                " scoring calls"
            )
        self.decay = decay
        self.teacher: nn.Module | None = None
        self._saved: dict[str, Tensor] = {}  # parameters of a teacher that is not built yet

    def score(self, batch: Scored) -> Tensor:
        if batch.model is None:
            raise ValueError(
                "Disagreement compares the model with a teacher, but got no model: score with"
                " gate(model, x, y)"
            )
        rows, first = batch.rows, self.teacher is None and not self._saved
        student = log_shares(class_logits(batch.outputs, rows))
        teacher = self._follow(getattr(batch.model, "_orig_mod", batch.model))  # if compiled
        with evaluating(teacher, student.device):
            outputs = call(teacher, batch.inputs, batch.targets)
        # at the first call only rounding errors differ; they must not set the threshold's scale
        shares = student if first else log_shares(class_logits(outputs, rows))
        return jensen_shannon(shares, student)

    def _follow(self, model: nn.Module) -> nn.Module:
        """Update the teacher of ``model`` and return it."""
        if self.teacher is None:
            # without requires_grad, autocast does not cache the weights, which change here
            self.teacher = copy.deepcopy(model).eval().requires_grad_(False)
            self.teacher.load_state_dict(self._saved, strict=False)
        own: list[Tensor] = [*self.teacher.parameters()]
        other: list[Tensor] = [*model.parameters()]
        if [p.shape for p in own] != [p.shape for p in other]:
            raise ValueError(
                "the teacher was built from a model with other parameters: give each model its own"
                " gate"
            )
        with torch.no_grad():
            torch._foreach_lerp_(own, other, 1.0 - self.decay)
            for buffer, present in zip(self.teacher.buffers(), model.buffers(), strict=True):
                buffer.copy_(present)
        return self.teacher

    def state_dict(self) -> dict[str, Any]:
        weights = self._saved if self.teacher is None else dict(self.teacher.named_parameters())
        return {"teacher": {n: w.detach().clone() for n, w in weights.items()}} if weights else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher = None
        self._saved = {name: weight.clone() for name, weight in state["teacher"].items()}
