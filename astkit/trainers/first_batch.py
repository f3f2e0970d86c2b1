"""What a trainer looks at before its first step: a batch, and the rows to validate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.datasets import BatchSource
from astkit.datasets.batch import Args, Batch
from astkit.datasets.facts import class_labels
from astkit.gating.losses import (
    Criterion,
    check_labels,
    check_unshifted,
    cross_entropy_rows,
    ignored_label,
    labels_of,
    logits_of,
    shown,
    singles,
    token_losses,
)
from astkit.gating.policy import Policy
from astkit.gating.selection import called, evaluating, unchanged
from astkit.gating.targets import Targets, gives_mask, targets_of
from astkit.trainers.evaluation import Metric
from astkit.trainers.refusals import out_of_memory

Pass = Callable[[Batch], tuple[Any, Any]]
"""Outputs of a batch, and its targets, see `unchanged`."""


def check_batch(
    forward: Pass,
    criterion: Criterion,
    batch: Batch,
    source: BatchSource,
    metrics: Sequence[Metric] = (),
) -> Targets:
    """What the targets are to ``criterion``, from the outputs of two rows.

    Raises ``ValueError`` for a batch without rows, inputs that the model refuses, a model that
    shifts its labels, labels out of range, in ``batch`` or in all of ``source`` where they are
    known, float targets of cross-entropy that are no class probabilities, and for a criterion that
    does not give one loss per row.
    """
    if not batch.rows:
        raise ValueError("a batch of the data is empty: remove empty batches from the loader")
    few = batch.take(torch.arange(min(2, batch.rows)))  # a copy
    outputs, y = first_outputs(forward, few)
    if criterion is cross_entropy_rows:
        check_unshifted(lambda x: forward(few._replace(x=x, y=x))[0], few.x)
        if getattr(outputs, "loss", None) is None:
            _check_probabilities(batch.y)
    found = targets_of(criterion, outputs, y)
    for metric in metrics:
        metric.check(singles(outputs), y)
    known = class_labels(source)
    own = criterion is not cross_entropy_rows and gives_mask(criterion, outputs, y)
    if found.logits and not own:  # which may leave out any label
        for labels in (labels_of(batch.y), known):
            if labels is not None:
                check_labels(labels, logits_of(outputs).shape[1], ignored_label(criterion))
    some = own or known is None or bool((known == ignored_label(criterion)).any())
    _, mask = token_losses(criterion, outputs, y)
    return found._replace(ignored=some and mask is not None, masked=own)


def check_rows_known(policy: Policy) -> None:
    """Raise ``ValueError`` if a policy has to know which rows a batch holds, which it does not."""
    if policy.needs_index:
        raise ValueError(
            f"{type(policy).__name__} keeps per-sample state, but the training data"
            " provide no indices: pass the data set itself with batch_size=..., or use a"
            " DataLoader of indexed(data)"
        )


def initialise(
    model: nn.Module, load: Callable[[], Batch], device: torch.device, seed: int
) -> None:
    """Give lazy modules their shapes, from a forward pass of a batch that ``load`` returns.

    Their weights depend on ``seed``. Raises ``ValueError`` for inputs that the model refuses, and
    for lazy modules that have no part in the pass.
    """
    if not _uninitialised(model):
        return
    few = load().take(slice(0, 2))
    with evaluating(model.to(device), device), rng.isolated(device, seed, "lazy modules"):
        first_outputs(partial(unchanged, called, model), few)
    if unused := _uninitialised(model):
        raise ValueError(
            f"the model has lazy parameters that its forward pass does not use, {unused[0]}: leave"
            " them out, or give their modules a shape"
        )


def _uninitialised(model: nn.Module) -> list[str]:
    named = chain(model.named_parameters(), model.named_buffers())
    return [name for name, part in named if nn.parameter.is_lazy(part)]


def first_outputs(forward: Pass, few: Batch) -> tuple[Any, Any]:
    """What ``forward`` gives for the first rows; ``ValueError`` if the model refuses them."""
    refusals: tuple[type[Exception], ...] = (RuntimeError,)
    if not isinstance(few.x, Tensor):  # which the model may not take at all
        refusals = (AttributeError, LookupError, RuntimeError, TypeError)
    try:
        return forward(few)
    except refusals as error:
        if out_of_memory(error):
            raise
        inputs, remedy = shown(few.x), "pass data of the shape and type that it takes"
        if isinstance(few.x, Tensor):
            inputs, remedy = f"{inputs} and {few.x.dtype}", f"{remedy}, most models float32"
        elif isinstance(few.x, Mapping):
            remedy = "let its forward name the keys, or the data give pairs (x, y) of tensors"
        elif isinstance(few.x, Args):
            inputs = f"{len(few.x)} parts"
            remedy = "let its forward take as many arguments, or the data give pairs (x, y)"
        why = str(error).partition("\n")[0]
        raise ValueError(f"the model refused inputs of {inputs}: {remedy} ({why})") from error


def _check_probabilities(targets: Any) -> None:
    """Raise ``ValueError`` for float labels of which cross-entropy would learn no classes."""
    labels = targets.get("labels") if isinstance(targets, Mapping) else targets
    if not isinstance(labels, Tensor) or not labels.is_floating_point() or labels.ndim < 2:
        return
    sums = labels.float().sum(1)
    if bool((labels < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-2):
        raise ValueError(
            f"the targets are floats of shape {list(labels.shape)} whose rows are no class"
            " probabilities (0 or more, with the sum 1), from which cross-entropy learns nothing:"
            " pass criterion=nn.MSELoss(reduction='none') for numbers, or"
            " criterion=nn.BCEWithLogitsLoss(reduction='none') for several labels a row"
        )
