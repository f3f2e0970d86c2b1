"""Record of the rows that a run trains on, and of their losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from astkit.batch import Batch
from astkit.files import write_atomic
from astkit.profiling import Ledger
from astkit.trainers import Learner, Step, StepResult

PARTS = 8  # equal parts of the budget for which the rows are counted separately


class Visits:
    """Wraps a step, counts how often it trains on each row and stores the last loss of each row.

    Args:
        step: the step that trains.
        rows: number of rows of the training data.
        progress: returns the fraction of the budget spent, in [0, 1].
        device: device of the training data's indices; recording does not synchronise with it.

    Attributes:
        trained: int32 ``[PARTS, rows]``: how often each row was trained on in each part.
        losses: float32 ``[rows]``: loss of the latest training or scoring; NaN before the first.
    """

    def __init__(
        self,
        step: Step,
        rows: int,
        progress: Callable[[], float],
        device: torch.device | str = "cpu",
    ) -> None:
        self.step, self.progress = step, progress
        if hasattr(step, "gate"):  # the policy, to which the trainer reports
            self.gate = step.gate
        self.trained = torch.zeros(PARTS, rows, dtype=torch.int32, device=device)
        self.losses = torch.full((rows,), torch.nan, device=device)

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        part = min(PARTS - 1, int(PARTS * self.progress()))
        result = self.step(learner, batch, weight, ledger)
        assert batch.index is not None
        index = batch.index.to(self.losses.device)
        seen, chosen = result.seen, result.selection
        if seen is not None and (seen.read or seen.known_losses is not None):
            self.losses[index] = seen.losses.to(self.losses)  # a gate reads the outputs only
        rows = index[result.rows.to(index.device)]
        count = torch.ones_like(rows, dtype=torch.int32)
        if chosen is not None and result.padded is not None:  # padding rows have weight 0
            count = (chosen.weight > 0).to(count)
        self.trained[part].index_add_(0, rows, count)
        self.losses[rows] = result.losses.to(self.losses)
        return result

    def save(self, path: Path) -> None:
        """Write both tensors to a safetensors file, atomically."""
        write_atomic(path, save({"trained": self.trained.cpu(), "losses": self.losses.cpu()}))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step.state_dict(), "trained": self.trained, "losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step.load_state_dict(state["step"])
        self.trained.copy_(state["trained"])
        self.losses.copy_(state["losses"])
