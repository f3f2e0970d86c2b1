"""What a policy sees of a batch, and what it answers.

`Scored` is a batch with outputs and losses, once it is scored; `Selection` names the rows to train
on, with their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import filterfalse
from operator import attrgetter
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from astkit import distributed, rng
from astkit.datasets.batch import (
    Batch,
    call,
    count_rows,
    map_tensors,
    take_rows,
    targets_after,
    tensors,
)
from astkit.gating.losses import (
    Criterion,
    any_token,
    class_outputs,
    cross_entropy_rows,
    labelled_losses,
    labelled_tokens,
    labels_of,
    logits_of,
)
from astkit.progress import warn

Forward = Callable[[nn.Module, Batch], Any]
"""Outputs of a model for a batch, in the precision of the run."""

Count = Callable[[nn.Module, Batch], None]
"""Called as ``count(model, batch)`` for each pass, to count its cost."""


@dataclass(frozen=True)
class Selection:
    """Rows to train on, with the loss ``sum(weight * loss) / normaliser``.

    Example::

        chosen = Selection(torch.tensor([0, 2]), weight=torch.tensor([1.0, 3.0]))
        chosen.mean(criterion(model(x[chosen.index]), y[chosen.index])).backward()

    With several processes, a gate that selects no row of its share selects one with weight 0, since
    every process has to take part in each step.
    """

    index: Tensor  #: int64 ``[n]``, rows of the data set or of the batch; may repeat
    weight: Tensor = None  # type: ignore[assignment]  #: float ``[n]``, 0 or more; default 1
    #: divisor of the weighted sum; by default the sum of the weights. With the number of rows,
    #: weights such as 1 / rate give an unbiased gradient. In a plan it refers to all n rows: a
    #: batch of b of them divides by normaliser * b / n
    normaliser: float | Tensor | None = None
    candidates: int | None = None  #: number of rows of the batch
    measured_rate: float | Tensor | None = None  #: fraction of active ones, without fallback rows
    threshold: float | Tensor | None = None  #: of the scores; ``None`` without scoring
    rate: float | None = None  #: of the gate
    active: Tensor | None = None  #: bool ``[n]``, false for fallback rows; ``None`` if all are
    scores: Tensor | None = None  #: of all rows of the batch, as the gate compared them

    def __post_init__(self) -> None:
        if not isinstance(self.index, Tensor):
            raise ValueError(
                f"index of a Selection is a {type(self.index).__name__}: give int64 rows as a"
                " tensor of shape [n]"
            )
        if self.weight is None:
            weight = torch.ones(len(self.index), device=self.index.device)
            object.__setattr__(self, "weight", weight)

    def padded(self, row: int = 0) -> Selection:
        """One row of the batch with weight 0, in place of an empty selection."""
        index, weight = self.index.new_full((1,), row), self.weight.new_zeros(1)
        return replace(self, index=index, weight=weight, active=torch.zeros_like(index).bool())

    def among(self, labelled: Tensor | None) -> Selection:
        """The planned rows that are ``labelled`` (bool, of all rows; ``None``: all are)."""
        if labelled is None or bool((kept := labelled[self.index]).all()):
            return self
        total = None if self.normaliser is None else self.normaliser * float(kept.float().mean())
        return Selection(self.index[kept], self.weight[kept], total)

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        of = "" if self.candidates is None else f" of {self.candidates:,}"
        parts = [f"{len(self):,}{of} rows"]
        for name in ("rate", "measured_rate", "threshold"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name} {float(value):.3g}")
        return f"Selection({', '.join(parts)})"

    @property
    def total(self) -> float | Tensor:
        """The normaliser if given, else the sum of the weights."""
        return self.weight.sum() if self.normaliser is None else self.normaliser

    @property
    def padding(self) -> Tensor | None:
        """Number of padding rows, which have weight 0, 0-dim; ``None`` where there are none."""
        return None if self.active is None else (self.weight == 0).sum()

    @property
    def scale(self) -> Tensor:
        """Weights ``[n]`` for a loss that is averaged over the rows."""
        return self.weight * (len(self) / self.total)

    def mean(self, losses: Tensor) -> Tensor:
        """``sum(weight * loss) / normaliser``, 0-dim; ``losses`` has one entry per selected row.

        An empty selection gives zero with zero gradients. With several processes, each must call
        this once per batch: the normalisers are averaged, so that the average of the gradients over
        the processes is that of one process which trains on all selected rows.

        Raises ``ValueError`` unless ``losses`` has the shape of the weights.
        """
        if losses.shape != self.weight.shape:
            raise ValueError(
                f"losses has shape {list(losses.shape)}, but {len(self)} rows were selected: pass"
                " one loss per selected row, from a criterion built with reduction='none'"
            )
        total = (losses * self.weight).sum()
        if distributed.world() > 1:
            shared = distributed.total(float(self.total))[0] / distributed.world()
            return total / max(shared, 1e-30)  # 0 if no process selected a row
        normaliser = torch.as_tensor(self.total, dtype=total.dtype, device=total.device)
        return total / torch.where(normaliser > 0, normaliser, 1.0)  # 0 for an empty selection

    def take(self, batch: Any) -> Any:
        """Selected rows of every tensor in ``batch``, a nested structure of tensors.

        Other objects are passed through. Raises ``ValueError`` for a tensor whose
        first dimension is not the number of candidates.
        """
        for tensor in tensors(batch):
            if self.candidates is not None and tensor.shape[:1] != (self.candidates,):
                raise ValueError(
                    f"batch holds a tensor of shape {list(tensor.shape)}, but the selection was"
                    f" made from {self.candidates} rows: pass the batch that was scored"
                )
        rows = count_rows(batch) if self.candidates is None else self.candidates
        return take_rows(batch, self.index, rows)


def check_selection(chosen: object, rows: int, policy: object) -> Selection:
    """What ``policy`` answered for ``rows`` rows, if it is a valid `Selection`.

    Raises ``ValueError``, naming ``policy``, for another type, rows out of range, invalid weights
    or normaliser, and weights that are all 0.
    """
    name = type(policy).__name__
    if not isinstance(chosen, Selection):
        raise ValueError(
            f"{name} gave a {type(chosen).__name__}: return Selection(rows), or None for all rows"
        )
    index, weight, total = chosen.index, chosen.weight, float(chosen.total)
    if index.dtype != torch.int64 or index.ndim != 1:
        raise ValueError(
            f"{name} gave rows as {index.dtype} of shape {list(index.shape)}: give int64 rows of"
            " shape [n]"
        )
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise ValueError(
            f"{name} selected rows {int(index.min())} to {int(index.max())} of {rows}, some of"
            f" which do not exist: select from 0 to {rows - 1}"
        )
    valid = bool(((weight >= 0) & (weight < math.inf)).all())
    empty = not len(index) and chosen.normaliser is None
    if weight.shape != index.shape or not valid or not (empty or 0 < total < math.inf):
        raise ValueError(
            f"{name} gave {len(index)} rows weights of shape {list(weight.shape)} and the"
            f" normaliser {total:g}: give each row a finite weight of 0 or more, not 0 to all of"
            " them, and a finite normaliser above 0 or None"
        )
    return chosen


@contextmanager
def evaluating(model: nn.Module | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block in eval mode without gradients; restore module modes and the RNG state.

    BatchNorm statistics do not change; modules already in eval mode stay in eval mode.
    """
    training = [] if model is None else [module for module in model.modules() if module.training]
    try:
        for module in training:  # not by eval(), which a module may override with a lasting effect
            module.training = False
        with torch.no_grad(), rng.isolated(device):
            yield
    finally:
        for module in training:
            module.training = True
        if torch.is_autocast_enabled(torch.device(device).type):
            torch.clear_autocast_cache()  # before torch 2.10, its weights have no gradients


