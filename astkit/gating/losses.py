"""Per-row losses from model outputs: default criterion, token losses, class outputs."""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from astkit.datasets.batch import IGNORED, count_rows, integers, tensors
from astkit.files import is_own

Criterion = Callable[[Any, Any], Any]
"""``(outputs, targets)`` -> losses per row ``[rows]`` or per token ``[rows, ...]``, or a pair of
token losses and a mask of the same shape (false for padding)."""


def cross_entropy_rows(outputs: Any, targets: Any) -> Any:
    """Cross-entropy per row or token; the default criterion.

    ``outputs``: logits ``[rows, classes]``, ``[rows, classes, ...]`` or ``[rows, ..., classes]``,
    or an object, mapping or tuple that contains ``logits``; if it has a ``loss`` of shape
    ``[rows]``, that is returned unchanged. ``targets``: class indices (-100 is ignored), class
    probabilities, or a mapping with ``labels``. Several labels per row give token losses and mask.

    Raises ``ValueError`` if logits or labels are missing or their shapes do not match.
    """
    own = part_of(outputs, "loss")
    if isinstance(own, Tensor) and own.ndim == 1 and len(own) == count_rows(targets):
        return own
    logits, labels = single(logits_of(outputs)), labels_of(targets)
    if labels.is_floating_point():
        if labels.ndim < 2 or labels.shape[1] < 2:
            raise ValueError(
                f"the targets are floats of shape {list(labels.shape)}, from which cross-entropy"
                " learns nothing: pass a criterion, such as nn.MSELoss(reduction='none'), or class"
                " labels as integers"
            )
        return F.cross_entropy(logits, labels, reduction="none")
    labels = labels.long()
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    losses = F.cross_entropy(_classes_second(logits, labels), labels, reduction="none")
    return losses, labels != IGNORED


def row_losses(criterion: Criterion, outputs: Any, targets: Any) -> Tensor:
    """One loss per row, float32 or float64 ``[rows]``: the mean over its labelled tokens.

    0 for a row without a label, see `token_losses`. Raises ``ValueError`` if outputs, labels and
    criterion do not give one loss per row.
    """
    return labelled_losses(criterion, outputs, targets)[0]


def labelled_losses(
    criterion: Criterion, outputs: Any, targets: Any, ignores: bool = True
) -> tuple[Tensor, Tensor | None]:
    """`row_losses`, and which rows have a label: bool ``[rows]``, ``None`` if all have.

    ``ignores``: whether labels may be ignored.
    """
    if not ignores and criterion is cross_entropy_rows and _usual(outputs, targets):
        with suppress(IndexError):  # in short, for its speed; explained below
            return F.cross_entropy(single(outputs), targets.long(), reduction="none"), None
    losses, mask = token_losses(criterion, outputs, targets, ignores)
    return reduced(single(losses), mask), None if mask is None else any_token(mask)


def ignored_label(criterion: Criterion) -> int:
    """The label that ``criterion`` leaves out: its ``ignore_index``, or a part's, else -100.

    Parts are the modules of a module, the function and the arguments of a partial, the object of a
    method, and what a function or an object of one's own reads.
    """
    parts: list[Any] = [] if criterion is cross_entropy_rows else [criterion]
    for part in parts:  # it grows
        held: dict[str, Any] = {}
        with suppress(Exception):  # of objects that answer in their own way
            held = {"ignore_index": getattr(part, "ignore_index", None), **_held_by(part)}
        if type(held.get("ignore_index")) is int:
            return int(held["ignore_index"])
        known = {*map(id, parts)}
        parts += [each for each in held.values() if id(each) not in known]
    return IGNORED


def _held_by(part: Any) -> dict[str, Any]:
    """What a part of a criterion reads, by name."""
    if isinstance(part, nn.Module):
        return {**dict(part.named_modules()), "forward": type(part).forward}
    if isinstance(part, partial):
        return {"": part.func, **dict(zip("abcdefgh", part.args, strict=False)), **part.keywords}
    if isinstance(part, MethodType):
        held = getattr(part.__self__, "__dict__", {})
        return {**held, "": part.__self__, "function": part.__func__}
    if not isinstance(part, FunctionType):
        own = callable(part) and not isinstance(part, type) and is_own(type(part).__module__)
        return {**part.__dict__, "": type(part).__call__} if own else {}
    if not is_own(part.__module__):
        return {}
    read = inspect.getclosurevars(part)
    defaults = {name: each.default for name, each in inspect.signature(part).parameters.items()}
    held = {**defaults, **read.globals, **read.nonlocals}
    steps = list(dis.get_instructions(part))
    for place, step in enumerate(steps):  # f(outputs, targets, ignore_index=255)
        of_call = step.opname == "KW_NAMES"  # before Python 3.13, which loads a tuple
        names = part.__code__.co_consts[step.arg or 0] if of_call else step.argval
        if isinstance(names, tuple) and "ignore_index" in names:
            given = steps[place - len(names) + names.index("ignore_index")].argval
            held["ignore_index"] = held.get(given, given)
    return held


