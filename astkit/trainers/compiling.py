"""A compiled forward pass that takes batches of any size, and is never in the way.

The gate stays outside: choosing rows breaks the graph, and on CUDA waits for the device.

``mode="reduce-overhead"`` is not offered: it records a CUDA graph for every batch size that it
meets, and behind a gate that is nearly every size. It is for a fixed number of rows.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from astkit.batch import tensors as _tensors
from astkit.rng import isolated


class Compiled:
    """Calls ``model``, compiled: ``compiled(model, device)`` makes one.

    The model itself stays as it is: parameters, ``state_dict``, mode and hooks are the eager
    model's, and both can be called in turn. Each combination of training or eval mode, gradients
    or none, and autocast has a graph of its own. Dropout draws other numbers than the eager model.
    Count FLOPs on the eager model: a first call inside a FLOP counter stays slow.

    Attributes:
        model: the eager model.
        reason: why it runs eagerly after all; ``None`` while it does not.
        graphs: how many graphs were compiled for its calls.
    """

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        self.model = model
        self.device = torch.device(device)
        self.reason: str | None = None
        self.graphs = 0
        self._tried = False
        try:
            self._compiled: Any = torch.compile(model)
        except RuntimeError as error:  # a Python or a system that torch cannot compile for
            self._give_up(error)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The model's outputs for a batch: nested structures of tensors.

        Batches of 0 or 1 rows go to the eager model: either size would have a graph of its own.
        """
        x = (args, keywords)
        tensors = [tensor for tensor in _tensors(x) if tensor.ndim]
        if self.reason is not None or not tensors or len(tensors[0]) < 2:
            return self.model(*args, **keywords)
        from torch._dynamo import exc, maybe_mark_dynamic  # seconds to load

        for tensor in tensors:
            maybe_mark_dynamic(tensor, 0)
        try:
            return self._call(*x)
        except (exc.TorchDynamoException, _TrialError) as error:
            outputs = self.model(
                *args, **keywords
            )  # a mistake in the model or its inputs is raised here instead
            self._give_up(error.__cause__ if isinstance(error, _TrialError) else error)
            return outputs

    def _call(self, args: Any, keywords: Any) -> Any:
        from torch._dynamo.utils import counters

        before = counters["stats"]["unique_graphs"]
        if torch.is_grad_enabled() and not self._tried:
            try:
                self._try(args, keywords)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # compilers fail in many ways
                raise _TrialError from error
            self._tried = True
        outputs = self._compiled(*args, **keywords)
        self.graphs += counters["stats"]["unique_graphs"] - before
        return outputs

    def _try(self, args: Any, keywords: Any) -> None:
        """Forward and backward once, without a trace: a backward may be compiled only when run.

        What fails there could not be caught any more once the caller holds the outputs.
        """
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        with _quiet(), isolated(self.device), _buffers_kept(self.model):
            found = self._compiled(*args, **keywords)
            outputs = [tensor for tensor in _tensors(found) if tensor.requires_grad]
            if trained and outputs:
                total = torch.stack([tensor.sum() for tensor in outputs]).sum()
                torch.autograd.grad(total, trained, allow_unused=True)

    def _give_up(self, error: BaseException | None) -> None:
        error = getattr(error, "inner_exception", error)  # what torch wraps in one of its own
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = (
            "install a C++ compiler such as g++ (on Windows cl), or name yours in CXX"
            if "compiler" in what.lower()
            else "see TORCH_LOGS=dynamo for its reasons, or leave compile off"
        )
        self.reason = (
            f"torch.compile failed on {self.device.type} ({what}), so training continues"
            f" uncompiled: {remedy}"
        )
        warnings.warn(self.reason, stacklevel=3)


class _TrialError(Exception):
    """The first call failed; why is its cause."""


def compiled(model: nn.Module, device: torch.device | str = "cpu") -> Compiled:
    """``model``'s forward pass, compiled at its first call; eager for good where that fails.

    One graph serves all batch sizes from 2 on: dimension 0 of the inputs is marked dynamic, the
    others are not (``dynamic=True`` would free all). The first call takes long (many
    seconds, on a CPU with an empty cache) and runs the batch twice.
    Where it fails (no C++ compiler), one warning says so and the eager model runs from then on.
    """
    return Compiled(model, device)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, values in before:
            buffer.detach().copy_(values)


@contextmanager
def _quiet() -> Iterator[None]:
    # torch logs the whole traceback of a failure that is caught and told in one sentence
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
