"""Small networks with configurable input shape and number of classes.

`SimpleCNN` and `SimplifiedViT` have the layers of the original's networks (examples/cifar10_demo.py
and KAGGLE_VIT_BATCHED_STANDALONE.py in oluwafemidiakhoa/adaptive-sparse-training at 3e66290).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.names import resolve

Shape = tuple[int, int, int]


def build(name: str, shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """The model registered as ``name``, for inputs ``shape = (channels, height, width)``.

    Weights depend only on ``seed``; the global RNG is unchanged. Raises ``ValueError`` for an
    unknown name.
    """
    with rng.isolated("cpu", seed, "model"):
        return cast(nn.Module, resolve("model", name)(shape, classes))


class DigitsCNN(nn.Sequential):
    """Two convolutions, the second with stride 2, and a linear layer; for images of about 8x8."""

    def __init__(self, shape: Shape = (1, 8, 8), classes: int = 10):
        channels, height, width = shape
        super().__init__(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * ((height + 1) // 2) * ((width + 1) // 2), classes),
        )


class SimpleCNN(nn.Sequential):
    """The original's CNN: three convolutions, two poolings, two linear layers, dropout 0.5."""

    def __init__(self, shape: Shape = (3, 32, 32), classes: int = 10):
        channels, height, width = shape
        super().__init__(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128 * (height // 4) * (width // 4), 256),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(256, classes),
        )


class SimplifiedViT(nn.Module):
    """The original's vision transformer: patch size 4, width 256, depth 6, 8 heads, class token.

    Post-norm encoder layers with GELU, a feed-forward width of twice the model's and dropout 0.1.
    Pixels beyond the last whole patch are not read.
    """

    def __init__(self, shape: Shape = (3, 32, 32), classes: int = 10):
        super().__init__()
        channels, height, width = shape
        patches = (height // 4) * (width // 4)
        self.embed = nn.Conv2d(channels, 256, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, patches + 1, 256) * 0.02)
        self.token = nn.Parameter(torch.zeros(1, 1, 256))
        layer = nn.TransformerEncoderLayer(256, 8, 512, 0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[batch, classes]`` for images ``[batch, channels, height, width]``."""
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1)
        encoded = self.encoder(tokens + self.position)
        return cast(Tensor, self.head(self.norm(encoded[:, 0])))
