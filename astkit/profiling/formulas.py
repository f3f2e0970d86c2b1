"""FLOP formulas, 2 per multiply-add, of operations not covered by torch's counter.

A recurrent layer multiplies each weight matrix once with every row of every time step, so
its cost follows from the shapes of the weights, which cover layers, directions and projections. Its
fused backward computes the same products twice, for the gradients of inputs and weights. A
packed sequence has rows ``[steps, features]`` without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

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


def _addbmm(added: Any, a: Any, b: Any, *rest: Any, **options: Any) -> int:
    return int(2 * prod(a) * b[-1])


def _grouped(a: Any, b: Any, *rest: Any, **options: Any) -> int:
    # if only one of the two is a stack of matrices, the groups share the other's rows
    return int(2 * prod(a if len(b) == 3 else a[-2:]) * b[-1])


def _recurrent(x: Any, weights: Iterable[Any], products: int) -> int:
    matrices = sum(prod(weight) for weight in weights if len(weight) == 2)  # biases have one
    return int(products * 2 * prod(x[:-1]) * matrices)


def _onednn(products: int) -> Formula:
    # without biases, zero matrices are passed in their place
    return lambda x, *rest, **options: _recurrent(x, rest[:2], products)


def _fused(x: Any, weights: Any, *rest: Any, **options: Any) -> int:
    return _recurrent(x, weights, 1)


def _fused_backward(x: Any, weights: Any, *rest: Any, **options: Any) -> int:
    wanted = rest[-1]  # gradients of the input, both states, the weights
    return _recurrent(x, weights, 1 + bool(wanted[3]))


_FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mv", "dot", "vdot", "_int_mm", "mkldnn_linear"), _inner(0)),
    **dict.fromkeys(("addmv", "addmv_", "addmm_", "baddbmm_", "_addmm_activation"), _inner(1)),
    **dict.fromkeys(("addbmm", "addbmm_"), _addbmm),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), _grouped),
    "mkldnn_rnn_layer": _onednn(1),
    "mkldnn_rnn_layer_backward": _onednn(2),
    "_cudnn_rnn": _fused,
    "_cudnn_rnn_backward": _fused_backward,
}

_FLASH = "_scaled_dot_product_flash_attention"
# 2 products forward and 5 backward, one of which recomputes the scores; pytorch #195460
_ATTENTION = (
    f"{_FLASH}_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math_for_mps",
)
