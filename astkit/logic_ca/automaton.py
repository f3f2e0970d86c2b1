"""A cellular automaton whose rule is a network of learnable logic gates.

Source: Miotti et al., "Differentiable Logic Cellular Automata", 2025, and its notebook
(google-research/self-organising-systems at 3d5547c).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from astkit import rng
from astkit.identity import tensor_hash
from astkit.logic_ca import gates
from astkit.logic_ca.config import LogicCAConfig, check_masks
from astkit.logic_ca.fused import gate_stack, plain_stack


class _Layers(NamedTuple):
    """Layers of gates, computed once per rollout: see `gate_stack`."""

    rows: Sequence[Tensor]
    coefficients: Sequence[Tensor]
    fused: bool

    def __call__(self, x: Tensor) -> Tensor:
        stack = gate_stack if self.fused else plain_stack
        return stack(x, self.rows, self.coefficients)


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
        self.kernel_logits = nn.ParameterList(
            gates.initial_logits(size, config.kernels, first=config.first_logit)
            for size in config.kernel_layers
        )
        self.update_logits = nn.ParameterList(
            gates.initial_logits(size, first=config.first_logit) for size in config.update_layers
        )
        generator = partial(rng.generator, config.seed, "wiring")
        self.register_buffer("kernel_wires_0", gates.first_kernel(generator("kernel", 0)))
        for i, sizes in enumerate(pairwise(config.kernel_layers), 1):
            wires = gates.unique_pairs(*sizes, generator("kernel", i))
            self.register_buffer(f"kernel_wires_{i}", wires)
        for i, sizes in enumerate(pairwise((config.update_inputs, *config.update_layers))):
            wires = gates.unique_pairs(*sizes, generator("update", i))
            self.register_buffer(f"update_wires_{i}", wires)

    @property
    def kernel_wires(self) -> list[Tensor]:
        """Int64 ``[2, gates]`` per kernel layer; the first reads patch positions."""
        return [getattr(self, f"kernel_wires_{i}") for i in range(len(self.kernel_logits))]

    @property
    def update_wires(self) -> list[Tensor]:
        """Int64 ``[2, gates]`` per update layer."""
        return [getattr(self, f"update_wires_{i}") for i in range(len(self.update_logits))]

    @property
    def wiring_hash(self) -> str:
        """Hash of the wiring, see ``astkit.identity.tensor_hash``."""
        tables = (*self.kernel_wires, *self.update_wires)
        return tensor_hash(torch.cat([table.flatten() for table in tables]))

    def forward(
        self,
        x: Tensor,
        steps: int = 1,
        masks: Tensor | None = None,
        hard: bool | Tensor = False,
        *,
        fused: bool = True,
        recompute: int | None = None,
    ) -> Tensor:
        """The state after ``steps`` steps.

        Args:
            x: ``[batch, channels, height, width]`` in [0, 1], of any dtype.
            masks: bool ``[steps, batch, 1, height, width]`` on any device, true if a cell is
                updated; see `fire_masks`. Required for a fire rate below 1.
            hard: hard gates, without gradients of the logits. As bool ``[gates]``, kernels first:
                which gates are hard, with straight-through gradients; see `hard_gates`.
            fused: False uses plain operations, which ``torch.func`` supports.
            recompute: number of steps per activation checkpoint.

        Returns ``[batch, channels, height, width]``. Raises ``ValueError`` for wrong shapes or
        missing masks.
        """
        self._check(x, steps, hard, recompute)
        check_masks(masks, self.config.fire_rate, [steps, len(x), 1, *x.shape[2:]])
        first, kernel, update = self._rule(hard, fused)

        def run(state: Tensor, fires: Sequence[Tensor | None]) -> Tensor:
            for fire in fires:
                new = update(self._perceived(state, first, kernel)).view(state.shape)
                state = new if fire is None else torch.where(fire, new, state)
            return state

        state = x.transpose(0, 1).to(first.dtype)  # features first
        fires: Sequence[Tensor | None] = [None] * steps
        if masks is not None:
            fires = masks.to(x.device).transpose(1, 2).unbind()
        if recompute is None or recompute >= steps or not torch.is_grad_enabled():
            return run(state, fires).transpose(0, 1)
        for done in range(0, steps, recompute):
            state = checkpoint(run, state, fires[done : done + recompute], use_reentrant=False)
        return state.transpose(0, 1)

    def _check(self, x: Tensor, steps: int, hard: bool | Tensor, recompute: int | None) -> None:
        if x.ndim != 4 or x.shape[1] != self.config.channels:
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, {self.config.channels}, height, width]"
            )
        if steps < 1:
            raise ValueError(f"steps is {steps}: give 1 or more")
        if recompute is not None and recompute < 1:
            raise ValueError(f"recompute is {recompute}: give 1 step or more, or None")
        if isinstance(hard, Tensor) and list(hard.shape) != [sum(self.config.gates)]:
            raise ValueError(
                f"hard has shape {list(hard.shape)}: give [{sum(self.config.gates)}], one per gate"
            )

    def _rule(self, hard: bool | Tensor, fused: bool) -> tuple[Tensor, _Layers, _Layers]:
        """Coefficients ``[8, kernels, 4]`` of the first kernel layer; the other layers."""
        logits = [*self.kernel_logits, *self.update_logits]
        sizes = [p.shape[:-1].numel() for p in logits]
        c = gates.coefficients(torch.cat([p.flatten(0, -2) for p in logits]), hard)
        first = c[: sizes[0]].unflatten(0, (-1, self.config.kernels))
        layers = [part.contiguous() for part in c.T.unsqueeze(-1).split(sizes, 1)]
        kernels = torch.arange(self.config.kernels, device=c.device)
        kernel_rows = [
            (table[:, :, None] * len(kernels) + kernels).flatten()
            for table in self.kernel_wires[1:]
        ]
        update_rows = [table.flatten() for table in self.update_wires]
        update_rows[0] = self._stored_rows(c.device)[update_rows[0]]
        count = len(self.kernel_logits)
        kernel = _Layers(kernel_rows, layers[1:count], fused)
        return first, kernel, _Layers(update_rows, layers[count:], fused)

    def _stored_rows(self, device: torch.device) -> Tensor:
        """The row of each input of the update network: stored as (s, k, c), numbered (c, s, k)."""
        channels = torch.arange(self.config.channels, device=device)
        rows = torch.arange(self.config.perceived, device=device).view(-1, len(channels))
        return torch.cat([channels, len(channels) + rows.T.flatten()])

    def _perceived(self, state: Tensor, first: Tensor, kernel: _Layers) -> Tensor:
        """Inputs of the update network, features first, of ``state [channels, batch, H, W]``."""
        patch = self._patches(state).flatten(1)  # [9, channels * cells]
        a = patch.index_select(0, self.kernel_wires[0][0])
        b = patch[gates.CENTRE].expand_as(a)
        # in the first layer all kernels read the same neighbours: a product of small matrices
        basis = torch.stack([torch.ones_like(a), a, b, a * b], 1)
        seen = (first @ basis).flatten(0, 1)  # [8 * kernels, channels * cells]
        if kernel.rows:
            seen = kernel(seen)
        cells = state.flatten(1)
        return torch.cat([cells, seen.view(-1, cells.shape[1])])

    def _patches(self, state: Tensor) -> Tensor:
        """Neighbourhoods ``[9, channels, batch, height, width]`` of all cells."""
        height, width = state.shape[-2:]
        mode = "circular" if self.config.boundary == "periodic" else "constant"
        wide = F.pad(state, (1, 1, 1, 1), mode=mode)
        return torch.stack(
            [wide[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
        )
