"""Selection before loading: planning of rounds, and a sampler for torch's DataLoader."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from astkit import distributed, rng
from astkit.gating.data_facts import class_labels as class_labels  # conditions import it here
from astkit.gating.data_facts import data_facts
from astkit.gating.selection import Selection

if TYPE_CHECKING:
    from astkit.gating.policy import Policy


@dataclass(frozen=True)
class RunInfo:
    """State of a run passed to ``Policy.plan``.

    Attributes:
        samples: number of rows of the data set.
        rows: int64, the shuffled candidates of the round.
        epoch, round: counted from 0; ``round`` restarts in each epoch.
        progress: fraction of the budget spent, in [0, 1].
        labels: int64 ``[samples]`` if the data set has class labels, else ``None``.
        seed: random seed of the policy; combine with epoch and round.
        validation_labels: int64, those of the validation data if known, else ``None``.
        distinct: number of different rows of the data set, where known and
            ``Policy.needs_distinct``, else ``None``.
    """

    samples: int
    rows: Tensor
    epoch: int
    round: int
    progress: float
    labels: Tensor | None = None
    seed: int = 0
    validation_labels: Tensor | None = None
    distinct: int | None = None


def plan_round(
    policy: Policy,
    order: Tensor,
    facts: dict[str, Any],
    *,
    epoch: int,
    number: int,
    progress: float,
    dense: bool = False,
) -> Selection:
    """Selection of round ``number`` of an epoch with the shuffled candidates ``order``.

    ``facts``: see `data_facts`. With ``dense`` the policy is not called, and all are selected.
    """
    first, last = (len(order) * each // policy.rounds for each in (number, number + 1))
    rows = order[first:last]
    run = RunInfo(
        rows=rows, epoch=epoch, round=number, progress=progress, seed=policy.seed, **facts
    )
    chosen = None if dense else policy.plan(run)
    if chosen is None:
        return Selection(rows, candidates=len(rows))
    return chosen.check(run.samples, policy)


class PolicySampler(Sampler[int]):
    """Yields the rows planned by ``policy``; one iteration is an epoch.

    Batches prefetched by workers keep the weights of the plan they were drawn from. Resuming is
    exact between two iterations: save ``policy.state_dict()`` there. Within an iteration, save
    ``iteration()`` as well and assign it to ``policy.interrupted`` on resume: the next iteration
    continues after the last row passed to ``mean``.

    With several processes, each plans the same rounds and yields every W-th of their rows; if the
    rows of an iteration do not divide by W, some processes yield one more row, with weight 0.

    Arguments: a policy that overrides ``plan``, and those of `Policy.sampler`.

    Attributes:
        score_only: int64: rows of the latest plan to score without training.
        lr_factor: learning rate factor of the latest plan.
        progress: returns the completed fraction of the run; by default computed from ``epochs``.

    Raises ``ValueError`` for data without a length.
    """

    def __init__(self, policy: Policy, data: Any, epochs: float, validation: Any = None) -> None:
        try:
            samples = len(data)
        except TypeError:  # a DataLoader has a method that raises, if its data set is a stream
            samples = 0
        if not samples:
            raise ValueError(
                f"data is a {type(data).__name__} without rows or without a length, so no rows can"
                " be selected before loading: pass a map-style data set, or use a policy that"
                " selects after scoring, such as Gate"
            )
        if not epochs > 0:
            raise ValueError(f"epochs is {epochs}: give the planned number of iterations, above 0")
        self.policy, self.epochs = policy, epochs
        self.facts = data_facts(policy, data, samples, validation)
        self.progress: Callable[[], float] | None = None
        self._length = -(-policy.expected_rows(samples) // distributed.world())
        self._forget()

    def _forget(self) -> None:
        """Reset the state at the start of an iteration."""
        self.lr_factor = 1.0
        self.score_only = torch.empty(0, dtype=torch.int64)
        self._rows = torch.empty(0, dtype=torch.int64)  # rows drawn in this iteration
        self._scale = torch.empty(0)  # scale of their losses
        self._used = torch.empty(0, dtype=torch.bool)
        self._repeats = 0  # processes whose last row repeats that of another one, with weight 0
        self._left, self._left_scale = self._rows, self._scale  # planned, and in no share yet
        self._next = 0  # the first row after the latest batch
        self._planned = 0  # rounds planned in this iteration
        self._done = 0  # rows trained on before it was interrupted

    def iteration(self) -> dict[str, Any]:
        """State of the current iteration: its rounds, and the rows of all processes that are left.

        With several processes, each must call it.
        """
        world, left = distributed.world(), slice(self._next, None)
        shares = distributed.gather(self._rows[left], self._scale[left])
        rows, scale = (torch.stack(parts, 1).flatten() for parts in zip(*shares, strict=True))
        real = max(0, len(rows) - self._repeats)
        return {
            "rows": torch.cat([rows[:real], self._left]),
            "scale": torch.cat([scale[:real], self._left_scale]),
            "done": world * (self._done + self._next),
            "planned": self._planned,
            "lr_factor": self.lr_factor,
            "score_only": self.score_only,
        }

    def __len__(self) -> int:
        """Rows of the latest complete epoch, in this process; before that, the policy's estimate.

        Raises ``TypeError`` if ``policy.sized`` is false.
        """
        if not self.policy.sized:
            raise TypeError("the length of an epoch is known at its end")
        return self._length

    def __iter__(self) -> Iterator[int]:
        policy = self.policy
        state, policy.interrupted = policy.interrupted, None
        self._forget()
        policy.exchange()
        if state is None:
            if self.progress is None and policy.begun == self.epochs:
                warnings.warn(
                    f"{type(policy).__name__} has completed its {self.epochs:g} epochs, so its"
                    " schedule stays at the final value: raise epochs",
                    stacklevel=2,
                )
            policy.begun += 1
        else:
            self._planned, self._done = state["planned"], state["done"] // distributed.world()
            self.lr_factor, self.score_only = state["lr_factor"], state["score_only"]
            yield from self._draw(state["rows"], state["scale"])
        epoch = policy.begun - 1
        order = rng.permutation(self.facts["samples"], policy.seed, "order", epoch)
        while self._planned < policy.rounds:
            policy.exchange()
            number, self._planned = self._planned, self._planned + 1
            spent = (epoch + number / policy.rounds) / self.epochs
            chosen = plan_round(
                policy,
                order,
                self.facts,
                epoch=epoch,
                number=number,
                progress=min(1.0, spent if self.progress is None else self.progress()),
            )
            self.lr_factor = chosen.lr_factor
            self.score_only = order[:0] if chosen.score_only is None else chosen.score_only
            yield from self._draw(chosen.index, chosen.scale.float())
        self._length = self._done + len(self._rows)

    def _draw(self, rows: Tensor, scale: Tensor) -> list[int]:
        """Append the share of this process in a plan; returns its rows."""
        world, last = distributed.world(), self._planned == self.policy.rounds
        rows, scale = torch.cat([self._left, rows]), torch.cat([self._left_scale, scale])
        planned = len(rows) if last else len(rows) // world * world
        self._left, self._left_scale = rows[planned:], scale[planned:]
        self._repeats = -planned % world
        mine = slice(distributed.rank(), None, world)
        rows, scale = rows[:planned], scale[:planned]
        rows = torch.cat([rows, rows[-1:].expand(self._repeats)])[mine]
        scale = torch.cat([scale, torch.zeros(self._repeats)])[mine]
        self._rows = torch.cat([self._rows, rows])
        self._scale = torch.cat([self._scale, scale])
        self._used = torch.cat([self._used, torch.zeros(len(rows), dtype=torch.bool)])
        return rows.tolist()

    def complete(self, size: int) -> bool:
        """Whether fewer than ``size`` rows of this iteration were not passed to ``mean`` yet."""
        left = len(self._used) - int(self._used.sum())
        return self._planned == self.policy.rounds and left < size

    def mean(self, losses: Tensor, index: Tensor) -> Tensor:
        """``sum(scale * loss) / rows`` of a drawn batch.

        With several processes, ``rows`` is the mean number of rows that they pass for this batch,
        without those of weight 0.

        Raises ``ValueError`` for rows that were not drawn in this iteration or are used already.
        """
        if losses.shape != index.shape or losses.ndim != 1:
            raise ValueError(
                f"losses has shape {list(losses.shape)} and index {list(index.shape)}: pass one"
                " loss and one index per row, from a criterion built with reduction='none'"
            )
        part = self._find(index.detach().cpu())
        # not by scale_of: scales are float32, losses may be float64
        return (losses * self._scale[part].to(losses.device)).sum() / self._count(part)

    def scale_of(self, index: Tensor) -> Tensor:
        """Factors of the losses of a drawn batch in their mean, ``[rows]``; once per batch.

        Raises ``ValueError`` for rows that were not drawn in this iteration or are used already.
        """
        part = self._find(index.detach().cpu())
        return self._scale[part] * (len(index) / self._count(part))

    def _count(self, part: slice) -> float:
        """Mean number of rows of the processes in ``part``, without repeats."""
        world, rows = distributed.world(), part.stop - part.start
        repeats = self._repeats if part.stop == len(self._rows) else 0
        return (rows * world - repeats) / world

    def _find(self, index: Tensor) -> slice:
        """Positions of the rows ``index`` among the drawn ones; marks them as used."""
        count = len(index)

        def fits(first: int) -> bool:
            part = slice(first, first + count)
            return torch.equal(self._rows[part], index) and not bool(self._used[part].any())

        first = self._next
        if not fits(first):  # batches may be skipped or reordered
            places = (self._rows == index[:1]).nonzero().flatten().tolist()
            first = next(filter(fits, places), -1)
        if first < 0:
            raise ValueError(
                f"the {count} rows of this batch were not drawn by this sampler in this iteration:"
                " give the DataLoader indexed(data) and sampler=policy.sampler(data, ...), and pass"
                " each batch's index once"
            )
        self._next = first + count
        self._used[first : self._next] = True
        return slice(first, self._next)