_CHANGES: WeakKeyDictionary[nn.Module, dict[bool, bool | None]] = WeakKeyDictionary()
"""Whether a pass of a model, in training mode or not, changes its inputs in place.

``None``: it did not, and the next pass is to show whether it does so now.
"""
_VERSION = attrgetter("_version")


def unchanged(
    forward: Forward, model: nn.Module, batch: Batch, fresh: bool = False
) -> tuple[Any, Any]:
    """Outputs of ``forward(model, batch)``, and the targets for the criterion.

    ``batch`` keeps its values and its keys. The first pass of a model, in either mode, works on a
    copy, which shows whether the model changes its inputs in place; if so, all do. A ``fresh``
    batch is not used again, so that its tensors need no copy. Raises ``ValueError`` for a change
    that begins later: at once if torch counts it, and one of ``x.data`` or of an array that shares
    the memory at the next pass that compares values, see `compare_again`.
    """
    known = _CHANGES.setdefault(model, {})
    first = model.training not in known
    changes = False if fresh else known.get(model.training)
    single, given = isinstance(batch.x, Tensor), batch
    if changes is not False or not single:  # else containers that the model may write to
        change = (lambda each: each) if changes is False else torch.clone
        given = batch.map(partial(map_tensors, change))
    parts = (given.x,) if single else tensors(given.x)
    own = [] if fresh else list(filterfalse(Tensor.is_inference, parts))
    before = list(map(_VERSION, own))
    outputs = forward(model, given)
    touched = before != list(map(_VERSION, own))
    if changes is None:  # x.data, or an array that shares its memory, has no new version
        touched = touched or not all(map(same_values, tensors(batch.x), own))
        known[model.training] = touched
    if touched and not changes:
        if not first:
            raise ValueError(
                f"the model now changes its inputs in place, as it did not at first: {_NEW}"
            )
        warn(f"the model changes its inputs in place, so passes work on copies of them: {_NEW}")
    return outputs, targets_after(batch, given)


