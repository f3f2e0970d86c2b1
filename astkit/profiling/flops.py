"""FLOPs per sample, counted from the executed operations: 2 per multiply-add.

Counting slows a step (up to 14 times for small layers), so count once per model, row shape
and dtype, outside timed windows, and multiply by the number of samples. Source of the counts:
``torch.utils.flop_counter.FlopCounterMode`` and `astkit.profiling.formulas`. As in that counter,
elementwise operations, normalisation and the optimizer count as zero.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from astkit import distributed
from astkit.batch import Batch, arguments, count_rows, map_tensors, tensors
from astkit.profiling.formulas import UNCOUNTED, formulas
from astkit.rng import isolated

ROWS = 2
"""Rows used for counting: two, because batch normalisation cannot train on one."""


@dataclass(frozen=True)
class FlopsPerSample:
    """FLOPs (2 per multiply-add) per row; they do not include ``uncounted`` operations.

    ``forward`` is one pass through model and criterion, ``backward`` the gradient of the
    parameters, including recomputation in fused operations. ``uncounted`` (sorted) names executed
    operations that perform multiply-adds and have no formula; if it is not empty, both numbers are
    lower bounds.
    """

    forward: float
    backward: float
    uncounted: tuple[str, ...] = ()

    @property
    def scoring(self) -> float:
        """FLOPs of a forward pass without gradients."""
        return self.forward

    @property
    def training(self) -> float:
        """FLOPs of a forward and a backward pass."""
        return self.forward + self.backward


class FlopCounter(FlopCounterMode):
    """A silent ``FlopCounterMode`` that also records operations it could not count.

    ``with counter() as counted: epoch()``, then read ``counted.get_total_flops()`` (FLOPs) and
    ``counted.uncounted()``. In this context the fused inference path of
    ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` is off, since it has no formula.
    """

    def __init__(self) -> None:
        options: dict[str, Any] = {"display": False, "custom_mapping": formulas()}
        # otherwise torch rejects unknown higher-order operators and never runs Triton kernels
        if "skip_unsupported" in inspect.signature(FlopCounterMode.__init__).parameters:
            options["skip_unsupported"] = True
        super().__init__(**options)
        self._watch = _Watch()
        self._around = ExitStack()

    def __enter__(self) -> FlopCounter:
        self._watch.seen.clear()
        mha = torch.backends.mha
        with ExitStack() as around:
            around.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
            mha.set_fastpath_enabled(False)
            # outside the counter, to see operations that the counter decomposed
            around.enter_context(self._watch)
            super().__enter__()
            self._around = around.pop_all()
        return self

    def __exit__(self, *error: Any) -> Any:
        try:
            return super().__exit__(*error)
        finally:
            self._around.close()

    def uncounted(self) -> tuple[str, ...]:
        """Sorted names of executed multiply-add operations that were counted as zero."""
        unsupported: Mapping[str, int] = getattr(self, "get_unsupported_ops", dict)()
        return tuple(sorted(self._watch.seen | set(unsupported)))


class _Watch(TorchDispatchMode):
    """Records multiply-add operations without a formula."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = getattr(func, "__name__", "").partition(".")[0]
        if name in UNCOUNTED:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


counter = FlopCounter


def count_flops(
    model: nn.Module, x: Any, y: Any, criterion: Callable[[Any, Any], Any]
) -> FlopsPerSample:
    """Count one forward and one backward pass on the first rows of a batch ``x``, ``y``.

    Inputs and targets may be nested, and ``y`` may be ``x`` itself; see `astkit.batch` for how the
    model is called. ``criterion(outputs, y)`` may be a scalar, losses of rows or tokens,
    or a pair of losses and their mask. At most ``ROWS`` rows are run and the total is divided by
    their number: cost is assumed to be linear in the rows. Modules keep their train or eval mode;
    frozen parameters have no gradient to count. Parameters, ``.grad``, buffers and random
    generators are restored (hooks do run). A compiled model is counted eagerly and stays
    compiled. Where torch's counter fails and the model alone does not, such as with jagged nested
    tensors, all is 0 and ``uncounted`` says so.

    Raises ``ValueError`` if there are no rows or ``x`` and ``y`` differ in their number.
    """
    rows = count_rows(x)
    if rows == 0 or count_rows(y) != rows:
        raise ValueError(
            f"count_flops needs as many rows in x as in y and at least one, got {rows} and "
            f"{count_rows(y)}: pass one batch of the training data"
        )
    model = getattr(model, "_orig_mod", model)
    try:
        return _counted(model, x, y, criterion, counter())
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if "memory" in str(error):
            raise
        _counted(model, x, y, criterion, None)  # raises what is wrong with the model itself
        return FlopsPerSample(0.0, 0.0, (f"this model ({type(error).__name__} in the counter)",))


def _counted(
    model: nn.Module, x: Any, y: Any, criterion: Callable[[Any, Any], Any], mode: FlopCounter | None
) -> FlopsPerSample:
    device = next(tensors(x)).device
    # nothing is compiled before dynamo is imported, and importing it takes seconds
    loaded = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if loaded else nullcontext()
    with torch.inference_mode(False), isolated(device), eager, _parameters_kept(model):
        batch = Batch(None, x, y).take(slice(0, ROWS)).map(_copied)
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        args, keywords = arguments(model, batch.x, batch.y)
        total = (lambda: 0) if mode is None else mode.get_total_flops
        with torch.enable_grad(), mode or nullcontext():
            found = criterion(functional_call(model, buffers, args, keywords), batch.y)
            loss = (found[0] if isinstance(found, tuple) else found).sum()
            forward = total()
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            if trained and loss.requires_grad and distributed.is_sharded(model):
                _backward(loss, trained)  # the graph holds the gathered parameters
            elif trained and loss.requires_grad:
                torch.autograd.grad(loss, trained, allow_unused=True)
            backward = total() - forward
        rows, unknown = batch.rows, () if mode is None else mode.uncounted()
        return FlopsPerSample(forward / rows, backward / rows, unknown)


def _backward(loss: Tensor, parameters: list[nn.Parameter]) -> None:
    """Run a backward pass and restore the gradients of ``parameters``."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient


def _copied(part: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().clone(), part)


@contextmanager
def _parameters_kept(model: nn.Module) -> Iterator[None]:
    """Restore parameters that a forward modifies in place, as ``nn.Embedding(max_norm=...)``."""
    before = [(p, p._version, p.detach().clone()) for p in model.parameters()]
    try:
        yield
    finally:
        for parameter, version, values in before:
            if parameter._version != version:
                parameter.data.copy_(values)
