"""Do whole-number targets name classes, or are they numbers such as counts, ages and ratings?

The data do not tell; the criterion does, by what it makes of other targets and outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from astkit.datasets.batch import map_tensors
from astkit.gating.losses import (
    Criterion,
    class_outputs,
    cross_entropy_rows,
    labels_of,
    logits_of,
    row_losses,
    token_losses,
)

UNUSED = 1_000_000  # added to class numbers: numbers of classes that no task has
SURE = 10.0  # a logit; as a predicted number it would be far from 0 and 1


class Targets(NamedTuple):
    """What the targets are to a criterion.

    Attributes:
        classes: whether whole numbers among them name classes; ``None`` where it is not known.
        logits: whether the outputs hold a logit for each of the classes.
        predicted: whether the outputs tell the predicted class: such logits, or one of two classes.
        ignored: whether rows may have no label, which a criterion leaves out; ``masked``: whether
            it says itself which, by a mask.
    """

    classes: bool | None = None
    logits: bool = False
    predicted: bool = False
    ignored: bool = False
    masked: bool = False


def targets_of(criterion: Criterion, outputs: Any, targets: Any) -> Targets:
    """What ``targets`` are to ``criterion``, tried on the CPU with the ``outputs`` of a few rows.

    A criterion takes class numbers if it refuses one that no class has, or if it only compares
    them, so that other numbers of the same classes change nothing. It takes one logit of two
    classes if it finds nothing wrong with a sure one, which as a number would be far from 0 and 1,
    and their probability if it refuses outputs above 1.
    """
    pair = class_outputs(outputs, targets)
    if criterion is cross_entropy_rows and pair is not None:
        return Targets(True, True, pair[0].shape[1] > 1)
    try:
        logits, values = logits_of(outputs), labels_of(targets)
    except ValueError:
        return Targets()
    if criterion is cross_entropy_rows:
        return Targets(True)
    rows, decimal = len(values), values.is_floating_point()
    if decimal and values.numel() > rows:  # such as probabilities of classes
        return Targets()
    if values.is_complex() or (decimal and not torch.equal(values, values.round())):
        return Targets(False)
    trial = _Trial(criterion, outputs, targets)
    if trial.losses() is None:  # such as with weights on another device
        return Targets(True, True, True) if pair is not None and pair[0].shape[1] > 1 else Targets()
    if pair is not None and pair[0].shape[1] > 1:
        if trial.losses(torch.full_like(trial.values, pair[0].shape[1])) is None:
            return Targets(True, True, True)
    elif logits.numel() == values.numel() == rows and trial.of_two_classes():
        return Targets(True, predicted=trial.losses(outputs=SURE) is not None)
    several = values.shape == logits.shape and bool((values <= 1).all())  # labels of 0 and 1 each
    if several and values.numel() > rows:
        return Targets(False)
    # whether other numbers of the classes are refused, or not noticed
    own, other = trial.losses(), trial.losses(trial.values + UNUSED)
    return Targets(own is None or other is None or torch.allclose(own, other, equal_nan=True))


def gives_mask(criterion: Criterion, outputs: Any, targets: Any) -> bool:
    """Whether ``criterion`` says itself which losses count, tried on the CPU."""
    trial = _Trial(criterion, outputs, targets)
    with suppress(Exception):
        return token_losses(trial.criterion, trial.outputs, trial.targets, False)[1] is not None
    return False


class _Trial:
    """A copy of a criterion, with outputs and targets on the CPU that may be replaced.

    On other devices a label out of range would end all use of the device; a copy, since a criterion
    may have a state.
    """

    def __init__(self, criterion: Criterion, outputs: Any, targets: Any) -> None:
        own = criterion
        with suppress(Exception):
            own = copy.deepcopy(criterion)
        self.criterion: Criterion = own.cpu() if isinstance(own, nn.Module) else own
        self.outputs, self.targets = map_tensors(Tensor.cpu, (outputs, targets))

    @cached_property
    def values(self) -> Tensor:
        """The labels, whole numbers as int64; ``ValueError`` for targets without labels."""
        labels = labels_of(self.targets)
        return labels if labels.is_floating_point() else labels.long()

    def losses(self, values: Tensor | None = None, outputs: float | None = None) -> Tensor | None:
        """Losses ``[rows]`` with other targets and outputs; ``None`` where they are refused."""
        targets, given = self.targets, self.outputs
        if values is not None:
            targets = {**targets, "labels": values} if isinstance(targets, Mapping) else values
        if outputs is not None:
            logits = logits_of(given)
            other = torch.full_like(logits, outputs)
            given = map_tensors(lambda each: other if each is logits else each, given)
        with suppress(Exception):
            return row_losses(self.criterion, given, targets)
        return None

    def of_two_classes(self) -> bool:
        """Whether an output is the logit or the probability of the second of two classes."""
        sure, unsure = [], []
        for label, output in ((0, -SURE), (1, SURE)):
            each = torch.full_like(self.values, label)
            sure.append(self.losses(each, output))
            unsure.append(self.losses(each, 0.0))
        if all(losses is None for losses in sure):
            return self.losses(torch.ones_like(self.values), 0.5) is not None
        return all(
            far is not None and near is not None and bool((far < near).all())
            for far, near in zip(sure, unsure, strict=True)
        )
