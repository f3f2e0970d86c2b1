"""Tasks of benches beyond images: language, texts, series and sounds.

Each is a mapping of the arguments of `astkit.compare`, made of documentation that comes with the
package, or of a stated process.
"""

from __future__ import annotations

import copy
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from astkit import tasks
from astkit.datasets import stratified
from astkit.datasets.pairs import docs_pairs
from astkit.gating import cross_entropy_rows, row_losses
from astkit.rng import generator, permutation
from astkit.trainers import Budget, Metric, TrainConfig

Arguments = dict[str, Any]
PARTS = ("train", "validation", "test")
HELD = 0.15  # share of the validation rows, and of the test rows, of texts
HEADS = 4  # of attention


class Labelled(TensorDataset):
    """Rows ``(x, y)``; policies read the classes of integer targets ``y`` from ``labels``."""

    @property
    def labels(self) -> Tensor:
        """The last tensor."""
        return self.tensors[-1]

    def take(self, rows: Tensor) -> Self:
        """The selected ``rows``, int64."""
        taken = copy.copy(self)
        taken.tensors = tuple(each[rows] for each in self.tensors)
        return taken


class Columns(Labelled):
    """Rows as mappings from names of ``columns`` to values; the last column holds the labels."""

    def __init__(self, **columns: Tensor) -> None:
        super().__init__(*columns.values())
        self.names = tuple(columns)

    def __getitem__(self, row: int) -> dict[str, Tensor]:  # type: ignore[override]
        return dict(zip(self.names, super().__getitem__(row), strict=True))


def split_rows(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the three `PARTS`, int64; the validation rows are a share of what test rows leave."""
    tested, rest = stratified(labels, HELD, 0, "test")
    held, train = stratified(labels[rest], HELD, 0, "validation")
    return rest[train], rest[held], tested


def small_task(
    data: Labelled,
    rows: Iterable[Tensor],
    make_model: Callable[[], nn.Module],
    epochs: int,
    batch_size: int = 32,
) -> Arguments:
    """The three `PARTS` of ``data`` by their ``rows``, a small model, and how it is trained."""
    return {
        **{part: data.take(index) for part, index in zip(PARTS, rows, strict=True)},
        "make_model": make_model,
        "config": TrainConfig(lr=3e-3),
        "batch_size": batch_size,
        "budget": Budget(epochs=epochs),
    }


class Block(nn.Module):
    """A pre-norm transformer block: self-attention (torch's SDPA) and a feed-forward layer.

    Source: Vaswani et al., "Attention is all you need", 2017; pre-norm as in GPT-2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``x [rows, length, width]``; ``mask`` bool ``[rows, length]``: causal without it."""
        rows, length, width = x.shape
        split = self.attend(self.before(x)).view(rows, length, 3, HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = None if mask is None else mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=mask is None)
        x = x + self.merge(attended.transpose(1, 2).reshape(rows, length, width))
        added: Tensor = x + self.feed(self.between(x))
        return added


# --- the next character ----------------------------------------------------------------------

MOST = 256  # largest number of different characters
LENGTH, WIDTH, DEPTH = 64, 64, 4  # characters of a sequence; sizes of the transformer
SEQUENCES = 480  # sequences of the embedded text


class GPT(nn.Module):
    """A causal transformer: tokens int64 ``[rows, length]`` to logits ``[rows, length, size]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, size)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def language() -> Arguments:
    """The next character of `SEQUENCES` parts of documentation, divided at random.

    The metric is the cross-entropy in nats per character.
    """
    x, y, size = sequences()
    rows = torch.arange(SEQUENCES)
    held, test = len(rows) // 10, len(rows) // 5
    parts = rows[held + test :], rows[:held], rows[held : held + test]
    data, model = Columns(tokens=x, labels=y), partial(GPT, size)
    metric = Metric("nats per character", character_loss, higher_is_better=False)
    return {**small_task(data, parts, model, epochs=3, batch_size=8), "metrics": metric}


def sequences() -> tuple[Tensor, Tensor, int]:
    """Characters and next characters, int64 ``[N, LENGTH]`` in random order, and their number.

    Of the documentation of Python, torch and numpy (data/README.md).
    """
    (tokens,), size = encoded("\n\n".join(dict.fromkeys(pair.source for pair in docs_pairs())))
    count = (len(tokens) - 1) // LENGTH
    x, y = (tokens[first : first + count * LENGTH].view(count, LENGTH) for first in (0, 1))
    order = permutation(count, 0, "language")
    return x[order], y[order], size


def encoded(*texts: str) -> tuple[list[Tensor], int]:
    """Characters of each text as int64 ``[length]``, and the number of different ones.

    Of all texts together, the `MOST` - 1 most frequent characters have a number; others are 0.
    """
    counts = Counter("".join(texts))
    ranked = [character for character, _ in counts.most_common(MOST - 1)]
    number = torch.zeros(sys.maxunicode + 1, dtype=torch.int64)
    number[[ord(character) for character in sorted(ranked)]] = torch.arange(1, len(ranked) + 1)
    codes = (np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64) for text in texts)
    return [number[torch.from_numpy(each)] for each in codes], 1 + len(ranked)


def character_loss(outputs: Any, targets: Any) -> Tensor:
    """Mean cross-entropy of the characters of each sequence in nats, ``[rows]``."""
    return row_losses(cross_entropy_rows, outputs, targets)


# --- texts of classes ------------------------------------------------------------------------

HASHED, WORDS, SMALL = 8192, 32, 32  # numbers of words; words of a text; width of their model