_NEW = "let forward make new tensors, such as with x = (x - mean) / std"


def compare_again(model: nn.Module) -> None:
    """Let the next pass in each mode show whether a model that did not change its inputs now does.

    A `Trainer` calls it after each epoch.
    """
    known = _CHANGES.get(model, {})
    known |= {mode: None for mode, changes in known.items() if not changes}


def changes_inputs(model: nn.Module) -> bool:
    """Whether ``model`` was found to change its inputs in place, see `unchanged`."""
    return any(_CHANGES.get(model, {}).values())


def same_values(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same values, NaN included; of sparse ones it is not known."""
    if first.is_nested or first.layout != torch.strided:
        return True
    if first.shape != second.shape:
        return False
    nan = (first != first) & (second != second)
    return bool(((first == second) | nan).all())


def called(model: nn.Module, batch: Batch) -> Any:
    """Outputs of ``model`` for a batch of any structure."""
    return call(model, batch.x, batch.y)


class Scored:
    """A batch as a policy sees it: rows, and, once it is scored, outputs and losses.

    Example::

        from astkit import Policy, Selection

        class HardestHalf(Policy):
            def choose(self, batch):
                batch.score()  # one forward pass, which is counted
                return Selection(batch.losses.topk(len(batch.losses) // 2).indices)

    `score` runs one forward pass of ``model`` in eval mode without gradients, whose cost is
    counted; before it, ``outputs`` and ``losses`` raise ``RuntimeError``.

    `Policy.choose` sees the rows that have a label alone. Where a criterion tells them by a mask,
    it does so after `score`.

    Args:
        outputs: model outputs; ``None`` if not known yet.
        targets, inputs: second argument of the criterion, and inputs of the model.
        index: int64 ``[rows]``, data set indices; ``None`` if unknown.
        model: the model in training; ``None`` if unknown.
        criterion: returns one loss per row.
        forward: computes the outputs of a model; default ``model(inputs)``.
        count: called for each pass over these rows.

    Attributes:
        ignores: whether rows may have no label; ``masked``: whether only a mask of the criterion
            says which.
        places: the rows of the loaded batch that it holds, int64 ``[rows]``; ``None``: all.
    """

    def __init__(
        self,
        outputs: Any,
        targets: Any,
        inputs: Any,
        index: Tensor | None = None,
        model: nn.Module | None = None,
        *,
        criterion: Criterion = cross_entropy_rows,
        forward: Forward | None = None,
        count: Count | None = None,
    ) -> None:
        self.batch = Batch(index, inputs, targets)
        self.targets, self.inputs, self.index, self.model = targets, inputs, index, model
        # the inputs may hold no tensor, such as texts
        first = inputs if isinstance(inputs, Tensor) else next(tensors((inputs, targets)), None)
        self.device = torch.device("cpu") if first is None else first.device
        self.criterion = criterion
        self._outputs = outputs
        self._forward = forward or called
        self._count = count or (lambda model, batch: None)
        self._losses: Tensor | None = None
        self.ignores, self.masked = True, False
        self.places: Tensor | None = None
        self._loaded: int | None = None  # rows of the batch that was loaded, if some are left out

    @property
    def rows(self) -> int:
        """Number of rows."""
        return count_rows(self.targets)

    def score(self) -> Self:
        """Compute the outputs, unless they are known; returns the batch."""
        if self._outputs is None:
            assert self.model is not None, "pass outputs or a model that computes them"
            self._outputs = self.forward(self.model)
            if self._loaded is not None and self.labelled is not None:
                self._keep(self.labelled)
        return self

    @property
    def outputs(self) -> Any:
        """The model's outputs."""
        if self._outputs is None:
            raise RuntimeError(
                "the batch has no outputs and losses yet: call batch.score() first, which makes a"
                " forward pass"
            )
        return self._outputs

    @property
    def losses(self) -> Tensor:
        """One loss per row, ``[rows]``."""
        if self._losses is None:
            self._losses = self.measured[0].detach()
        return self._losses

    @cached_property
    def measured(self) -> tuple[Tensor, Tensor | None]:
        """What `labelled_losses` finds; ``known_losses`` stay unknown."""
        return labelled_losses(self.criterion, self.outputs, self.targets, self.ignores)

    @property
    def labelled(self) -> Tensor | None:
        """Which of its rows have a label: bool ``[rows]``; ``None``: all.

        ``None`` too before it is scored, and where the criterion does not fit the outputs.
        """
        with suppress(ValueError, RuntimeError):
            return self.measured[1] if self.ignores else None
        return None

    def leave_out_unlabelled(self) -> None:
        """Hold only rows that have a label, from here on and once the batch is scored."""
        if self.ignores:
            self._loaded = self.rows
            mask = None if self.masked else labelled_tokens(self.criterion, self.targets)
            if mask is not None:
                self._keep(any_token(mask))

    def _keep(self, labelled: Tensor) -> None:
        if bool(labelled.all()):
            return
        kept, count = labelled.nonzero().squeeze(1), self.rows
        self.places = kept if self.places is None else self.places[kept]
        if len(kept):  # no pass is made over none
            self.batch, targets = self.batch.take(kept), self.targets
            self.index, self.inputs, self.targets = self.batch
            if self._outputs is not None:
                self.targets = take_rows(targets, kept, count)  # as the model left them
                self._outputs = take_rows(self._outputs, kept, count)
                self.measured = self.measured[0][kept], None

    def in_batch(self, chosen: Selection) -> Selection:
        """``chosen`` with the numbers that its rows have in the batch that was loaded."""
        if self.places is None:
            return chosen
        if not len(self.places):
            return Selection(self.places, candidates=self._loaded)
        index = self.places[chosen.index]
        return replace(chosen, index=index, candidates=self._loaded, scores=None)

    @property
    def evaluated(self) -> bool:
        """Whether the outputs are known."""
        return self._outputs is not None

    @property
    def known_losses(self) -> Tensor | None:
        """The losses if already computed, else ``None``."""
        return self._losses

    def select(
        self, rows: Tensor, weight: Tensor | None = None, normaliser: float | None = None
    ) -> Selection:
        """A `Selection` of ``rows`` of the batch, on its device."""
        return Selection(
            rows.to(self.device),
            None if weight is None else weight.float().to(self.device),  # type: ignore[arg-type]
            normaliser,
            candidates=self.rows,
            measured_rate=len(rows) / self.rows,
        )

    def forward(self, model: nn.Module) -> Any:
        """Outputs of ``model``, in eval mode without gradients."""
        other = model is not self.model
        if other and any(each.device != self.device for each in model.parameters()):
            model.to(self.device)
        with evaluating(model, self.device):
            outputs, targets = unchanged(self._forward, model, self.batch)
        if not other:  # of a batch that is a single object, as the model left it
            self.targets = targets
        self._count(model, self.batch)
        return outputs


class Predictions(NamedTuple):
    """What a classifier predicts for each row, ``[rows]`` each; ``None`` without classes."""

    correct: Tensor | None = None
    confidence: Tensor | None = None
    label_probability: Tensor | None = None
    predicted: Tensor | None = None

    def take(self, rows: Tensor) -> Predictions:
        """Those of the selected ``rows``."""
        return Predictions(*(None if part is None else part[rows] for part in self))


def predictions(outputs: Any, targets: Any) -> Predictions:
    """Those of class logits and labels; ``None`` each for other outputs or targets.

    One output of a row is the logit of the second of two classes. A row whose label is no class,
    and so ignored, counts as wrong, with probability 0.
    """
    try:
        logits, labels = logits_of(outputs), labels_of(targets)
    except ValueError:
        return Predictions()
    if logits.numel() == labels.numel() == len(labels):
        logit, labels = logits.flatten(), labels.flatten().long()
        logits = torch.stack([torch.zeros_like(logit), logit], 1)
    elif class_outputs(logits, labels) is None:
        return Predictions()
    probabilities = logits.detach().float().softmax(1)
    confidence, guess = probabilities.max(1)
    real = (labels >= 0) & (labels < probabilities.shape[1])
    places = torch.where(real, labels, 0).long()
    own = probabilities.gather(1, places.unsqueeze(1)).squeeze(1)
    own = torch.where(real, own, 0.0)
    return Predictions(guess == labels, confidence, own, guess)