def labelled_tokens(criterion: Criterion, targets: Any) -> Tensor | None:
    """Which whole-number labels ``criterion`` does not leave out, bool; ``None`` for others."""
    with suppress(ValueError):
        labels = labels_of(targets)
        if labels.ndim and whole_numbers(labels):
            return labels != ignored_label(criterion)
    return None


def any_token(mask: Tensor) -> Tensor:
    """Whether a ``mask [rows, ...]`` is true anywhere in a row, bool ``[rows]``."""
    return (mask.unsqueeze(1).flatten(1) > 0).any(1)


def _usual(outputs: Any, targets: Any) -> bool:
    """Whether there are logits ``[rows, classes]`` and one class for each row."""
    both = isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim == 2
    return both and targets.shape == outputs.shape[:1] and whole_numbers(targets)


def shifts_labels(loss: Callable[[dict[str, Any]], Any], batch: Any) -> bool:
    """Whether a model's own loss leaves out the first of ``labels [rows, tokens]``, as causal ones.

    ``loss`` returns the model's own loss of a batch, 0-dim, or ``None`` if there is none.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.ndim != 2 or not whole_numbers(labels):
        return False
    real = labels[labels != IGNORED]
    if not len(real):
        return False
    first = torch.full_like(labels, IGNORED)
    first[:, 0] = real[0]
    own = loss({**batch, "labels": first})
    return isinstance(own, Tensor) and not bool(own.isfinite() and own > 0)


def check_unshifted(run: Callable[[dict[str, Any]], Any], batch: Any) -> None:
    """Raise ``ValueError`` for a model that shifts its labels, which cross-entropy does not.

    ``run`` returns the outputs of the model for a batch.
    """
    if shifts_labels(lambda given: part_of(run(given), "loss"), batch):
        raise ValueError(
            "the model shifts its labels, since the first of each row has no part in its own loss,"
            " but cross_entropy_rows does not: set criterion to"
            " astkit.integrations.huggingface.causal_losses"
        )


def reduced(losses: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of token losses ``[rows, ...]`` over the unmasked tokens of each row, ``[rows]``."""
    if losses.ndim == 1:
        return losses if mask is None else torch.where(mask > 0, losses, 0.0)
    losses = losses.flatten(1)
    if mask is None:
        return losses.mean(1)
    real = mask.flatten(1) > 0
    # multiplying by the mask would keep the NaN of a masked token
    return torch.where(real, losses, 0.0).sum(1) / real.sum(1).clamp_min(1)


