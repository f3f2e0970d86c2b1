"""A stack of gate layers in few passes over memory, with a custom backward pass.

A rollout is memory-bound: autograd would save seven tensors per layer; this saves the layer's
input and recomputes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def _layer_in_place(x: Tensor, wires: Tensor, c: Tensor) -> Tensor:
    a, b = x.index_select(0, wires).chunk(2)
    out = a * c[3]
    out.add_(c[2]).mul_(b)
    return out.add_(a.mul_(c[1])).add_(c[0])


def _layer_backward(grad: Tensor, x: Tensor, wires: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and ``c``."""
    both = x.index_select(0, wires)
    a, b = both.chunk(2)
    ga, gb = grad * a, b * grad
    of_c = torch.empty_like(c)
    torch.sum(grad, 1, keepdim=True, out=of_c[0])
    torch.sum(ga, 1, keepdim=True, out=of_c[1])
    torch.sum(gb, 1, keepdim=True, out=of_c[2])
    torch.sum(b.mul_(ga), 1, keepdim=True, out=of_c[3])
    # d/da = c1 g + c3 g b and d/db = c2 g + c3 g a, written over a and b
    torch.mul(grad, c[1], out=a).add_(gb.mul_(c[3]))
    torch.mul(grad, c[2], out=b).add_(ga.mul_(c[3]))
    return torch.zeros_like(x).index_add_(0, wires, both), of_c


class _GateStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wires: Sequence[Tensor], *cs: Tensor) -> Tensor:
        inputs = []
        for table, c in zip(wires, cs, strict=True):
            inputs.append(x)
            x = _layer_in_place(x, table, c)
        ctx.save_for_backward(*inputs, *cs)
        ctx.wires = wires
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, depth = ctx.saved_tensors, len(ctx.wires)
        layers = list(zip(saved[:depth], ctx.wires, saved[depth:], strict=True))
        grad, of_cs = grad.contiguous(), []
        for layer in reversed(layers):
            grad, of_c = _layer_backward(grad, *layer)
            of_cs.append(of_c)
        return grad, None, *reversed(of_cs)


def gate_stack(x: Tensor, wires: Sequence[Tensor], cs: Sequence[Tensor]) -> Tensor:
    """Layers of gates, each ``c0 + c1 a + c2 b + c3 ab``; not supported by ``torch.func``.

    Args:
        x: ``[features, cells]``.
        wires: of each layer int64 ``[2 gates]``: where each gate reads ``a``, then ``b``.
        cs: of each layer ``[4, gates, 1]``.

    Returns ``[gates of the last layer, cells]``.
    """
    if torch.is_grad_enabled():
        return _GateStack.apply(x, wires, *cs)
    for table, c in zip(wires, cs, strict=True):
        x = _layer_in_place(x, table, c)
    return x


def plain_stack(x: Tensor, wires: Sequence[Tensor], cs: Sequence[Tensor]) -> Tensor:
    """The same with plain operations, which ``torch.func`` supports."""
    for table, c in zip(wires, cs, strict=True):
        a, b = x.index_select(0, table).chunk(2)
        x = c[0] + c[1] * a + (c[2] + c[3] * a) * b
    return x
