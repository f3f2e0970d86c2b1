"""A cellular automaton whose rule is a network of learnable logic gates.

Source: Miotti et al., "Differentiable Logic Cellular Automata", 2025, and its notebook
(google-research/self-organising-systems at 3d5547c). Every gate, and every mixture of gates, is
``c0 + c1 a + c2 b + c3 ab``; source of the mixture: Petersen et al., "Deep Differentiable Logic
Gate Networks", NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit import rng
from astkit.checks import check_choice, check_number

Boundary = Literal["periodic", "zero"]

Layer = tuple[Tensor, Tensor]
"""Where each gate reads ``a``, then ``b``, int64 ``[2 gates]``; coefficients ``[4, gates, 1]``."""


BASIS = tuple(
    (f00, f10 - f00, f01 - f00, f11 - f10 - f01 + f00)
    for f00, f01, f10, f11 in product((0, 1), repeat=4)
)
"""Coefficients of 1, a, b and ab of each gate.

A gate's index, its op, is its outputs for (a, b) = 00, 01, 10, 11 read as a 4-bit number."""

PASS_THROUGH = 3
"""The gate "A": the initial gate of an automaton."""

FIRST_LOGIT, PAPERS_FIRST_LOGIT = 5.0, 10.0
"""Its initial logit, others are 0: a share of .908 in the mixture; in the paper .99932."""

NEIGHBOURS, CENTRE = (0, 1, 2, 3, 5, 6, 7, 8), 4
"""Positions in a 3x3 patch, row by row."""