class Encoder(nn.Module):
    """A block of a transformer over words, and a linear layer on their mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(HASHED, SMALL, padding_idx=0)
        self.places = nn.Embedding(WORDS, SMALL)
        self.block = Block(SMALL)
        self.norm, self.head = nn.LayerNorm(SMALL), nn.Linear(SMALL, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits ``[rows, classes]``; ``mask`` bool ``[rows, WORDS]`` is false for padding."""
        x = self.block(self.words(tokens) + self.places.weight, mask)
        kept = mask.unsqueeze(2)
        mean = (self.norm(x) * kept).sum(1) / kept.sum(1).clamp_min(1)
        logits: Tensor = self.head(mean)
        return logits


def texts() -> Arguments:
    """Paragraphs of the documentation of Python, torch and numpy; the class is the package.

    Batches are mappings with ``tokens``, ``mask`` and ``labels``. The data: data/README.md.
    """
    labelled = {pair.source: pair.origin.partition(" ")[0] for pair in docs_pairs()}
    names = sorted(set(labelled.values()))
    labels = torch.tensor([names.index(name) for name in labelled.values()])
    tokens = hash_words(labelled)
    data = Columns(tokens=tokens, mask=tokens > 0, labels=labels)
    return small_task(data, split_rows(labels), partial(Encoder, len(names)), epochs=3)


def hash_words(texts: Iterable[str]) -> Tensor:
    """Words as int64 ``[texts, WORDS]``, hashed to 1..HASHED - 1; 0 is padding."""
    rows = [
        [1 + zlib.crc32(word.encode()) % (HASHED - 1) for word in each.lower().split()[:WORDS]]
        for each in texts
    ]
    return torch.tensor([row + [0] * (WORDS - len(row)) for row in rows], dtype=torch.int64)


# --- time series -----------------------------------------------------------------------------

STEPS, CHANNELS = 96, 32  # values of a series; channels of its model
PERIODS, DAMPING = (6, 8, 11, 16), 0.8
"""Of the second-order autoregressions, in steps; their damping per step."""
SERIES = (2000, 500, 2000)  # rows of the three parts


def oscillations() -> Arguments:
    """The period of x[t] = 2 r cos(2 pi / P) x[t-1] - r**2 x[t-2] + e[t], one of `PERIODS`.

    r is `DAMPING`, e standard normal; each series has standard deviation 1.
    """
    rows, random = sum(SERIES), generator(0, "series")
    y = torch.arange(rows) % len(PERIODS)
    cosine = (2 * math.pi / torch.tensor(PERIODS)).cos()[y]
    shocks = torch.randn(STEPS + 50, rows, generator=random)
    x = [torch.zeros(rows), torch.zeros(rows)]
    for shock in shocks:
        x.append(2 * DAMPING * cosine * x[-1] - DAMPING**2 * x[-2] + shock)
    series = torch.stack(x[-STEPS:], 1)  # the first 50 are the transient
    series = series / series.std(1, keepdim=True)
    parts, model = torch.arange(rows).split(SERIES), partial(convolutions, len(PERIODS))
    return small_task(Labelled(series[:, None], y), parts, model, epochs=5)


def convolutions(outputs: int) -> nn.Module:
    """Three convolutions over series ``[rows, 1, steps]``, and a linear layer of their means."""

    def layer(inputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, CHANNELS, 7, stride, padding=3), nn.ReLU()]

    layers = [*layer(1, 1), *layer(CHANNELS, 2), *layer(CHANNELS, 2)]
    pooled = nn.AdaptiveAvgPool1d(1)
    return nn.Sequential(*layers, pooled, nn.Flatten(), nn.Linear(CHANNELS, outputs))


# --- sounds ----------------------------------------------------------------------------------

RATE, SAMPLES = 8000, 2048  # samples per second, and of a sound
WINDOW = 128  # samples of a window of the Fourier transform; windows overlap by half
KINDS = ("tone", "rising", "falling", "vibrato", "tremolo", "noise band")
SOUNDS = (1800, 300, 1500)  # rows of the three parts


def sound() -> Arguments:
    """The kind of a tone, one of `KINDS`, in white noise at -12 to 0 dB.

    Start frequency 600..2400 Hz, of *falling* 1400..3200 Hz; *rising* and *falling*: by 400..1200
    Hz; *vibrato* and *tremolo*: frequency by 15 %, amplitude fully, at 8..16 Hz, which takes 4.3 dB
    from the mean power; *noise band*: a tone whose phase makes a random walk. Inputs are log-power
    spectrograms (``torch.stft``), ``[1, WINDOW / 2 + 1, 33]``.
    """
    waves, labels = sounds()
    x = spectrograms(waves)
    data, parts = Labelled((x - x.mean()) / x.std(), labels), torch.arange(len(x)).split(SOUNDS)
    return small_task(data, parts, partial(sound_network, len(KINDS)), epochs=4)


def sounds() -> tuple[Tensor, Tensor]:
    """Waves float32 ``[rows, SAMPLES]`` and kinds int64 ``[rows]`` of all parts."""
    rows, random = sum(SOUNDS), generator(0, "sound")
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


def sound_network(classes: int, channels: int = 16) -> nn.Module:
    """Three convolutions with poolings, and a linear layer on the mean over the spectrogram."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, channels), (channels, channels), (channels, 2 * channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, classes)]
    return nn.Sequential(*layers, *head)


TASKS = {"series": oscillations, "sound": sound, "text": texts, "language": language}


def task(name: str) -> Arguments:
    """The task ``name`` of `TASKS`, or of the package."""
    return TASKS[name]() if name in TASKS else tasks.task(name)
