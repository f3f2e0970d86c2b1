"""A gate without device synchronisation: decisions and counters stay on the device."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from astkit.gating.gate import Gate, check_scores
from astkit.gating.losses import Criterion
from astkit.gating.selection import Selection
from astkit.gating.significance import Score


class DeviceGate(Gate):
    """A `Gate` that does not synchronise with the accelerator; also runs on the CPU.

    A `Gate` copies the scores of every batch to the host. Here all shapes depend only on the batch
    size, and nothing is transferred unless a value is read.

    Selects the highest scores of every batch, up to the quota given by the target rate, as
    ``Gate(controller="top_k")`` does, except that ties are broken by row order and the fallback
    takes the highest scores. Rows with a non-finite score are replaced by the highest-scoring row
    with weight 0; a batch without finite scores gives a NaN loss instead of an error.

    ``rate``, ``threshold`` and ``fallback`` of a selection and the counters of the gate are 0-dim
    tensors; reading one synchronises, so collect them and read many at once. The registered scores
    "loss", "contrast", "confidence", "entropy" and "margin" do not synchronise either.

    Arguments, but for ``controller``, and errors are those of `Gate`.
    """

    def __init__(
        self,
        target_rate: float = 0.1,
        score: str | Score = "loss",
        *,
        criterion: Criterion | None = None,
        fallback: int = 2,
        min_active: int = 1,
        seed: int = 0,
    ) -> None:
        options: dict[str, Any] = {"fallback": fallback, "min_active": min_active, "seed": seed}
        super().__init__(target_rate, score, "top_k", criterion=criterion, **options)

    def steer(self, name: str, value: Any) -> None:
        """Change ``target_rate``; raises ``ValueError`` for another name or an invalid rate."""
        if name == "controller":
            raise ValueError(
                f"controller cannot become {value!r}: a DeviceGate always takes the best rows; use"
                " a Gate to change controllers while training"
            )
        super().steer(name, value)

    def select(self, scores: Tensor) -> Selection:
        """Select rows by ``scores [batch]``.

        Raises ``ValueError`` unless there is one score per row.
        """
        check_scores(scores)
        scores = scores.detach() if scores.is_floating_point() else scores.float()
        batch, quota = len(scores), self._grant(len(scores))
        # room for the fallback rows: the size must not depend on the scores
        size = quota if quota >= self.min_active else max(quota, min(self.fallback, batch))
        is_finite = scores.isfinite()
        best, rows = scores.masked_fill(~is_finite, -math.inf).sort(descending=True, stable=True)
        finite = is_finite.sum()
        count = finite.clamp(max=quota)
        missing = (finite.clamp(max=self.fallback) - count).clamp(min=0)
        added = torch.where(count < self.min_active, missing, 0)
        counts = {"seen": finite, "active": count, "fallback_rows": added}
        for name, number in {**counts, "nonfinite": batch - finite}.items():
            setattr(self, name, getattr(self, name) + number)
        self.batches += 1
        held = -math.inf if self.target_rate == 1 else math.inf  # without a threshold row
        lowest = best[quota - 1] if quota and self.target_rate < 1 else best.new_full((), held)
        places = torch.arange(size, device=scores.device)
        return Selection(
            # weight 0 does not mask a NaN loss, so such a row is replaced by the best one
            index=torch.where(places < finite, rows[:size], rows[:1]),
            weight=(places < count + added).float(),
            candidates=batch,
            rate=cast(Any, count / finite),  # float32: MPS has no float64
            threshold=cast(Any, lowest),
            fallback=cast(Any, added > 0),
            target_rate=self.target_rate,
            active=places < count,
        )

    def state_dict(self) -> dict[str, Any]:
        """Like `Gate.state_dict`, with counters as numbers; synchronises with the device."""
        state = super().state_dict()
        return {k: v.item() if isinstance(v, Tensor) else v for k, v in state.items()}