def token_losses(
    criterion: Criterion, outputs: Any, targets: Any, ignores: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Output of the criterion, ``[rows]`` or ``[rows, ...]``, and the mask of what has a label.

    The criterion's own mask; else, if it ``ignores`` labels, that of whole-number labels other than
    its ``ignore_index``, -100 by default; ``None`` for other targets.
    """
    rows = count_rows(targets)
    tracked = isinstance(targets, Tensor) and not targets.is_inference()
    before = targets._version if tracked else 0
    if criterion is not cross_entropy_rows:  # which takes the logits alone
        outputs = singles(outputs)
    try:
        returned = criterion(outputs, targets)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # after "out of memory" the caller may retry; the other is a sentence of this module
        if "memory" in str(error) or (isinstance(error, ValueError) and "criterion" in str(error)):
            raise
        remedy = "give it the shapes, types and labels that it expects"
        if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            remedy += (
                ", a loss of tensors those in the outputs and targets, such as by"
                " criterion=lambda outputs, targets: loss(outputs['logits'], targets)"
            )
        raise ValueError(
            f"the criterion refused outputs of {shown(outputs)} and targets of {shown(targets)}:"
            f" {remedy} ({error})"
        ) from error
    if tracked and targets._version != before:
        raise ValueError("the criterion changes its targets in place: let it use targets.clone()")
    losses, mask = returned if isinstance(returned, tuple) else (returned, None)
    if not isinstance(losses, Tensor) or losses.ndim == 0 or len(losses) != rows:
        raise ValueError(
            f"the criterion returned {shown(losses)} for {rows} rows: return one loss per row"
            " without averaging, such as with reduction='none'"
        )
    _check_rows(losses, outputs, targets)
    if mask is not None and mask.shape != losses.shape:
        raise ValueError(
            f"the criterion returned a mask of shape {list(mask.shape)} for losses of shape"
            f" {list(losses.shape)}: give both the same shape"
        )
    if mask is None and ignores:
        mask = labelled_tokens(criterion, targets)
        if mask is not None and mask.shape != losses.shape:  # then rows count as a whole
            mask = any_token(mask).view(-1, *(1,) * (losses.ndim - 1)).expand_as(losses)
    return losses, mask


def _check_rows(losses: Tensor, outputs: Any, targets: Any) -> None:
    """``ValueError`` if rows were broadcast against rows, as ``[rows, 1]`` against ``[rows]``."""
    try:
        shapes = logits_of(outputs).shape, labels_of(targets).shape
    except ValueError:  # not one tensor each
        return
    if len(shapes[0]) == len(shapes[1]) or losses.shape in shapes:
        return
    with suppress(RuntimeError):  # the criterion does not broadcast these
        if losses.shape == torch.broadcast_shapes(*shapes):
            raise ValueError(
                f"the criterion returned losses of shape {list(losses.shape)}, broadcast from"
                f" outputs of shape {list(shapes[0])} and targets of shape {list(shapes[1])}: give"
                " it equal shapes, such as with targets.unsqueeze(1) or outputs.squeeze(1)"
            )


def single(values: Tensor) -> Tensor:
    """``values``, with half precision converted to float32."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def singles(outputs: Any) -> Any:
    """``outputs`` of any structure with half precision converted to float32."""
    return single(outputs) if isinstance(outputs, Tensor) else pytree.tree_map(_singles_of, outputs)


def _singles_of(leaf: Any) -> Any:
    """`singles` of a tensor, or of what torch's pytree does not know, with its own type."""
    if isinstance(leaf, Tensor):
        return single(leaf)
    parts = leaf if isinstance(leaf, Mapping) else getattr(leaf, "__dict__", {})
    half = {name: single(part) for name, part in parts.items() if isinstance(part, Tensor)}
    if all(half[name] is parts[name] for name in half):
        return leaf
    if isinstance(leaf, Mapping):
        return {**leaf, **half}
    changed = copy.copy(leaf)
    vars(changed).update(half)
    return changed


def logits_of(outputs: Any) -> Tensor:
    """The logits in a model's outputs; raises ``ValueError`` if there are none."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = part_of(outputs, "logits")
    if logits is None and isinstance(outputs, tuple | list):
        logits = next((each for each in tensors(outputs) if each.ndim > 1), None)
    if isinstance(logits, Tensor):
        return logits
    raise ValueError(
        f"the model returned {type(outputs).__name__} without logits or one loss per row: return a"
        " tensor or an object with logits, or pass criterion=(outputs, targets) -> [rows]"
    )


def labels_of(targets: Any) -> Tensor:
    """The labels in a batch's targets, integers as int64; ``ValueError`` if there are none."""
    labels = targets.get("labels") if isinstance(targets, Mapping) else targets
    if isinstance(labels, Tensor):
        return integers(labels)
    raise ValueError(
        f"the targets are {shown(targets)} without labels: give the batch a key 'labels', or pass"
        " criterion=(outputs, batch) -> [rows]"
    )


def class_outputs(outputs: Any, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Logits ``[rows, classes]`` and integer labels ``[rows]`` of a classifier, else ``None``."""
    try:
        logits, labels = logits_of(outputs), labels_of(targets)
    except ValueError:
        return None
    fits = logits.ndim == 2 and labels.ndim == 1 and len(logits) == len(labels)
    return (logits, labels) if fits and whole_numbers(labels) else None


def whole_numbers(values: Tensor) -> bool:
    """Whether ``values`` has an integer dtype."""
    return not values.is_floating_point() and values.dtype != torch.bool


def check_labels(targets: Tensor, classes: int, ignored: int = IGNORED) -> None:
    """Raises ``ValueError`` for a class index in ``targets`` outside ``0..classes - 1``."""
    bad = targets[((targets < 0) | (targets >= classes)) & (targets != ignored)]
    if len(bad):
        raise ValueError(
            f"targets hold the label {int(bad[0])}, but the model has {classes} outputs: labels"
            f" must lie in 0..{classes - 1} or be {ignored}, which is ignored; correct them, build"
            " the model with more classes, or give the criterion ignore_index=..."
        )


def _classes_second(logits: Tensor, labels: Tensor) -> Tensor:
    """``logits`` in the layout of torch's cross-entropy, ``[rows, classes, ...]``."""
    last = logits.shape[:-1] == labels.shape
    second = logits.shape[:1] + logits.shape[2:] == labels.shape
    if last and second:
        raise ValueError(
            f"logits of shape {list(logits.shape)} may hold the classes second or last: pass a"
            " criterion that says which"
        )
    return logits.movedim(-1, 1) if last else logits


def part_of(value: Any, name: str) -> Any:
    """The entry or attribute ``name`` of a model's outputs, else ``None``."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def shown(value: Any) -> str:
    """The shape, keys or type of ``value``, for errors."""
    if isinstance(value, Tensor):
        return f"shape {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with keys {', '.join(map(str, value))}"
    return f"type {type(value).__name__}"
