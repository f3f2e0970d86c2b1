"""Visits: what training and scoring found out about samples, and their way to the policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from astkit import distributed


@dataclass(frozen=True)
class Visit:
    """Per-sample results of training or scoring; a policy receives tensors on the CPU.

    Example::

        from astkit import Policy

        class Watching(Policy):
            needs_index = True

            def observe(self, visit):
                print(visit.index[:3], visit.losses[:3])
    """

    index: Tensor | None  #: int64 ``[n]``, data set indices, if the data provide them
    losses: Tensor  #: ``[n]``, before the optimizer step
    # None unless the policy needs_outputs and the task has classes:
    correct: Tensor | None = None  #: bool ``[n]``, whether the most likely class is the label
    confidence: Tensor | None = None  #: ``[n]``, the largest class probability
    label_probability: Tensor | None = None  #: ``[n]``, the probability of the label
    trained: bool = True  #: false for scoring only


_TYPES = {
    "index": torch.int64,
    "losses": torch.float32,
    "correct": torch.uint8,
    "confidence": torch.float32,
    "label_probability": torch.float32,
}


class Visits:
    """Visits that the policy has not observed yet, on the device where they were computed.

    `take` copies all of them at once. With several processes it also exchanges them: the visits of
    all processes to one batch become one visit, with the rows in the order of the processes, so
    that every process observes the rows of global batches in the same order.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Visit]] = []
        self._batches = 0

    def put(self, *visits: Visit) -> None:
        """Keep the ``visits`` to one batch, of which every process has a part.

        At most one of them was trained on; empty ones may be left out.
        """
        self._waiting += [(2 * self._batches + (not each.trained), each) for each in visits]
        self._batches += 1

    def take(self) -> list[Visit]:
        """The visits since the last call, in the order of the batches, on the CPU.

        Every process must call it. Each sends 16 bytes per visit, and per row at most the index (8
        bytes), loss, confidence and label probability (4 each) and correctness (1).
        """
        if not self._batches:
            return []
        waiting, self._waiting, self._batches = self._waiting, [], 0
        sizes = [(key, len(visit.losses)) for key, visit in waiting]
        columns = [torch.tensor(sizes, dtype=torch.int64).flatten()]
        for name, dtype in _TYPES.items():
            parts = [getattr(visit, name) for _, visit in waiting]
            known = [part.detach().to(dtype) for part in parts if part is not None]
            columns.append(torch.cat(known) if known else torch.empty(0, dtype=dtype))
        visits: dict[int, list[tuple[Tensor, ...]]] = {}
        for head, *process in distributed.gather(*columns):
            keys, lengths = head[::2].tolist(), head[1::2].tolist()
            rows = [each.split(lengths) if len(each) else [each] * len(keys) for each in process]
            for key, *visit in zip(keys, *rows, strict=True):
                visits.setdefault(key, []).append(tuple(visit))
        return [_joined(key, visits[key]) for key in sorted(visits)]


def _joined(key: int, visits: list[tuple[Tensor, ...]]) -> Visit:
    """One visit from those of all processes to a batch."""
    joined = (torch.cat(part) for part in zip(*visits, strict=True))
    known: dict[str, Any] = {"index": None, "losses": torch.empty(0)}
    known |= {name: part for name, part in zip(_TYPES, joined, strict=True) if len(part)}
    if "correct" in known:
        known["correct"] = known["correct"].bool()
    return Visit(**known, trained=key % 2 == 0)
