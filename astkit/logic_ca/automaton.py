"""A cellular automaton whose rule is a network of learnable logic gates.

Source: Miotti et al., "Differentiable Logic Cellular Automata", 2025, and its notebook
(google-research/self-organising-systems at 3d5547c).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from astkit import rng
from astkit.identity import tensor_hash
from astkit.logic_ca import gates
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.fused import gate_stack, plain_stack


class _Rule(NamedTuple):
    """Coefficients of all gates, computed once per rollout."""

    first: Tensor  # [8, kernels, 4]
    kernel: tuple[Tensor, ...]  # [4, gates * kernels, 1] each
    update: tuple[Tensor, ...]  # [4, gates, 1] each
    fused: bool


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

    Args:
        config: sizes, and the seed of the wiring.
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
        for name, table in _draw(config).items():
            self.register_buffer(name, table)
        self._number_rows()
        self.register_load_state_dict_post_hook(LogicCA._renumber)

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
            steps: number of steps.
            masks: bool ``[steps, batch, 1, height, width]``, true if a cell is updated; see
                `fire_masks`. Required for a fire rate below 1.
            hard: hard gates, without gradients of the logits. As bool ``[gates]``, kernels first:
                which gates are hard, with straight-through gradients; see `hard_gates`.
            fused: False uses plain operations, which ``torch.func`` supports.
            recompute: number of steps per activation checkpoint.

        Returns ``[batch, channels, height, width]``. Raises ``ValueError`` for wrong shapes or
        missing masks.
        """
        self._check(x, steps, masks, hard)
        # features first, in the dtype of the logits
        rule, state = self._rule(hard, fused), x.transpose(0, 1).to(self.update_logits[0].dtype)
        size = recompute if recompute is not None and torch.is_grad_enabled() else steps
        if size < 1:
            raise ValueError(f"recompute is {recompute}: give 1 step or more, or None")
        for first in range(0, steps, size):
            fires = None if masks is None else masks[first : first + size]
            count = min(size, steps - first)
            if size < steps:
                state = checkpoint(self._run, rule, state, count, fires, use_reentrant=False)
            else:
                state = self._run(rule, state, count, fires)
        return state.transpose(0, 1)

    def _check(self, x: Tensor, steps: int, masks: Tensor | None, hard: bool | Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.config.channels:
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, {self.config.channels}, height, width]"
            )
        if steps < 1:
            raise ValueError(f"steps is {steps}: give 1 or more")
        if isinstance(hard, Tensor) and list(hard.shape) != [sum(self.config.gates)]:
            raise ValueError(
                f"hard has shape {list(hard.shape)}: give [{sum(self.config.gates)}], one per gate"
            )
        if masks is None:
            if self.config.fire_rate < 1:
                raise ValueError(
                    f"masks is None, but the fire rate is {self.config.fire_rate}: draw them with"
                    " astkit.logic_ca.tasks.fire_masks"
                )
            return
        wanted = [steps, len(x), 1, *x.shape[2:]]
        if list(masks.shape) != wanted:
            raise ValueError(f"masks has shape {list(masks.shape)}: give {wanted}")

    def _rule(self, hard: bool | Tensor, fused: bool) -> _Rule:
        logits = [*self.kernel_logits, *self.update_logits]
        rows = [p.shape[:-1].numel() for p in logits]
        c = gates.coefficients(torch.cat([p.flatten(0, -2) for p in logits]), hard)
        first, *_ = c.split(rows)
        layers = c.T.contiguous().unsqueeze(-1).split(rows, 1)
        count = len(self.kernel_logits)
        return _Rule(
            first.unflatten(0, (-1, self.config.kernels)),
            tuple(part.contiguous() for part in layers[1:count]),
            tuple(part.contiguous() for part in layers[count:]),
            fused,
        )

    def _run(self, rule: _Rule, state: Tensor, steps: int, masks: Tensor | None) -> Tensor:
        for t in range(steps):
            new = self._step(rule, state)
            state = new if masks is None else torch.where(masks[t].transpose(0, 1), new, state)
        return state

    def _step(self, rule: _Rule, state: Tensor) -> Tensor:
        stack = gate_stack if rule.fused else plain_stack
        channels = state.shape[0]
        patch = self._patches(state).flatten(1)  # [9, channels * cells]
        a = patch.index_select(0, self.kernel_wires[0][0])
        b = patch[gates.CENTRE].expand_as(a)
        # in the first layer all kernels read the same neighbours: a product of small matrices
        basis = torch.stack([torch.ones_like(a), a, b, a * b], 1)
        seen = (rule.first @ basis).flatten(0, 1)  # [8 * kernels, channels * cells]
        if rule.kernel:
            seen = stack(seen, self._rows("kernel", 1, len(self.kernel_logits)), rule.kernel)
        cells = state.reshape(channels, -1)
        inputs = torch.cat([cells, seen.view(-1, cells.shape[1])])
        rows = self._rows("update", 0, len(self.update_logits))
        return stack(inputs, rows, rule.update).view(state.shape)

    def _patches(self, state: Tensor) -> Tensor:
        """Neighbourhoods ``[9, channels, batch, height, width]`` of all cells."""
        height, width = state.shape[-2:]
        mode = "circular" if self.config.boundary == "periodic" else "constant"
        wide = F.pad(state, (1, 1, 1, 1), mode=mode)
        return torch.stack(
            [wide[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
        )

    def _rows(self, kind: str, first: int, end: int) -> list[Tensor]:
        return [getattr(self, f"_{kind}_rows_{i}") for i in range(first, end)]

    def _number_rows(self) -> None:
        """Compute, from the wiring, the rows of the features-first layout that each gate reads."""
        config = self.config
        kernels = torch.arange(config.kernels, device=self.kernel_wires[0].device)
        for i, table in enumerate(self.kernel_wires[1:], 1):
            rows = table[:, :, None] * config.kernels + kernels
            self.register_buffer(f"_kernel_rows_{i}", rows.flatten(), persistent=False)
        for i, table in enumerate(self.update_wires):
            rows = table if i else _perceived_rows(config).to(table.device)[table]
            self.register_buffer(f"_update_rows_{i}", rows.flatten(), persistent=False)

    @staticmethod
    def _renumber(module: nn.Module, _: Any) -> None:
        assert isinstance(module, LogicCA)
        module._number_rows()


def _perceived_rows(config: LogicCAConfig) -> Tensor:
    """The row of each input of the update network: stored as (s, k, c), numbered as (c, s, k)."""
    channels = torch.arange(config.channels)
    rows = torch.arange(config.perceived).view(-1, config.channels).T.flatten()
    return torch.cat([channels, config.channels + rows])


def _draw(config: LogicCAConfig) -> dict[str, Tensor]:
    """The wiring of each layer by name, each from its own generator."""

    def tables(kind: str, sizes: Sequence[int], skip: int = 0) -> dict[str, Tensor]:
        return {
            f"{kind}_wires_{i + skip}": gates.unique_pairs(
                inputs, outputs, rng.generator(config.seed, "wiring", kind, i + skip)
            )
            for i, (inputs, outputs) in enumerate(pairwise(sizes))
        }

    first = gates.first_kernel(rng.generator(config.seed, "wiring", "kernel", 0))
    return {
        "kernel_wires_0": first,
        **tables("kernel", config.kernel_layers, skip=1),
        **tables("update", (config.update_inputs, *config.update_layers)),
    }
