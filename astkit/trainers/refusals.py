"""What cannot be trained, and how a step fails: one sentence for each."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from astkit.gating.losses import Criterion

NOTHING = "{}, so there is nothing to train: give the model parameters with requires_grad=True"


def check_trainable(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise ``ValueError`` if no parameter is trained, or for a step that wants a closure."""
    if optimizer is None:
        whose, parameters = f"the {type(model).__name__} has", list(model.parameters())
    else:
        whose = "the optimizer got"
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not any(each.requires_grad for each in parameters):
        many = f"{len(parameters)} parameters, all frozen" if parameters else "no parameters"
        raise ValueError(NOTHING.format(f"{whose} {many}"))
    if optimizer is None:
        return
    for part in list(inspect.signature(type(optimizer).step).parameters.values())[1:]:
        if part.default is part.empty and part.kind is part.POSITIONAL_OR_KEYWORD:
            raise ValueError(
                f"the step of the optimizer {type(optimizer).__name__} needs a {part.name}, which"
                " evaluates a batch several times: pass one that does not, such as torch.optim.SGD"
            )


def check_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, criterion: Criterion
) -> None:
    """Raise ``ValueError`` for parameters outside ``model``, whose gradients would never clear."""
    inner = criterion.parameters() if isinstance(criterion, nn.Module) else ()
    trained = [each for group in optimizer.param_groups for each in group["params"]]
    trained += [each for each in inner if each.requires_grad]
    if strange := len({*trained} - {*model.parameters()}):
        raise ValueError(
            f"{strange} parameters of the optimizer or the criterion are not the model's: build the"
            " optimizer from model.parameters(), after other changes of the model, and make a"
            " criterion with parameters a part of it, such as with model.loss = criterion, or"
            " freeze it with criterion.requires_grad_(False)"
        )


def not_finite(what: str, value: str) -> FloatingPointError:
    return FloatingPointError(
        f"the {what} became {value}: the weights were not changed in this step; lower lr, or"
        " set clip_norm, and check the batch's inputs and labels for NaN"
    )


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is an out-of-memory error of a device or of the host."""
    sentences = ("out of memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        sentence in str(error) for sentence in sentences
    )
