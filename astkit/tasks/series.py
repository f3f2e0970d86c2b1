"""Time series of a stated process: which period has a noisy oscillation?"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from astkit.rng import generator
from astkit.tasks.parts import Arguments, Labelled, small_task

STEPS, CHANNELS = 96, 32  # values of a series; channels of its model
PERIODS, DAMPING = (6, 8, 11, 16), 0.8
"""Of the second-order autoregressions, in steps; their damping per step."""
SIZES = (2000, 500, 2000)  # rows of the three parts


def oscillations() -> Arguments:
    """The period of x[t] = 2 r cos(2 pi / P) x[t-1] - r**2 x[t-2] + e[t], one of `PERIODS`.

    r is `DAMPING`, e standard normal; each series has standard deviation 1.
    """
    rows, random = sum(SIZES), generator(0, "series")
    y = torch.arange(rows) % len(PERIODS)
    cosine = (2 * math.pi / torch.tensor(PERIODS)).cos()[y]
    shocks = torch.randn(STEPS + 50, rows, generator=random)
    x = [torch.zeros(rows), torch.zeros(rows)]
    for shock in shocks:
        x.append(2 * DAMPING * cosine * x[-1] - DAMPING**2 * x[-2] + shock)
    series = torch.stack(x[-STEPS:], 1)  # the first 50 are the transient
    series = series / series.std(1, keepdim=True)
    parts, model = torch.arange(rows).split(SIZES), partial(convolutions, len(PERIODS))
    return small_task(Labelled(series[:, None], y), parts, model, epochs=5)


def convolutions(outputs: int) -> nn.Module:
    """Three convolutions over series ``[rows, 1, steps]``, and a linear layer of their means."""

    def layer(inputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, CHANNELS, 7, stride, padding=3), nn.ReLU()]

    layers = [*layer(1, 1), *layer(CHANNELS, 2), *layer(CHANNELS, 2)]
    pooled = nn.AdaptiveAvgPool1d(1)
    return nn.Sequential(*layers, pooled, nn.Flatten(), nn.Linear(CHANNELS, outputs))
