"""Batched augmentation: crops and flips drawn from (seed, epoch, row), and normalisation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astkit.rng import uniform

NAMES = ("crop", "flip")

Statistic = float | Sequence[float] | Tensor


class Moves(NamedTuple):
    """Augmentations of each row; ``None`` if not requested.

    ``top``, ``left``: int64 ``[N]``, the crop's corner in the padded image, ``0..2*pad`` pixels;
    ``flip``: bool ``[N]``, mirrored left to right after the crop.
    """

    top: Tensor | None
    left: Tensor | None
    flip: Tensor | None

    def rows(self, start: int, stop: int) -> Moves:
        return Moves(*(None if part is None else part[start:stop] for part in self))


class Augment:
    """Zero-padded random crop and horizontal flip, as torchvision's RandomCrop and RandomFlip.

    ``names``: of ``"crop"`` and ``"flip"``; ``pad``: black pixels on each side before the crop.
    Raises ``ValueError`` for another name or a negative ``pad``.
    """

    def __init__(self, names: Sequence[str] = (), pad: int = 4, seed: int = 0) -> None:
        self.names = (names,) if isinstance(names, str) else tuple(names)
        for name in self.names:
            if name not in NAMES:
                raise ValueError(f"augment has {name!r}; choose from 'crop', 'flip'.")
        if pad < 0:
            raise ValueError(f"pad is {pad}; pass 0 or more pixels.")
        self.pad, self.seed = pad, seed

    def draw(self, index: Tensor, epoch: int) -> Moves:
        """Draw augmentations of rows ``index`` (int64 ``[N]``); one call per pass is cheapest."""
        top = left = flip = None
        if "crop" in self.names:
            top, left = (
                # float32 rounding could turn the largest draw into 2*pad+1
                (uniform(index, self.seed, key, epoch) * (2 * self.pad + 1))
                .long()
                .clamp_(max=2 * self.pad)
                for key in ("crop-y", "crop-x")
            )
        if "flip" in self.names:
            flip = uniform(index, self.seed, "flip", epoch) < 0.5
        return Moves(top, left, flip)

    def apply(self, x: Tensor, moves: Moves) -> Tensor:
        """``x`` ``[B, channels, height, width]`` augmented by ``moves``; same shape and dtype.

        Raises ``ValueError`` if ``x`` is not a batch of images.
        """
        if self.names and x.ndim != 4:
            raise ValueError(
                f"augment={self.names} got inputs of shape {list(x.shape)}; crop and flip need "
                "[batch, channels, height, width], so pass augment=() for other inputs."
            )
        if moves.top is not None and moves.left is not None:
            x = crop(x, moves.top, moves.left, self.pad)
        if moves.flip is not None:
            x = torch.where(moves.flip[:, None, None, None], x.flip(3), x)
        return x


def crop(x: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """The window of the zero-padded ``x`` ``[B, C, H, W]`` at ``top``, ``left`` ``[B]``.

    One ``index_select`` of rows of W pixels from an overlapping view: it reads one index per W
    pixels, while an elementwise gather reads W.
    """
    batch, channels, height, width = x.shape
    padded = F.pad(x, (pad, pad, pad, pad)).contiguous()
    flat = padded.view(-1)
    windows = flat.as_strided((flat.numel() - width + 1, width), (1, 1))
    stride = width + 2 * pad
    plane = torch.arange(batch * channels, device=x.device) * (stride * (height + 2 * pad))
    line = (top[:, None] + torch.arange(height, device=x.device)) * stride + left[:, None]
    start = plane.view(batch, channels, 1) + line[:, None]
    return windows.index_select(0, start.view(-1)).view(batch, channels, height, width)


class Normalize:
    """``(x / 255 - mean) / std`` for uint8 ``x``, in one multiplication and one addition.

    ``normalize``: ``(mean, std)``, numbers or ``[C]``, units 0..1; `None` for ``x / 255``.
    ``channels``: C, `None` if unknown. Raises ``ValueError`` for statistics that do not fit.
    """

    def __init__(
        self, normalize: tuple[Statistic, Statistic] | None, channels: int | None = None
    ) -> None:
        mean, std = (
            torch.as_tensor(part, dtype=torch.float64).reshape(-1).cpu()
            for part in normalize or (0.0, 1.0)
        )
        if not (torch.isfinite(mean).all() and torch.isfinite(std).all() and (std > 0).all()):
            raise ValueError(
                f"normalize has mean {mean.tolist()} and std {std.tolist()}; "
                "pass finite means and positive deviations, as Images.channel_stats() gives them."
            )
        channels = channels or max(len(mean), len(std))
        if {len(mean), len(std)} - {1, channels}:
            raise ValueError(
                f"normalize has {len(mean)} means and {len(std)} deviations for {channels} "
                "channels; pass one number, or one for each channel."
            )
        self._scale = (1 / (255 * std)).float().view(-1, 1, 1)
        self._bias = None if normalize is None else (-mean / std).float().view(-1, 1, 1)

    def on(self, device: torch.device) -> Normalize:
        other = copy.copy(self)
        other._scale = self._scale.to(device)
        other._bias = None if self._bias is None else self._bias.to(device)
        return other

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` ``[B, C, H, W]`` as float32 if it is uint8, else unchanged."""
        if x.dtype != torch.uint8:
            return x
        x = x.float().mul_(self._scale)
        return x if self._bias is None else x.add_(self._bias)
