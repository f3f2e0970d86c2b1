"""Which two values each gate reads: fixed, drawn once from a seed.

Source: Miotti et al., "Differentiable Logic Cellular Automata", 2025, and its notebook
(google-research/self-organising-systems at 3d5547c).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import torch
from torch import Tensor

NEIGHBOURS = (0, 1, 2, 3, 5, 6, 7, 8)
CENTRE = 4
"""Positions in a 3x3 patch, row by row."""


def unique(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Different pairs of ``inputs`` values for ``outputs`` gates: int64 ``[2, outputs]``.

    The pairs are (0, 1), (2, 3), ..., then (1, 2), (3, 4), ..., then those 2, 3, ... apart, as many
    as there are gates, in random order.

    Raises ``ValueError`` where the gates cannot read all inputs, or there are too few pairs.
    """
    if 2 * outputs < inputs:
        raise ValueError(
            f"outputs is {outputs}, but {inputs} inputs need at least {-(-inputs // 2)} gates of"
            " two inputs to be read: make the layer wider"
        )
    pairs = list(islice(_pairs(inputs), outputs))
    if len(pairs) < outputs:
        raise ValueError(
            f"outputs is {outputs}, but {inputs} inputs have only {len(pairs)} different pairs:"
            " make the layer narrower"
        )
    order = torch.randperm(outputs, generator=generator)
    return torch.tensor(pairs, dtype=torch.int64)[order].T.contiguous()


def first_kernel(generator: torch.Generator) -> Tensor:
    """The first layer of a kernel: each neighbour, in random order, with the centre: ``[2, 8]``."""
    order = torch.randperm(len(NEIGHBOURS), generator=generator)
    a = torch.tensor(NEIGHBOURS)[order]
    return torch.stack([a, torch.full_like(a, CENTRE)])


def wiring_hash(tables: Iterable[Tensor]) -> str:
    """SHA-256, hexadecimal, of wiring tables ``[2, gates]`` in their order; for records."""
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{tuple(table.shape)}".encode())
        digest.update(table.cpu().to(torch.int64).contiguous().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def _pairs(inputs: int) -> Iterator[tuple[int, int]]:
    even = ((i, i + 1) for i in range(0, inputs - 1, 2))
    odd = ((i, i + 1) for i in range(1, inputs - 1, 2))
    apart = ((i, i + gap) for gap in range(2, inputs) for i in range(inputs - gap))
    return chain(even, odd, apart)
