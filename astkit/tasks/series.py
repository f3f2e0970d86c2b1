"""Time series of stated processes: which period a noisy oscillation has, and a forecast."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from astkit.rng import generator
from astkit.tasks.parts import Arguments, Labelled, regression, small

STEPS, AHEAD = 96, 8  # values of a series; values to forecast
PERIODS, DAMPING = (6, 8, 11, 16), 0.8
"""Of the second-order autoregressions, in steps; their damping per step."""
PHI, NOISE = 0.8, 0.3
"""First-order coefficient, and standard deviation of the innovations, of the forecast's noise."""
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
    return small(Labelled(series[:, None], y), parts, model, epochs=5)


def forecast() -> Arguments:
    """The next `AHEAD` values of a sine with a first-order autoregression added to it.

    Amplitude 1..2, period 10..14 steps and phase are drawn per series. No forecast has an expected
    squared error below 0.196, the mean over the horizon h = 1..AHEAD of the noise's variance given
    its past, NOISE**2 (1 - PHI**(2 h)) / (1 - PHI**2) (Hamilton, Time Series Analysis, 1994, 4.2).
    """
    rows, random = sum(SIZES), generator(0, "forecast")
    amplitude, period, phase = torch.rand(3, rows, generator=random)
    shocks = NOISE * torch.randn(STEPS + AHEAD, rows, generator=random)
    noise = [shocks[0] / math.sqrt(1 - PHI**2)]
    for shock in shocks[1:]:
        noise.append(PHI * noise[-1] + shock)
    time = torch.arange(STEPS + AHEAD)[:, None] / (10 + 4 * period)
    wave = (1 + amplitude) * (2 * math.pi * (time + phase)).sin()
    series = (wave + torch.stack(noise)).T
    data = Labelled(series[:, None, :STEPS], series[:, STEPS:])
    parts, model = torch.arange(rows).split(SIZES), partial(convolutions, AHEAD, STEPS)
    return small(data, parts, model, epochs=8) | regression()


def convolutions(outputs: int, steps: int | None = None, channels: int = 32) -> nn.Module:
    """Three convolutions over series ``[rows, 1, steps]``, and a linear layer.

    The layer sees the mean over time, or with ``steps`` every place.
    """

    def layer(inputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, channels, 7, stride, padding=3), nn.ReLU()]

    places = 1 if steps is None else math.ceil(math.ceil(steps / 2) / 2)
    pooled: nn.Module = nn.AdaptiveAvgPool1d(1) if steps is None else nn.Identity()
    layers = [*layer(1, 1), *layer(channels, 2), *layer(channels, 2), pooled, nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels * places, outputs))
