"""Visits: what training and scoring found out about samples, and their exchange."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from astkit import distributed


@dataclass(frozen=True)
class Visit:
    """Per-sample results of training or scoring.

    Attributes:
        index: int64 ``[n]`` data set indices, on the CPU; ``None`` if the data provide no indices.
        losses: ``[n]``, before the optimizer step.
        correct, confidence: bool ``[n]`` and largest class probability ``[n]`` if the policy
            ``needs_outputs`` and the task has classes, else ``None``.
        trained: true for training, false for scoring only.
    """

    index: Tensor | None
    losses: Tensor
    correct: Tensor | None = None
    confidence: Tensor | None = None
    trained: bool = True


def visit_of(
    index: Tensor | None,
    losses: Tensor,
    known: tuple[Tensor | None, Tensor | None],
    trained: bool,
) -> Visit:
    """A `Visit` with all tensors detached and on the CPU."""
    samples, correct, confidence = (
        None if part is None else part.detach().cpu() for part in (index, *known)
    )
    return Visit(samples, losses.detach().float().cpu(), correct, confidence, trained)


class Exchange:
    """Keeps the visits of this process until `take` exchanges them.

    The visits of all processes under one number become one visit, with the rows in the order of the
    processes. So ``Policy.observe`` is called with the rows of a global batch, in the same order in
    every process.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Visit]] = []
        self._batches = 0

    def put(self, *visits: Visit) -> None:
        """Keep the ``visits`` of one batch, of which every process has a part.

        At most one of them was trained on; empty ones may be left out.
        """
        self._waiting += [(2 * self._batches + (not each.trained), each) for each in visits]
        self._batches += 1

    def take(self) -> list[Visit]:
        """The visits of all processes since the last call, in the order of the batches.

        Every process must call it. Each sends 16 bytes per visit, and per row the index (8 bytes),
        the loss (4) and, for a policy that ``needs_outputs``, correctness (1) and confidence (4).
        """
        if not self._batches:
            return []
        waiting, self._waiting, self._batches = self._waiting, [], 0
        sizes = [(key, len(visit.losses)) for key, visit in waiting]
        columns = [
            torch.tensor(sizes, dtype=torch.int64).flatten(),
            _column([visit.index for _, visit in waiting], torch.int64),
            _column([visit.losses for _, visit in waiting], torch.float32),
            _column([visit.correct for _, visit in waiting], torch.uint8),
            _column([visit.confidence for _, visit in waiting], torch.float32),
        ]
        found: dict[int, list[tuple[Tensor, ...]]] = {}
        for head, *rows in distributed.gather(*columns):
            keys, lengths = head[::2].tolist(), head[1::2].tolist()
            parts = [row.split(lengths) if len(row) else [row] * len(keys) for row in rows]
            for key, *visit in zip(keys, *parts, strict=True):
                found.setdefault(key, []).append(tuple(visit))
        return [_joined(key, found[key]) for key in sorted(found)]


def _column(parts: list[Tensor | None], dtype: torch.dtype) -> Tensor:
    known = [part.to(dtype) for part in parts if part is not None]
    return torch.cat(known) if known else torch.empty(0, dtype=dtype)


def _joined(key: int, visits: list[tuple[Tensor, ...]]) -> Visit:
    index, losses, correct, confidence = (torch.cat(part) for part in zip(*visits, strict=True))
    return Visit(
        index if len(index) else None,
        losses,
        correct.bool() if len(correct) else None,
        confidence if len(confidence) else None,
        trained=key % 2 == 0,
    )
