"""Four ways to compute the gradient of a sum of losses over independent samples.

They differ only in the order of summation: masks are drawn beforehand and passed as
data, and gradients are clipped only after summation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from astkit.systems.automaton.automaton import LogicCA

Parallel = Literal["batch", "vmap", "loop"] | int

Gradients = dict[str, Tensor]


def first_channel_loss(states: Tensor, targets: Tensor) -> Tensor:
    """Sum of squares ``[batch]`` of channel 0 of ``states`` minus ``targets [batch, H, W]``.

    Raises ``ValueError`` for targets of another shape.
    """
    if targets.shape != states[:, 0].shape:
        raise ValueError(
            f"targets has shape {list(targets.shape)}: give {list(states[:, 0].shape)}, the values"
            " of channel 0"
        )
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
    weight: Tensor | None = None,
) -> tuple[Tensor, Gradients]:
    """Losses of the samples, and the gradient of their sum.

    Args:
        model: model whose parameters are differentiated; ``.grad`` is unchanged.
        x, steps, masks, hard: see `LogicCA.forward`.
        targets: ``[batch, height, width]`` of channel 0; the loss is `first_channel_loss`.
        parallel: "batch": all samples in one rollout. "vmap": the gradient of each sample by
            ``torch.func``, then their sum. A number: so many samples at a time, which bounds
            memory. "loop": one sample at a time.
        weight: ``[batch]``, weights of the samples in the sum; 1 by default.

    Returns losses ``[batch]``, unweighted, and the gradients by parameter name. Raises
    ``ValueError`` for an unknown ``parallel`` and targets of another shape.
    """
    sizes: dict[object, int] = {"batch": len(x), "vmap": len(x), "loop": 1}
    size = sizes.get(parallel, parallel)
    if not isinstance(size, int) or size < 1:
        raise ValueError(
            f'parallel is {parallel!r} for {len(x)} samples: give "batch", "vmap", "loop" or a'
            " number of samples at a time, and 1 sample or more"
        )
    named = dict(model.named_parameters())
    some = next(iter(named.values()))
    weight = some.new_ones(len(x)) if weight is None else weight.to(some)

    def of_one(values: Gradients, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        fires = None if mask is None else mask[:, None]
        states = functional_call(model, values, (x[None], steps, fires, hard), {"fused": False})
        return first_channel_loss(states, y[None])[0]

    if parallel == "vmap":
        each_of = vmap(grad_and_value(of_one), (None, 0, 0, None if masks is None else 1))
        each, losses = each_of({n: p.detach() for n, p in named.items()}, x, targets, masks)
        return losses, {name: torch.tensordot(weight, g, 1) for name, g in each.items()}
    parts, summed = [], [torch.zeros_like(each) for each in named.values()]
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        fires = None if masks is None else masks[:, rows]
        losses = first_channel_loss(model(x[rows], steps, fires, hard), targets[rows])
        total = (losses * weight[rows]).sum()
        torch._foreach_add_(summed, torch.autograd.grad(total, list(named.values())))
        parts.append(losses.detach())
    return torch.cat(parts), dict(zip(named, summed, strict=True))
