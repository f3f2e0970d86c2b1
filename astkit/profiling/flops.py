"""FLOPs of a batch, counted from the executed operations: 2 per multiply-add.

Counting slows a pass (up to 14 times for small layers), so count once per model and input shape
(`Costs`), outside timed windows. Source of the counts: torch's ``FlopCounterMode`` and the
formulas at the end of this file. Elementwise operations, normalisation and the optimizer count as
zero, as they do there.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from astkit import distributed, rng
from astkit.datasets.batch import Batch, arguments, map_tensors, targets_after, tensors
from astkit.progress import warn

Shape = tuple[tuple[int, ...], ...]

BUCKET = 8
"""Lengths are rounded up to a multiple of it."""


class PassFlops(NamedTuple):
    """FLOPs of one kind of pass: ``per_row`` for each row and ``fixed`` for each pass."""

    per_row: float = 0.0
    fixed: float = 0.0

    def __call__(self, rows: float) -> float:
        """FLOPs of a pass over ``rows`` rows; no rows cost nothing."""
        return self.per_row * rows + self.fixed if rows else 0.0


NOTHING = PassFlops()


@dataclass(frozen=True)
class BatchFlops:
    """FLOPs (2 per multiply-add) of a batch: ``cost.forward(rows)``.

    ``scoring`` is a pass in eval mode through model and criterion, ``forward`` one in training mode
    and ``backward`` the gradient of the parameters, including recomputation in fused operations.
    ``uncounted`` (sorted) names what is not included: operations that perform multiply-adds and
    have no formula. If it is not empty, no ratio may be formed.
    """

    scoring: PassFlops = NOTHING
    forward: PassFlops = NOTHING
    backward: PassFlops = NOTHING
    uncounted: tuple[str, ...] = ()

    def training(self, rows: float) -> float:
        """FLOPs of a forward and a backward pass in training mode."""
        return self.forward(rows) + self.backward(rows)


RowFlops = float | Callable[[Any], float]
"""Training FLOPs of a row: a number, or a function of the inputs of a batch that returns it."""

Count = Callable[[nn.Module, Batch], BatchFlops]
"""Counts the FLOPs of a batch in a model."""


def stated(flops: RowFlops, inputs: Any) -> BatchFlops:
    """The cost of a batch of ``inputs`` whose rows take ``flops`` to train on.

    A third of them is the forward pass, which scoring costs too, and two thirds the backward pass:
    2 and 4 FLOPs per parameter and input (Kaplan et al., 2020, section 2.1). Raises ``ValueError``
    unless the figure is a finite number above 0.
    """
    row = flops(inputs) if callable(flops) else flops
    if isinstance(row, bool) or not isinstance(row, Real) or not 0 < row < math.inf:
        what = "returns" if callable(flops) else "is"
        raise ValueError(f"flops {what} {row!r:.80}: give the FLOPs of training on one row")
    forward = PassFlops(float(row) / 3)
    return BatchFlops(forward, forward, PassFlops(float(row) * 2 / 3))


class Costs:
    """FLOPs of batches, counted once for each shape of their rows.

    The length of a text or a series, whose rows have one or two dimensions, is rounded up to a
    multiple of `BUCKET`, so that few of them are counted; not where the model refuses that.

    Args:
        model: the model in training; another one is counted likewise.
        flops: training FLOPs of its rows, which are then not counted.

    Attributes:
        known: costs by model, which of the parameters in training are trained, and shape.
        trained: for each parameter whether it was trained at the latest `note_trained`.

    Raises ``ValueError`` if ``flops`` is no number of FLOPs.
    """

    def __init__(self, model: nn.Module, flops: RowFlops | None = None) -> None:
        if flops is not None and not callable(flops):
            stated(flops, None)
        self.model, self.flops = model, flops
        self.known: dict[tuple[nn.Module, tuple[bool, ...], Shape], BatchFlops] = {}
        self._warned: set[str] = set()
        self.note_trained()

    def note_trained(self) -> None:
        """Note which parameters are trained, on which the cost of gradients depends."""
        self.trained = tuple([each.requires_grad for each in self.model.parameters()])

    def add(self, model: nn.Module, batch: Batch, count: Count) -> BatchFlops:
        """The cost of a shape that is not known; ``count(model, batch)`` is called for a new one.

        Warns once for each operation that cannot be counted.
        """
        shape = shape_of(batch)
        if model is self.model and self.flops is not None:
            cost = stated(self.flops, batch.x)
        else:
            cost = self._of_rounded_length(model, batch, shape, count) or count(model, batch)
            unknown = set(cost.uncounted) - self._warned
            self._warned |= unknown
            if unknown:
                warn(
                    f"FLOPs of {', '.join(sorted(unknown))} cannot be counted: the ledger holds a"
                    " lower bound, and no ratio is computed from it; give your own figure as flops="
                )
        self.known[model, self.trained, shape] = cost
        return cost

    def _of_rounded_length(
        self, model: nn.Module, batch: Batch, shape: Shape, count: Count
    ) -> BatchFlops | None:
        """The cost of rows of the next length that is counted; ``None`` if there is none."""
        length = shape[0][0] if len(shape[0]) in (1, 2) else 0
        longer = -(-length // BUCKET) * BUCKET
        # a table of positions, such as a tensor of the model may be, has none beyond its size
        sizes = {n for each in (*model.parameters(), *model.buffers()) for n in each.shape}
        longer = min({longer, *(n for n in sizes if length <= n < longer)})
        if longer == length:
            return None
        rounded = tuple(tuple(longer if n == length else n for n in part) for part in shape)
        key = (model, self.trained, rounded)
        if key not in self.known:
            with suppress(Exception):  # the model may take rows of its own length only
                cost = count(model, _lengthened(batch, length, longer))
                if not cost.uncounted:
                    self.known[key] = cost
        return self.known.get(key)


def shape_of(batch: Batch) -> Shape:
    """Shapes of the inputs of one row."""
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors(batch.x))


def _lengthened(batch: Batch, length: int, longer: int) -> Batch:
    """``batch`` with the last entry repeated wherever a row has ``length`` of them."""

    def repeated(tensor: Tensor) -> Tensor:
        for dimension, size in enumerate(tensor.shape):
            if dimension and size == length:
                places = torch.arange(longer, device=tensor.device).clamp(max=length - 1)
                tensor = tensor.index_select(dimension, places)
        return tensor

    return batch.map(partial(map_tensors, repeated))


def count_flops(
    model: nn.Module, x: Any, y: Any, criterion: Callable[[Any, Any], Any]
) -> BatchFlops:
    """Count passes of ``model`` on copies of the first row of a batch ``x``, ``y``.

    Inputs and targets may be nested, and ``y`` may be ``x`` itself; see `batch` for how the
    model is called. ``criterion(outputs, y)`` may be a scalar, losses of rows or tokens,
    or a pair of losses and their mask. Batches of two to four rows show which part of the cost is
    fixed; a cost that is not linear in the rows is ``uncounted``. What differs between rows or at
    random, or happens outside torch's operations (NumPy, kernels in an ``autograd.Function``), is
    not seen. Frozen parameters have no gradient to count, and modules in eval mode stay there.
    Parameters, ``.grad``, buffers and random generators are restored (hooks do run). A compiled
    model is counted eagerly and stays compiled. Where a pass fails, as torch's counter does with
    jagged nested tensors, all is 0 and ``uncounted`` says so; what is wrong with the model itself
    is raised in training.
    """
    model = distributed.unwrapped(getattr(model, "_orig_mod", model))
    # nothing is compiled before dynamo is imported, and importing it takes seconds
    loaded = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if loaded else nullcontext()
    isolated = rng.isolated(next(tensors(x)).device, "flops")
    run = partial(_run, model, Batch(None, x, y), criterion)
    with torch.inference_mode(False), rng.restored(), isolated, eager:
        random.seed(0)  # a random cost is the same in every run
        np.random.seed(0)
        try:
            return _cost(run)
        except (IndexError, NotImplementedError, RuntimeError, TypeError) as error:
            if "memory" in str(error):
                raise
            return BatchFlops(uncounted=(f"this model ({type(error).__name__} in the counter)",))


class _Pass(NamedTuple):
    """FLOPs of a pass."""

    forward: int
    backward: int
    uncounted: set[str]


def _cost(run: Callable[..., _Pass]) -> BatchFlops:
    """The cost of a row, from passes over two rows and more."""
    two, three = run(2), run(3, training=False)
    uncounted = two.uncounted | three.uncounted
    forward, backward = PassFlops(two.forward / 2), PassFlops(two.backward / 2)
    scoring = PassFlops(three.forward / 3)
    if 2 * three.forward != 3 * two.forward:  # a fixed part, or the modes differ
        more, scored = run(3), run(2, training=False)
        forward, backward = _line(two.forward, more.forward), _line(two.backward, more.backward)
        scoring = _line(scored.forward, three.forward)
        if (forward(4), scoring(4)) != (run(4).forward, run(4, training=False).forward):
            uncounted |= {"a model whose cost is not linear in the rows"}
    return BatchFlops(scoring, forward, backward, tuple(sorted(uncounted)))


def _line(two: int, three: int) -> PassFlops:
    """The cost of a pass, from those over two and three rows."""
    return PassFlops(three - two, 3 * two - 2 * three)


def _run(
    model: nn.Module,
    batch: Batch,
    criterion: Callable[[Any, Any], Any],
    rows: int,
    *,
    training: bool = True,
) -> _Pass:
    """One pass over ``rows`` copies of the first row."""
    copied = partial(map_tensors, lambda tensor: tensor.detach().clone())
    batch = batch.take(torch.tensor([0] * rows)).map(copied)
    # copies, since a forward may modify them, as nn.Embedding(max_norm=...)
    state = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    copies = {
        name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    trained = [copy for copy in copies.values() if copy.requires_grad]
    given = batch.map(partial(map_tensors, lambda tensor: tensor))  # which the model may write to
    args, keywords = arguments(model, given.x, given.y)
    counter = FlopCounter()
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, before in modes:
            module.training = training and before
        with torch.set_grad_enabled(training), counter:
            outputs = functional_call(model, state | copies, args, keywords)
            losses = criterion(outputs, targets_after(batch, given))
            loss = (losses[0] if isinstance(losses, tuple) else losses).sum()
            forward = counter.get_total_flops()
            if trained and loss.requires_grad:
                torch.autograd.grad(loss, trained, allow_unused=True)
    finally:
        for module, before in modes:
            module.training = before
    return _Pass(forward, counter.get_total_flops() - forward, counter.uncounted())


class FlopCounter(FlopCounterMode):
    """A silent ``FlopCounterMode`` that also records operations it could not count.

    ``with FlopCounter() as counted: epoch()``, then read ``counted.get_total_flops()`` (FLOPs) and
    ``counted.uncounted()``. In this context the fused inference path of
    ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` is off, since it has no formula.
    A custom operator is counted after ``torch.utils.flop_counter.register_flop_formula``.
    """

    def __init__(self) -> None:
        options: dict[str, Any] = {"display": False, "custom_mapping": formulas()}
        # otherwise torch rejects unknown higher-order operators and never runs Triton kernels
        if "skip_unsupported" in inspect.signature(FlopCounterMode.__init__).parameters:
            options["skip_unsupported"] = True
        super().__init__(**options)
        self.mod_tracker: Any = _WholeModel()
        self._watch = _Watch()
        self._around = ExitStack()

    def __enter__(self) -> FlopCounter:
        self._watch = _Watch()
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

    def uncounted(self) -> set[str]:
        """Names of multiply-add operations that were counted as zero."""
        return self._watch.unknown | set(getattr(self, "get_unsupported_ops", dict)())


class _WholeModel(nullcontext[None]):
    """In place of torch's hooks on modules: slow, and they fail without gradients."""

    parents = frozenset({"Global"})


_NAMESPACES = """
aten prim prims profiler inductor rngprims debugprims streams c10d c10d_functional _c10d_functional
_c10d_functional_autograd _dtensor fsdp
"""
_LIBRARIES = frozenset(_NAMESPACES.split())
"""Namespaces of torch's own operators, which are known or perform no multiply-adds."""


class _Watch(TorchDispatchMode):
    """Records multiply-add operations without a formula."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = getattr(func, "__name__", "").partition(".")[0]
        library = getattr(func, "namespace", "aten")
        if name in UNCOUNTED and library == "aten":
            self.unknown.add(name)
        known = library in _LIBRARIES or getattr(func, "overloadpacket", None) in flop_registry
        if not known and isinstance(func, torch._ops.OpOverload):
            self.unknown.add(f"{library}::{name}")
        return func(*args, **(kwargs or {}))


Formula = Callable[..., int]

_NAMES = """
lstm gru rnn_tanh rnn_relu _lstm_mps lstm_mps_backward miopen_rnn miopen_rnn_backward _trilinear
_euclidean_dist _cdist_forward _cdist_backward _sparse_addmm _sparse_mm sparse_sampled_addmm
_weight_int4pack_mm _weight_int8pack_mm _transformer_encoder_layer_fwd _native_multi_head_attention
_fft_c2c _fft_c2r _fft_r2c linalg_cholesky_ex _linalg_eigh linalg_inv_ex linalg_ldl_factor_ex
linalg_lu_factor_ex linalg_qr _linalg_det _linalg_slogdet _linalg_solve_ex linalg_solve_triangular
_linalg_svd linalg_eig linalg_lstsq linalg_matrix_exp linalg_pinv cholesky_solve
"""
UNCOUNTED = frozenset(_NAMES.split())
"""Operations that perform multiply-adds and have no formula here or in torch."""


def formulas() -> dict[Any, Formula]:
    """Formulas of operations that this version of torch has but does not count."""
    every = dict(_FORMULAS)
    for suffix in ("", "_backward"):
        flash = flop_registry[getattr(torch.ops.aten, f"{_FLASH}{suffix}")]
        every |= dict.fromkeys((f"{name}{suffix}" for name in _ATTENTION), _without_output(flash))
    known = {getattr(torch.ops.aten, name, None): formula for name, formula in every.items()}
    return {op: formula for op, formula in known.items() if op and op not in flop_registry}


def _without_output(registered: Callable[..., Any]) -> Formula:
    return lambda *shapes, out_shape=None, **options: int(registered(*shapes, **options))


def _inner(place: int) -> Formula:
    """A product whose left matrix is argument number ``place``."""
    return lambda *shapes, out_shape, **options: 2 * prod(out_shape) * shapes[place][-1]


def _grouped(a: Any, b: Any, *rest: Any, **options: Any) -> int:
    # if only one of the two is a stack of matrices, the groups share the other's rows
    return int(2 * prod(a if len(b) == 3 else a[-2:]) * b[-1])


def _recurrent(x: Any, weights: Iterable[Any], products: int) -> int:
    """Each weight matrix is multiplied once with every row of every time step.

    The shapes of the weights cover layers, directions and projections. A fused backward computes
    the same products twice; a packed sequence has rows ``[steps, features]`` without padding.
    """
    matrices = sum(prod(weight) for weight in weights if len(weight) == 2)  # biases have one
    return int(products * 2 * prod(x[:-1]) * matrices)


def _onednn(products: int) -> Formula:
    # without biases, zero matrices are passed in their place
    return lambda x, *rest, **options: _recurrent(x, rest[:2], products)


def _fused_backward(x: Any, weights: Any, *rest: Any, **options: Any) -> int:
    wanted = rest[-1]  # gradients of the input, both states, the weights
    return _recurrent(x, weights, 1 + bool(wanted[3]))


_FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mv", "dot", "vdot", "_int_mm", "mkldnn_linear"), _inner(0)),
    **dict.fromkeys(("addmv", "addmv_", "addmm_", "baddbmm_", "_addmm_activation"), _inner(1)),
    **dict.fromkeys(("addbmm", "addbmm_"), lambda c, a, b, *_, **options: 2 * prod(a) * b[-1]),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), _grouped),
    "mkldnn_rnn_layer": _onednn(1),
    "mkldnn_rnn_layer_backward": _onednn(2),
    "_cudnn_rnn": lambda x, weights, *rest, **options: _recurrent(x, weights, 1),
    "_cudnn_rnn_backward": _fused_backward,
}

_FLASH = "_scaled_dot_product_flash_attention"
# 2 products forward and 5 backward, one of which recomputes the scores; pytorch #195460
_ATTENTION = (
    f"{_FLASH}_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math_for_mps",
)
