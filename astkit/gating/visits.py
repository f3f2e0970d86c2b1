"""Visits: what training and scoring found out about samples, and their way to the policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


class Visits:
    """Visits that the policy has not observed yet, on the device where they were computed.

    `take` copies all of them. With several processes it also exchanges them: the visits of all
    processes to one batch become one visit, with the rows in the order of the processes, so that
    every process observes the rows of global batches in the same order.
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

        Every process must call it.
        """
        if not self._batches:
            return []
        own = [(key, _on_cpu(visit)) for key, visit in self._waiting]
        self._waiting, self._batches = [], 0
        visits: dict[int, list[Visit]] = {}
        for process in distributed.gather(own):
            for key, visit in process:
                visits.setdefault(key, []).append(visit)
        return [_joined(visits[key]) for key in sorted(visits)]


def _on_cpu(visit: Visit) -> Visit:
    """``visit`` on the CPU, with numbers in float32."""
    copied: dict[str, Any] = {}
    for name, part in vars(visit).items():
        if isinstance(part, Tensor):
            host = part.detach().cpu()
            copied[name] = host.float() if host.is_floating_point() else host
    return replace(visit, **copied)


def _joined(visits: list[Visit]) -> Visit:
    """One visit from those of all processes to a batch."""
    first = visits[0]
    known = [name for name, part in vars(first).items() if isinstance(part, Tensor)]
    parts: Any = {name: torch.cat([getattr(each, name) for each in visits]) for name in known}
    return replace(first, **parts)
