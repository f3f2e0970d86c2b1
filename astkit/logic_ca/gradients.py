"""Four ways to compute the gradient of a sum of losses over independent samples.

They differ only in the order of summation: masks are drawn beforehand and passed as
data, and gradients are clipped only after summation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from astkit.logic_ca.automaton import LogicCA

Parallel = Literal["batch", "vmap", "chunk", "loop"]

Gradients = dict[str, Tensor]


def first_channel_loss(states: Tensor, targets: Tensor) -> Tensor:
    """Sum of squares ``[batch]`` of channel 0 of ``states`` minus ``targets [batch, H, W]``."""
    return (states[:, 0] - targets).square().flatten(1).sum(1)


def gradients(
    model: LogicCA,
    x: Tensor,
    targets: Tensor,
    steps: int,
    masks: Tensor | None = None,
    *,
    hard: bool | Tensor = False,
    parallel: Parallel = "batch",
    chunk_size: int | None = None,
    weight: Tensor | None = None,
    recompute: int | None = None,
) -> tuple[Tensor, Gradients]:
    """Losses of the samples, and the gradient of their sum.

    Args:
        model: model whose parameters are differentiated; ``.grad`` is unchanged.
        x, steps, masks, hard, recompute: see `LogicCA.forward`; "vmap" cannot recompute.
        targets: ``[batch, height, width]`` of channel 0; the loss is `first_channel_loss`.
        parallel: "batch": all samples in one rollout. "vmap": the gradient of each sample by
            ``torch.func``, then their sum. "chunk": ``chunk_size`` samples at a time, which bounds
            memory. "loop": one sample at a time.
        chunk_size: samples at a time, for "chunk" and, optionally, for "vmap", which still holds
            the gradients of all samples.
        weight: ``[batch]``, weights of the samples in the sum; 1 by default.

    Returns losses ``[batch]``, unweighted, and the gradients by parameter name. Raises
    ``ValueError`` for an unknown ``parallel``, an invalid chunk size, or no samples.
    """
    _check(len(x), parallel, chunk_size, recompute)
    named = dict(model.named_parameters())
    with denormals_flushed():
        if parallel == "vmap":

            def of_one(values: Gradients, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
                fires = None if mask is None else mask[:, None]
                args = (x[None], steps, fires, hard)
                states = functional_call(model, values, args, {"fused": False})
                return first_channel_loss(states, y[None])[0]

            where = (None, 0, 0, None if masks is None else 1)
            mapped = vmap(grad_and_value(of_one), in_dims=where, chunk_size=chunk_size)
            each, losses = mapped({n: p.detach() for n, p in named.items()}, x, targets, masks)
            count = torch.ones_like(losses) if weight is None else weight.to(losses)
            return losses, {name: torch.tensordot(count, g, 1) for name, g in each.items()}

        def part(rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
            fires = None if masks is None else masks[:, rows]
            states = model(x[rows], steps, fires, hard, recompute=recompute)
            found = first_channel_loss(states, targets[rows])
            total = found.sum() if weight is None else (found * weight[rows]).sum()
            return found.detach(), torch.autograd.grad(total, list(named.values()))

        size = {"batch": len(x), "loop": 1}.get(parallel, chunk_size or 1)
        first, *others = (slice(start, start + size) for start in range(0, len(x), size))
        losses, summed = part(first)
        for rows in others:
            more, new = part(rows)
            losses = torch.cat([losses, more])
            torch._foreach_add_(summed, new)
        return losses, dict(zip(named, summed, strict=True))


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush denormal numbers (below 1e-38 in float32) to 0 in a context, if the CPU supports it.

    New gates pass their first inputs through, so gradients of the others decay to denormals
    within a few layers, which are slow on a CPU. Applies to the calling thread only: the other
    threads among which torch divides large operations, and other devices, are not affected.
    """
    before = (torch.tensor(1e-39) * 1.0).item() == 0  # torch has no getter
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _check(samples: int, parallel: str, chunk_size: int | None, recompute: int | None) -> None:
    ways = get_args(Parallel)
    if parallel not in ways:
        raise ValueError(f"parallel is {parallel!r}: choose one of {', '.join(ways)}")
    if chunk_size is not None and (chunk_size < 1 or parallel in ("batch", "loop")):
        raise ValueError(
            f"chunk_size is {chunk_size} with parallel={parallel!r}: give 1 or more, and only with"
            ' "chunk" or "vmap"'
        )
    if chunk_size is None and parallel == "chunk":
        raise ValueError('parallel is "chunk", but chunk_size is None: give 1 or more')
    if recompute is not None and parallel == "vmap":
        raise ValueError(
            f'recompute is {recompute}, but parallel is "vmap": bound its memory by chunk_size'
        )
    if samples < 1:
        raise ValueError("x has no samples: give at least 1")
