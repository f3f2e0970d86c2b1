"""The rows of an epoch: planned by a policy in rounds, weighed, and drawn in order.

`Epoch` is what `Trainer` and the sampler of custom loops share; `PolicySampler` gives its rows to
torch's DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from astkit import distributed, rng
from astkit.checks import ABOVE_0, check_number
from astkit.datasets.batch import IGNORED
from astkit.datasets.facts import class_labels, labelled_rows
from astkit.datasets.joined import divide_joined
from astkit.datasets.loader import BatchSource, old_rows
from astkit.gating.selection import Selection, check_selection
from astkit.progress import warn

Features = Callable[[Tensor, str], Tensor]
"""``(rows, "data" or "validation")`` -> float32 ``[n, d]``, see `RunInfo.features`."""


@dataclass(frozen=True)
class RunInfo:
    """State of a run passed to ``Policy.plan``.

    Example::

        from astkit import Policy, Selection

        class Shrinking(Policy):
            def plan(self, run):  # all rows at first, half of them at the end
                kept = 1 - run.progress / 2
                return Selection(run.rows[: round(kept * len(run.rows))])

    Attributes:
        samples: number of rows of the data set; of `joined` data with those of the target, for a
            policy with ``draws_target``.
        rows: int64, the shuffled candidates of the round, never rows of a target.
        epoch: counted from 0; ``round``: counted from 0 in each epoch.
        progress: fraction of the budget spent, in [0, 1].
        labels: int64 ``[samples]``, if the data set has class labels; -100 for a row without one.
        classes: whether whole-number targets name classes, not counts or ages; ``None`` where it is
            not known.
        seed: of the policy; combine with epoch and round.
        data: the data set that is trained on; ``validation``: the validation data, if any.
        features: computes what the model in training finds in given rows of ``data`` or
            ``validation``: its last hidden layer, the loss and the entropy, in one counted forward
            pass; not in custom loops.
        budget: FLOPs that the run may spend, if these are its budget.
    """

    samples: int
    rows: Tensor
    epoch: int
    round: int
    progress: float
    labels: Tensor | None = None
    classes: bool | None = None
    seed: int = 0
    data: Any = field(default=None, repr=False)
    validation: Any = field(default=None, repr=False)
    features: Features | None = field(default=None, repr=False)
    budget: float | None = None

    @property
    def draws(self) -> int:
        """Rows of an epoch of dense training: all but those of a target, see `joined`."""
        return min(self.samples, old_rows(self.data, self.samples))

    @property
    def target(self) -> Any:
        """An earlier name of ``validation``; raises ``AttributeError``."""
        raise AttributeError(
            "RunInfo.target was the validation data: read run.validation, and rows of a target that"
            " may be trained on from run.data, the last ones after the first run.draws"
        )

    @property
    def joined(self) -> bool:
        """Whether the data hold rows of a target that may be trained on, see `joined`."""
        return self.draws < self.samples


class Epoch:
    """The rows of one epoch, planned round by round.

    A round has an equal part of the epoch's shuffled rows as candidates. Planned rows are appended
    to those of the rounds before, so that rows that filled no batch come first in the next round.

    ``planner`` is a `Policy`; ``None`` where all rows are taken in order, without a plan. For the
    other arguments see `RunInfo`. Of `joined` data a planner sees the old rows alone, unless it
    draws from those of the target too.

    Attributes:
        draws: rows of an epoch of dense training; ``samples``: those that the planner may draw.
        number: the epoch, counted from 0; ``rounds`` of it are ``planned``.
        rows: int64, the rows planned in this epoch so far, in the order of training.
        scale: float32, the factor on each row's loss in a mean over rows.
        classes: whether whole-number targets name classes; ``None`` where it is not known.
        ignored: the label of rows without one; ``None`` where the criterion tells them by a mask.
        labelled: which rows have a label, bool ``[samples]``, others are no candidates; ``None`` if
            all have, or labels cannot be read ahead.
        candidates: number of candidates of the latest round, and of the rounds just before it in
            which nothing was planned; ``share`` of them was planned.
    """

    def __init__(
        self, planner: Any, samples: int, data: Any = None, validation: Any = None
    ) -> None:
        self.planner, self.samples = planner, samples
        self.draws = min(samples, old_rows(data, samples))
        if planner is not None and not planner.draws_target and self.draws < samples:
            self.samples, data = self.draws, divide_joined(data)[0]
        self.rounds = 1 if planner is None else planner.rounds
        self.classes: bool | None = None
        self.ignored: int | None = None
        self.labelled: Tensor | None = None
        self._given: dict[str, Any] = {"data": data, "validation": validation}
        self.candidates, self.share = 0, 1.0
        self.start(0)

    def inform(self, features: Features | None, budget: float | None) -> None:
        """Give plans the features of the model in training, and the FLOPs of the run."""
        self._given |= {"features": features, "budget": budget}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a `RunInfo` holds besides the place in the run, as known at the first plan."""
        # unless it is known better, a policy that asks for classes finds the labels stored
        labels = class_labels(self._given["data"], self.classes is not False, self.ignored)
        if labels is not None and self.labelled is not None:
            labels = labels.masked_fill(~self.labelled, IGNORED)
        return {**self._given, "labels": labels, "classes": self.classes}

    def read_labels(self, classes: bool | None, ignored: int | None = IGNORED) -> None:
        """Read which rows have a label; see the attributes.

        Raises ``ValueError`` if no row has one.
        """
        self.classes, self.ignored = classes, ignored
        real = None if ignored is None else labelled_rows(self._given["data"], ignored)
        if real is None or len(real) != self.samples or bool(real.all()):
            real = None
        self.labelled = real
        if real is not None and not real.any():
            raise ValueError(
                f"all {self.samples} labels of the training data are {ignored}, which stands for no"
                " label: correct them, or give the criterion another ignore_index"
            )

    def start(self, number: int) -> None:
        """Forget the rows; epoch ``number`` is next."""
        self.number, self.planned = number, 0
        self.rows = torch.empty(0, dtype=torch.int64)
        self.scale = torch.empty(0)

    @property
    def complete(self) -> bool:
        """Whether all rounds are planned."""
        return self.planned >= self.rounds

    def plan(self, order: Tensor, progress: float) -> int:
        """Plan the next round; returns how many of its candidates need not be loaded.

        ``order``: int64 ``[draws]``, the shuffled rows of this epoch.
        """
        run = self.run_info(order, progress)
        chosen, rows = self.planner.plan(run), run.rows
        self.planned += 1
        if chosen is None:
            chosen = Selection(rows)
        chosen = check_selection(chosen, self.samples, self.planner).among(self.labelled)
        self.rows = torch.cat([self.rows, chosen.index])
        self.scale = torch.cat([self.scale, chosen.scale.float()])
        self.candidates = len(rows) + (0 if self.share else self.candidates)
        self.share = len(chosen) / max(1, self.candidates)
        return max(0, len(rows) - len(chosen))

    def run_info(self, order: Tensor, progress: float) -> RunInfo:
        """What the policy is told at the start of the next round; see `plan`."""
        first, end = (len(order) * part // self.rounds for part in (self.planned, self.planned + 1))
        place, rows = (self.number, self.planned, progress), order[first:end]
        if self.labelled is not None:
            rows = rows[self.labelled[rows]]
        return RunInfo(self.samples, rows, *place, seed=self.planner.seed, **self.facts)

    def occurrences(self, part: slice) -> Tensor | None:
        """How often each row of ``part`` came before in this epoch, int64; ``None`` for never."""
        order = self.rows.argsort(stable=True)
        ordered = self.rows[order]
        places = torch.arange(len(ordered))
        first = torch.searchsorted(ordered, ordered)
        if torch.equal(first, places):
            return None
        earlier = torch.empty_like(order)
        earlier[order] = places - first
        return earlier[part]

    def state_dict(self) -> dict[str, Any]:
        """The plan of this epoch so far."""
        state = {name: getattr(self, name) for name in ("number", "planned", "share", "candidates")}
        if self.planner is not None:  # otherwise the order of the data set
            state |= {"rows": self.rows, "scale": self.scale}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``."""
        for name, value in state.items():
            kind = type(getattr(self, name))
            setattr(self, name, value if kind is Tensor else kind(value))


class PolicySampler(Sampler[int]):
    """Yields the rows planned by ``policy``; one iteration is an epoch.

    Batches prefetched by workers keep the weights of the plan they were drawn from. Between two
    iterations ``policy.state_dict()`` is the whole state.

    With several processes, each plans the same rounds and yields every W-th of their rows. The last
    rows of an iteration, fewer than W, that do not divide by W are left out.

    Arguments: a policy that overrides ``plan``, those of `Policy.sampler`, and whether the policy
    ``learns`` from the losses.

    Attributes:
        epoch: the plan.
        progress: returns the completed fraction of the run; by default computed from ``epochs``.
        sized: whether it tells a length, an estimate if epochs differ.
    """

    def __init__(
        self,
        policy: Any,
        data: Any,
        epochs: float,
        validation: Any = None,
        learns: bool = False,
        classes: bool | None = None,
    ) -> None:
        samples = 0
        with suppress(TypeError):  # of a method of a data set that has no length
            samples = 0 if isinstance(data, DataLoader | BatchSource) else len(data)
        if not samples:
            raise ValueError(
                f"data is a {type(data).__name__}, a loader, or without rows or without a length:"
                " pass a map-style data set, or use a policy that selects after scoring, such as"
                " Gate"
            )
        self.policy, self.epochs = policy, check_number("epochs", epochs, ABOVE_0)
        self.epoch = Epoch(policy, samples, data, validation)
        self.epoch.read_labels(classes)
        self.progress: Callable[[], float] | None = None
        self.sized = True
        self._learns = learns
        labelled = self.epoch.labelled
        rows = self.epoch.draws if labelled is None else int(labelled[: self.epoch.draws].sum())
        self._length = policy.expected_rows(rows) // distributed.world()
        self._start()

    def _start(self) -> None:
        self.epoch.start(max(0, self.policy.begun - 1))
        self._share()

    def _share(self) -> None:
        """Divide the planned rows among the processes."""
        world = distributed.world()
        mine = slice(distributed.rank(), distributed.shared_evenly(len(self.epoch.rows)), world)
        self._rows, self._scale = self.epoch.rows[mine], self.epoch.scale[mine]
        if not self.epoch.planned:
            self._next = 0  # the first row after the latest batch

    def __len__(self) -> int:
        """Rows of the latest complete epoch, in this process; before that, the policy's estimate.

        Raises ``TypeError`` if ``sized`` is false.
        """
        if not self.sized:
            raise TypeError("the length of an epoch is known at its end")
        return self._length

    def __iter__(self) -> Iterator[int]:
        policy = self.policy
        if self.progress is None and policy.begun >= self.epochs:
            warn(
                f"{type(policy).__name__} has completed its {self.epochs:g} epochs, so its"
                " schedule stays at the final value: raise epochs"
            )
        learns = self._learns or bool((self.epoch.scale != 1).any())
        if len(self._rows) and not self._next and learns:
            warn(
                f"no batch of the last epoch of {type(policy).__name__} was passed to"
                " policy.mean, so it learns nothing and weighs no row: train with"
                " policy.mean(losses, index)"
            )
        policy.begun += 1
        self._start()
        order = rng.permutation(self.epoch.draws, policy.seed, "order", self.epoch.number)
        while not self.epoch.complete:
            policy.exchange()
            part = self.epoch.planned / self.epoch.rounds
            spent = min(1.0, (self.epoch.number + part) / self.epochs)
            self.epoch.plan(order, spent if self.progress is None else self.progress())
            before = len(self._rows)
            self._share()
            yield from _numbers(self._rows[before:])
        self._length = len(self._rows)

    def over(self, size: int) -> bool:
        """Whether fewer than ``size`` rows of this iteration were not trained on yet."""
        return self.epoch.complete and len(self._rows) - self._next < size

    def scale_of(self, index: Tensor) -> Tensor:
        """Factors of the losses of a drawn batch in their mean, ``[rows]``; once per batch.

        Raises ``ValueError`` for rows that were not drawn in this iteration or are used already.
        """
        index = index.detach().cpu()
        count, last = len(index), len(self._rows) - len(index)
        for first in range(self._next, last + 1):  # batches may be skipped
            if torch.equal(self._rows[first : first + count], index):
                if first > self._next and distributed.world() > 1:
                    raise ValueError(
                        f"{first - self._next} rows that this process drew were skipped: the"
                        " sampler yields the share of each process already, so leave the loader"
                        " out of what divides it again, such as accelerator.prepare"
                    )
                self._next = first + count
                return self._scale[first : self._next]
        raise ValueError(
            f"the {count} rows of this batch were not drawn by this sampler in this iteration:"
            " give the DataLoader indexed(data) and sampler=policy.sampler(data, ...), and pass"
            " each batch's index once, in their order"
        )


def _numbers(rows: Tensor) -> Iterator[int]:
    """``rows`` as whole numbers of Python; of millions, few exist at a time."""
    for part in rows.split(1 << 16):
        yield from part.tolist()
