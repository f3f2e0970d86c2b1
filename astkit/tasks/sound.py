"""Sound: what kind of tone is heard in noise, from spectrograms of a stated process."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from astkit.rng import generator
from astkit.tasks.parts import Arguments, Labelled, small_task

RATE, SAMPLES = 8000, 2048  # samples per second, and of a sound
WINDOW = 128  # samples of a window of the Fourier transform; windows overlap by half
KINDS = ("tone", "rising", "falling", "vibrato", "tremolo", "noise band")
SIZES = (1800, 300, 1500)  # rows of the three parts


def sound() -> Arguments:
    """The kind of a tone, one of `KINDS`, in white noise at -12 to 0 dB.

    Start frequency 600..2400 Hz, of *falling* 1400..3200 Hz; *rising* and *falling*: by 400..1200
    Hz; *vibrato* and *tremolo*: frequency by 15 %, amplitude fully, at 8..16 Hz, which takes 4.3 dB
    from the mean power; *noise band*: a tone whose phase makes a random walk. Inputs are log-power
    spectrograms (``torch.stft``), ``[1, WINDOW / 2 + 1, 33]``.
    """
    waves, labels = sounds()
    x = spectrograms(waves)
    data, parts = Labelled((x - x.mean()) / x.std(), labels), torch.arange(len(x)).split(SIZES)
    return small_task(data, parts, partial(network, len(KINDS)), epochs=4)


def sounds() -> tuple[Tensor, Tensor]:
    """Waves float32 ``[rows, SAMPLES]`` and kinds int64 ``[rows]`` of all parts."""
    rows, random = sum(SIZES), generator(0, "sound")
    kind = torch.arange(rows) % len(KINDS)
    start, slide, speed, phase, level = torch.rand(5, rows, 1, generator=random)
    time = torch.arange(SAMPLES) / RATE
    of = {name: (kind == place)[:, None] for place, name in enumerate(KINDS)}
    slope = (400 + 800 * slide) * RATE / SAMPLES * (of["rising"].float() - of["falling"].float())
    turn = (2 * math.pi * ((8 + 8 * speed) * time + phase)).sin()
    first = 600 + 1800 * start + 800 * of["falling"]
    hertz = (first + slope * time) * (1 + 0.15 * turn * of["vibrato"])
    walk = torch.randn(rows, SAMPLES, generator=random).cumsum(1) * 0.35 * of["noise band"]
    wave = (2 * math.pi * (hertz.cumsum(1) / RATE + phase) + walk).sin()
    wave = wave * torch.where(of["tremolo"], (1 + turn) / 2, 1.0) * math.sqrt(2)
    gain = 10 ** ((-12 + 12 * level) / 20)
    return gain * wave + torch.randn(rows, SAMPLES, generator=random), kind


def spectrograms(waves: Tensor) -> Tensor:
    """Log-power spectrograms float32 ``[rows, 1, WINDOW / 2 + 1, windows]``."""
    spectrum = torch.stft(
        waves, WINDOW, WINDOW // 2, window=torch.hann_window(WINDOW), return_complex=True
    )
    return (spectrum.abs().square() + 1e-6).log()[:, None]


def network(classes: int, channels: int = 16) -> nn.Module:
    """Three convolutions with poolings, and a linear layer on the mean over the spectrogram."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, channels), (channels, channels), (channels, 2 * channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, classes)]
    return nn.Sequential(*layers, *head)
