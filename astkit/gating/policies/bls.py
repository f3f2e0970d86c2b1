"""Batch loss score: per-sample scores computed from mean batch losses only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from astkit.gating.controllers import SHARE, check_number
from astkit.gating.policies.infobatch import InfoBatch
from astkit.gating.policies.seta import SeTa
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection, Visit, as_policy


class BatchLossScore(Policy):
    """Runs InfoBatch or SeTa on ``s = alpha * s + (1 - alpha) * mean loss of the batch``.

    Scores start at 0. In a custom training loop that only has this mean, pass it instead of the
    losses: ``policy.mean(loss, index)`` multiplies it by the mean weight of the batch.

    Args:
        policy: InfoBatch or SeTa, as name, mapping or object; plans from the scores.
        alpha: decay of the exponential moving average, in [0, 1).
        seed: random seed of a policy given by name.
    """

    card = PolicyCard(
        source="Zhou et al., Batch Loss Score (BLS), CVPR 2026",
        cost="none: skipped samples are not loaded",
        bias="that of the inner policy; given only mean losses, the mean weight of each batch is"
        " applied",
        avoid="if per-sample losses are available: they are more informative",
    )
    needs_index = True

    def __init__(
        self,
        policy: InfoBatch | SeTa | str | Mapping[str, Any] = "infobatch",
        alpha: float = 0.7,
        seed: int = 0,
    ) -> None:
        made = as_policy(policy, seed)
        if not isinstance(made, InfoBatch | SeTa):
            raise ValueError(f"policy is {policy!r}: give one of 'infobatch' and 'seta'")
        self.policy, self.alpha, self.seed = policy, check_number("alpha", alpha, SHARE), seed
        self._planner = made

    def plan(self, run: RunInfo) -> Selection | None:
        self._planner.rounds = self.rounds
        if self._planner.losses is None:
            self._planner.losses = torch.zeros(run.samples)
        return self._planner.plan(run)

    def observe(self, visit: Visit) -> None:
        scores = self._planner.losses
        assert scores is not None
        assert visit.index is not None
        mean = visit.losses.mean()
        if mean.isfinite():
            new = self.alpha * scores[visit.index] + (1 - self.alpha) * mean
            self._planner.observe(replace(visit, losses=new))

    def mean(
        self, losses: Tensor, index: Tensor, outputs: Any = None, targets: Any = None
    ) -> Tensor:
        """The loss of a batch, 0-dim, from per-row losses or from their mean (0-dim)."""
        losses = losses.expand(len(index)) if losses.ndim == 0 else losses
        return super().mean(losses, index, outputs, targets)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "planner": self._planner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._planner.load_state_dict(state["planner"])