@dataclass(frozen=True)
class LogicCAConfig:
    """Sizes of an automaton; those of the paper's notebook are in `astkit.systems.automaton.tasks`.

    Attributes:
        channels: values in [0, 1] per cell.
        kernels: perception kernels; they share their wiring and have their own logits.
        kernel_layers: gates of each layer of a kernel; the first has 8, one per neighbour.
        update_layers: gates of each layer of the update network; the last gives the channels.
        boundary: "periodic", or "zero" for zero padding.
        fire_rate: share of cells updated per step, in (0, 1]; 1 is synchronous.
        first_logit: initial logit of the pass-through gate; those of other gates are 0.
        seed: seed of the wiring.

    Raises ``ValueError`` for incompatible sizes.
    """

    channels: int
    kernels: int
    kernel_layers: tuple[int, ...]
    update_layers: tuple[int, ...]
    boundary: Boundary = "periodic"
    fire_rate: float = 1.0
    first_logit: float = FIRST_LOGIT
    seed: int = 23

    def __post_init__(self) -> None:
        check_choice("boundary", self.boundary, get_args(Boundary))
        check_number("fire_rate", self.fire_rate)
        if self.kernel_layers[0] != len(NEIGHBOURS) or self.update_layers[-1] != self.channels:
            raise ValueError(
                f"kernel_layers is {self.kernel_layers} and update_layers {self.update_layers}:"
                " begin the first with 8, one per neighbour, and end the other with the number of"
                f" channels, {self.channels}"
            )
        update = (self.update_inputs, *self.update_layers)
        for inputs, outputs in (*pairwise(self.kernel_layers), *pairwise(update)):
            least, most = -(-inputs // 2), inputs * (inputs - 1) // 2  # all inputs, all pairs
            if not least <= outputs <= most:
                raise ValueError(
                    f"a layer of {outputs} gates cannot follow {inputs} values: give from {least}"
                    f" to {most} gates"
                )

    @property
    def update_inputs(self) -> int:
        """Inputs of the update network: the cell's channels and the outputs of perception."""
        return self.channels * (1 + self.kernels * self.kernel_layers[-1])

    @property
    def gates(self) -> tuple[int, int]:
        """Gates with their own logits: in perception, in the update network."""
        return self.kernels * sum(self.kernel_layers), sum(self.update_layers)

    @property
    def gates_per_cell(self) -> int:
        """Gates evaluated per cell and step: every kernel perceives each channel."""
        perception, update = self.gates
        return self.channels * perception + update


def check_rollout(
    x: Tensor, channels: int, steps: int, masks: Tensor | None, fire_rate: float
) -> None:
    """Raise ``ValueError`` for arguments of a rollout that do not fit; see `LogicCA.forward`."""
    if x.ndim != 4 or x.shape[1] != channels or 0 in x.shape:
        raise ValueError(
            f"x has shape {list(x.shape)}: give [batch, {channels}, height, width], none of them 0"
        )
    if masks is None and fire_rate < 1:
        raise ValueError(
            f"masks is None, but the fire rate is {fire_rate}: draw them with"
            " astkit.systems.automaton.tasks.fire_masks"
        )
    wanted = [steps, len(x), 1, *x.shape[2:]]
    if masks is not None and list(masks.shape) != wanted:
        raise ValueError(f"masks has shape {list(masks.shape)}: give {wanted}, a mask per step")


class LogicCA(nn.Module):
    """Differentiable logic cellular automaton: maps a state to the state after ``steps`` steps.

    In each step, all kernels read the 3x3 neighbourhood of each cell, channel by channel; the
    update network maps the cell's channels and the kernels' outputs to the new state. A soft
    gate is the softmax mixture of all sixteen gates; a hard one is the most likely gate.

    Inputs of the update network are numbered: the channels, then ``c * S * K + s * K + k`` for
    output s of kernel k on channel c.

    Attributes:
        kernel_logits: ``[gates, kernels, 16]`` per layer.
        update_logits: ``[gates, 16]`` per layer.
    """

    def __init__(self, config: LogicCAConfig) -> None:
        super().__init__()
        self.config = config
        kernels = [torch.zeros(size, config.kernels, len(BASIS)) for size in config.kernel_layers]
        update = [torch.zeros(size, len(BASIS)) for size in config.update_layers]
        for logits in (*kernels, *update):
            logits[..., PASS_THROUGH] = config.first_logit
        self.kernel_logits, self.update_logits = map(nn.ParameterList, (kernels, update))
        generator = partial(rng.generator, config.seed, "wiring")
        # a kernel's first layer: each neighbour, in random order, with the centre
        order = torch.randperm(len(NEIGHBOURS), generator=generator("kernel", 0))
        a = torch.tensor(NEIGHBOURS)[order]
        self.register_buffer("kernel_wires_0", torch.stack([a, torch.full_like(a, CENTRE)]))
        for i, sizes in enumerate(pairwise(config.kernel_layers), 1):
            self.register_buffer(f"kernel_wires_{i}", unique_pairs(*sizes, generator("kernel", i)))
        for i, sizes in enumerate(pairwise((config.update_inputs, *config.update_layers))):
            self.register_buffer(f"update_wires_{i}", unique_pairs(*sizes, generator("update", i)))

    @property
    def kernel_wires(self) -> list[Tensor]:
        """Int64 ``[2, gates]`` per kernel layer; the first reads patch positions."""
        return [self.get_buffer(f"kernel_wires_{i}") for i in range(len(self.kernel_logits))]

    @property
    def update_wires(self) -> list[Tensor]:
        """Int64 ``[2, gates]`` per update layer."""
        return [self.get_buffer(f"update_wires_{i}") for i in range(len(self.update_logits))]

    def forward(
        self,
        x: Tensor,
        steps: int = 1,
        masks: Tensor | None = None,
        hard: bool | Tensor = False,
        *,
        fused: bool = True,
    ) -> Tensor:
        """The state after ``steps`` steps.

        Args:
            x: ``[batch, channels, height, width]`` in [0, 1], of any dtype.
            masks: bool ``[steps, batch, 1, height, width]`` on any device, true if a cell is
                updated; see `fire_masks`. Required for a fire rate below 1.
            hard: hard gates, with the gradients of soft ones; as bool ``[gates]``, kernels first:
                which gates are hard.
            fused: False uses plain operations, which ``torch.func`` supports.

        Returns ``[batch, channels, height, width]``. Raises ``ValueError`` for wrong shapes or
        missing masks.
        """
        check_rollout(x, self.config.channels, steps, masks, self.config.fire_rate)
        gate_layer = _FusedLayer.apply if fused else plain_layer
        first, kernel, update = self._rule(hard)
        state = x.transpose(0, 1).to(first.dtype)  # features first
        fires = None if masks is None else masks.to(x.device).transpose(1, 2)
        for step in range(steps):
            seen = self._first_layer(state, first)
            for layer in kernel:
                seen = gate_layer(seen, *layer)
            cells = state.flatten(1)
            new = torch.cat([cells, seen.view(-1, cells.shape[1])])
            for layer in update:
                new = gate_layer(new, *layer)
            new = new.view(state.shape)
            state = new if fires is None else torch.where(fires[step], new, state)
        return state.transpose(0, 1)

    def _rule(self, hard: bool | Tensor) -> tuple[Tensor, list[Layer], list[Layer]]:
        """Coefficients ``[8, kernels, 4]`` of the first kernel layer; the other layers."""
        config, depth = self.config, len(self.kernel_logits)
        logits = [*self.kernel_logits, *self.update_logits]
        sizes = [p.shape[:-1].numel() for p in logits]
        c = coefficients(torch.cat([p.flatten(0, -2) for p in logits]), hard)
        first = c[: sizes[0]].unflatten(0, (-1, config.kernels))
        cs = [part.contiguous() for part in c.T.unsqueeze(-1).split(sizes, 1)]
        kernels = torch.arange(config.kernels, device=c.device)
        kernel_rows = [
            (table[:, :, None] * config.kernels + kernels).flatten()
            for table in self.kernel_wires[1:]
        ]
        update_rows = [table.flatten() for table in self.update_wires]
        # perception stores its outputs as (s, k, c), which are numbered (c, s, k)
        numbers = torch.arange(config.update_inputs, device=c.device)
        channels, stored = numbers[: config.channels], numbers[config.channels :]
        rows = torch.cat([channels, stored.view(-1, config.channels).T.flatten()])
        update_rows[0] = rows[update_rows[0]]
        kernel = list(zip(kernel_rows, cs[1:depth], strict=True))
        return first, kernel, list(zip(update_rows, cs[depth:], strict=True))

    def _first_layer(self, state: Tensor, first: Tensor) -> Tensor:
        """The first layer of all kernels, ``[8 kernels, channels * cells]``.

        All kernels read the same neighbours: a product of small matrices. ``state [channels, batch,
        H, W]``.
        """
        height, width = state.shape[-2:]
        mode = "circular" if self.config.boundary == "periodic" else "constant"
        wide = F.pad(state, (1, 1, 1, 1), mode=mode)
        patch = torch.stack(
            [wide[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
        ).flatten(1)  # [9, channels * cells]
        a = patch.index_select(0, self.kernel_wires[0][0])
        b = patch[CENTRE].expand_as(a)
        return (first @ torch.stack([torch.ones_like(a), a, b, a * b], 1)).flatten(0, 1)


def coefficients(logits: Tensor, hard: bool | Tensor = False) -> Tensor:
    """``[..., 4]`` of ``logits [..., 16]``: of the softmax mixture or, if hard, the likeliest gate.

    ``hard``: bool ``[...]``, which gates are hard, or one value for all. Their gradients are those
    of the mixture (straight through). Source: Bengio et al., "Estimating or Propagating Gradients
    Through Stochastic Neurons for Conditional Computation", 2013.
    """
    shares = logits.softmax(-1)
    if hard is not False:
        likeliest = nn.functional.one_hot(logits.argmax(-1), len(BASIS)).to(logits.dtype)
        where = torch.as_tensor(hard, device=logits.device).unsqueeze(-1)
        shares = torch.where(where, likeliest + (shares - shares.detach()), shares)
    return shares @ torch.tensor(BASIS, dtype=logits.dtype, device=logits.device)


def unique_pairs(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Wiring of ``outputs`` gates with distinct pairs of ``inputs`` values: int64 ``[2, outputs]``.

    The first of the pairs (0, 1), (2, 3), ..., then (1, 2), (3, 4), ..., then those at distance
    2, 3, ..., in random order; the last of them reads an odd last input that no other one does.
    `LogicCAConfig` checks that there are gates for all inputs, and pairs for all gates.
    """
    steps = [(range(0, inputs - 1, 2), 1), (range(1, inputs - 1, 2), 1)]
    steps += [(range(inputs - gap), gap) for gap in range(2, inputs)]
    pairs = torch.tensor([(i, i + gap) for firsts, gap in steps for i in firsts])[:outputs]
    if inputs % 2 and outputs < inputs - 1:
        pairs[-1] = torch.tensor([inputs - 2, inputs - 1])
    return pairs[torch.randperm(outputs, generator=generator)].T.contiguous()


def plain_layer(x: Tensor, wires: Tensor, c: Tensor) -> Tensor:
    """A layer of gates ``[gates, cells]`` of ``x [features, cells]``, for ``torch.func``.

    For ``wires`` and ``c`` see `Layer`.
    """
    a, b = x.index_select(0, wires).chunk(2)
    return c[0] + c[1] * a + (c[2] + c[3] * a) * b


class _FusedLayer(torch.autograd.Function):
    """`plain_layer` with few passes over memory, which saves only ``x`` for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wires: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(x, wires, c)
        a, b = x.index_select(0, wires).chunk(2)
        out = a * c[3]
        out.add_(c[2]).mul_(b)
        return out.add_(a.mul_(c[1])).add_(c[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        x, wires, c = ctx.saved_tensors
        both = x.index_select(0, wires)
        a, b = both.chunk(2)
        ga, gb = grad * a, grad * b
        of_c = torch.stack([part.sum(1, keepdim=True) for part in (grad, ga, gb, b.mul_(ga))])
        # d/da = c1 g + c3 g b and d/db = c2 g + c3 g a, written over a and b
        torch.mul(grad, c[1], out=a).add_(gb.mul_(c[3]))
        torch.mul(grad, c[2], out=b).add_(ga.mul_(c[3]))
        return torch.zeros_like(x).index_add_(0, wires, both), None, of_c
