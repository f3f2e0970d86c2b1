"""The sixteen logic gates of two inputs: coefficients and wiring.

Every gate, and every mixture of gates, is ``c0 + c1 a + c2 b + c3 ab``. Source of the mixture:
Petersen et al., "Deep Differentiable Logic Gate Networks", NeurIPS 2022; of the wiring: Miotti et
al., "Differentiable Logic Cellular Automata", 2025, and its notebook
(google-research/self-organising-systems at 3d5547c).
"""

from __future__ import annotations

from itertools import chain, islice

import torch
from torch import Tensor, nn, tensor

BASIS: tuple[tuple[int, int, int, int], ...] = (
    (0, 0, 0, 0),  # FALSE
    (0, 0, 0, 1),  # AND
    (0, 1, 0, -1),  # A & !B
    (0, 1, 0, 0),  # A
    (0, 0, 1, -1),  # !A & B
    (0, 0, 1, 0),  # B
    (0, 1, 1, -2),  # XOR
    (0, 1, 1, -1),  # OR
    (1, -1, -1, 1),  # NOR
    (1, -1, -1, 2),  # XNOR
    (1, 0, -1, 0),  # !B
    (1, 0, -1, 1),  # A | !B
    (1, -1, 0, 0),  # !A
    (1, -1, 0, 1),  # !A | B
    (1, 0, 0, -1),  # NAND
    (1, 0, 0, 0),  # TRUE
)
"""Coefficients of 1, a, b and ab of each gate.

A gate's index is its outputs for (a, b) = 00, 01, 10, 11 read as a 4-bit number."""

PASS_THROUGH = 3
"""The gate "A": the initial gate of an automaton."""

FIRST_LOGIT, PAPERS_FIRST_LOGIT = 5.0, 10.0
"""Its initial logit, others are 0: a share of .908 in the mixture; in the paper .99932."""

NEIGHBOURS, CENTRE = (0, 1, 2, 3, 5, 6, 7, 8), 4
"""Positions in a 3x3 patch, row by row."""


def initial_logits(*shape: int, first: float = FIRST_LOGIT) -> Tensor:
    """Logits float32 ``[*shape, 16]`` of gates that pass ``a`` through."""
    logits = torch.zeros(*shape, len(BASIS), dtype=torch.float32)
    logits[..., PASS_THROUGH] = first
    return logits


def coefficients(logits: Tensor, hard: bool | Tensor = False) -> Tensor:
    """``[..., 4]`` of ``logits [..., 16]``: of the softmax mixture or, if hard, the likeliest gate.

    ``hard`` as a bool tensor ``[...]`` selects the hard gates; their gradients are those of the
    mixture (straight through). Source: Bengio et al., "Estimating or Propagating Gradients Through
    Stochastic Neurons for Conditional Computation", 2013.
    """
    shares = logits.softmax(-1)
    if hard is not False:
        chosen = nn.functional.one_hot(logits.argmax(-1), len(BASIS)).to(logits.dtype)
        if hard is True:
            shares = chosen
        else:
            shares = shares + (chosen - shares).detach() * hard.to(logits.device).unsqueeze(-1)
    return shares @ tensor(BASIS, dtype=logits.dtype, device=logits.device)


def unique_pairs(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Wiring of ``outputs`` gates with distinct pairs of ``inputs`` values: int64 ``[2, outputs]``.

    The first of the pairs (0, 1), (2, 3), ..., then (1, 2), (3, 4), ..., then those 2, 3, ...
    apart, in random order. `LogicCAConfig` checks that all inputs are read and pairs suffice.
    """
    even = ((i, i + 1) for i in range(0, inputs - 1, 2))
    odd = ((i, i + 1) for i in range(1, inputs - 1, 2))
    apart = ((i, i + gap) for gap in range(2, inputs) for i in range(inputs - gap))
    pairs = torch.tensor(list(islice(chain(even, odd, apart), outputs)), dtype=torch.int64)
    return pairs[torch.randperm(outputs, generator=generator)].T.contiguous()


def first_kernel(generator: torch.Generator) -> Tensor:
    """Wiring of a kernel's first layer: each neighbour, in random order, with the centre."""
    order = torch.randperm(len(NEIGHBOURS), generator=generator)
    a = torch.tensor(NEIGHBOURS)[order]
    return torch.stack([a, torch.full_like(a, CENTRE)])
