"""FLOPs per sample, counted from the operations that run: 2 per multiply-add.

Counting slows a step down (up to 14 times for small layers), so count once per model, row shape
and dtype, outside any timed window, and multiply by the number of samples. Source of the counts:
``torch.utils.flop_counter.FlopCounterMode``. Elementwise work, normalisation and the optimizer are
not multiply-adds of a matrix product or a convolution and count as zero, as in that counter.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from astkit.rng import isolated

ROWS = 2
"""Rows that are run to count: two, because batch normalisation cannot train on one."""

_NAMES = """
lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn
_cudnn_rnn_backward miopen_rnn miopen_rnn_backward _lstm_mps lstm_mps_backward
mv dot vdot addmv addbmm _addmm_activation _int_mm _grouped_mm _scaled_grouped_mm
_trilinear _euclidean_dist _cdist_forward _cdist_backward
_sparse_addmm _sparse_mm sparse_sampled_addmm _weight_int4pack_mm _weight_int8pack_mm
mkldnn_linear mkldnn_convolution miopen_convolution mps_convolution
_transformer_encoder_layer_fwd _native_multi_head_attention
_scaled_dot_product_fused_attention_overrideable
_scaled_dot_product_attention_math_for_mps
"""
_MULTIPLY_ADD_OPS = frozenset(_NAMES.split())


@dataclass(frozen=True)
class FlopsPerSample:
    """FLOPs (2 per multiply-add) that one row costs; ``uncounted`` operations are not in them.

    ``forward`` is one pass through the model and the criterion, ``backward`` the gradient of the
    parameters alone. ``uncounted`` names the operations that ran, do multiply-adds and have no
    formula (sorted); when it is not empty both numbers are lower bounds.
    """

    forward: float
    backward: float
    uncounted: tuple[str, ...] = ()

    @property
    def scoring(self) -> float:
        """FLOPs of a pass without gradients."""
        return self.forward

    @property
    def training(self) -> float:
        """FLOPs of a pass with its backward."""
        return self.forward + self.backward


class FlopCounter(FlopCounterMode):
    """A silent ``FlopCounterMode`` that also says what it could not count.

    Within it the fused inference path of ``nn.TransformerEncoderLayer`` and
    ``nn.MultiheadAttention`` is off, since that path has no formula. Use it as a context manager;
    read ``get_total_flops()`` (FLOPs) and ``uncounted()`` inside or afterwards.
    """

    def __init__(self) -> None:
        options: dict[str, Any] = {"display": False, "custom_mapping": attention_mapping()}
        # without it torch refuses unknown higher-order operators and never runs Triton kernels
        if "skip_unsupported" in inspect.signature(FlopCounterMode.__init__).parameters:
            options["skip_unsupported"] = True
        super().__init__(**options)
        self._watch = _Watch(frozenset(str(op).rpartition(".")[2] for op in self.flop_registry))
        self._around = ExitStack()

    def __enter__(self) -> FlopCounter:
        self._watch.seen.clear()
        with ExitStack() as around:
            around.enter_context(_no_fastpath())
            # outside the counter, so that it sees what the counter has decomposed
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
        """Names of the operations seen that do multiply-adds and were counted as zero, sorted."""
        unsupported: Mapping[str, int] = getattr(self, "get_unsupported_ops", dict)()
        return tuple(sorted(self._watch.seen | set(unsupported)))


class _Watch(TorchDispatchMode):
    """Note the multiply-add operations without a formula that pass by."""

    supports_higher_order_operators = True

    def __init__(self, counted: frozenset[str]) -> None:
        super().__init__()
        self.watched = _MULTIPLY_ADD_OPS - counted
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = getattr(func, "__name__", "").partition(".")[0]
        if name in self.watched:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def counter() -> FlopCounter:
    """A fresh context manager that counts whatever runs in it: ``with counter() as c: epoch()``."""
    return FlopCounter()


def attention_mapping() -> Mapping[Any, Callable[..., int]]:
    """Formulas for the CPU attention kernel where torch has none (before 2.15): usually empty.

    It takes the formulas of the CUDA flash kernel, whose leading arguments are the same:
    2 matrix products forward, 5 backward (one recomputes the scores). See pytorch #195460.
    """
    aten = torch.ops.aten
    twins = {
        aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            aten._scaled_dot_product_flash_attention_backward
        ),
    }
    return {op: _formula(twin) for op, twin in twins.items() if op not in flop_registry}


def _formula(op: Any) -> Callable[..., int]:
    """The registered formula of ``op``, to be registered once more for another operation."""
    registered = flop_registry[op]

    def formula(*shapes: Any, out_shape: Any = None, **options: Any) -> int:
        return int(registered(*shapes, **options))

    return formula


def count_flops(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
) -> FlopsPerSample:
    """Count one forward and one backward on the first rows of ``x [B, ...]`` and ``y [B, ...]``.

    ``criterion(model(x), y)`` may be a scalar or one loss a row. At most ``ROWS`` rows are run and
    the total is divided by them, so the cost is taken to grow linearly with the rows. The model
    runs as it is: train or eval flags a module, frozen parameters without their gradients. Nothing
    is left behind: parameters, ``.grad``, buffers and the random generators are as before (hooks
    do run). A compiled model is counted eagerly and stays compiled.

    Raises ``ValueError`` when there are no rows or ``x`` and ``y`` differ in their number.
    """
    if len(x) == 0 or len(x) != len(y):
        raise ValueError(
            f"count_flops needs as many rows in x as in y and at least one, got {len(x)} and "
            f"{len(y)}: pass one batch of the training data."
        )
    model = getattr(model, "_orig_mod", model)
    with torch.inference_mode(False), isolated(x.device), _eager(), _parameters_kept(model):
        inputs, targets = x[:ROWS].detach().clone(), y[:ROWS].detach().clone()
        return _count(model, inputs, targets, criterion)


def _count(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
) -> FlopsPerSample:
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    with torch.enable_grad(), counter() as counted:
        loss = criterion(functional_call(model, buffers, (x,)), y).sum()
        forward = counted.get_total_flops()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if trained and loss.requires_grad:
            torch.autograd.grad(loss, trained, allow_unused=True)
        total = counted.get_total_flops()
    return FlopsPerSample(forward / len(x), (total - forward) / len(x), counted.uncounted())


def _eager() -> AbstractContextManager[object]:
    """Ignore ``torch.compile`` within the block: counting must not touch what it compiled."""
    # nothing can be compiled before dynamo is loaded, and loading it takes seconds
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


@contextmanager
def _parameters_kept(model: nn.Module) -> Iterator[None]:
    """Put back parameters that a forward changes in place, as ``nn.Embedding(max_norm=...)``."""
    before = [(p, p._version, p.detach().clone()) for p in model.parameters()]
    try:
        yield
    finally:
        for parameter, version, values in before:
            if parameter._version != version:
                parameter.data.copy_(values)


@contextmanager
def _no_fastpath() -> Iterator[None]:
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
