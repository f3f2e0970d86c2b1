"""uint8 pixels to float32 inputs of mean 0 and deviation 1."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

Statistic = float | Sequence[float] | Tensor


class Normalize:
    """``(x / 255 - mean) / std`` for uint8 ``x``, in one multiplication and one addition.

    ``normalize``: ``(mean, std)``, numbers or ``[C]``, units 0..1; None for ``x / 255``.
    ``channels``: C, None when unknown. Raises ``ValueError`` for statistics that do not fit.
    """

    def __init__(
        self, normalize: tuple[Statistic, Statistic] | None, channels: int | None = None
    ) -> None:
        self._scale, self._bias = _scale_and_bias(normalize, channels)

    def on(self, device: torch.device) -> Normalize:
        """The same on ``device``."""
        other = copy.copy(self)
        other._scale = self._scale.to(device)
        other._bias = None if self._bias is None else self._bias.to(device)
        return other

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` ``[B, C, H, W]`` as float32 when it is uint8, else as it is."""
        if x.dtype != torch.uint8:
            return x
        x = x.float().mul_(self._scale)
        return x if self._bias is None else x.add_(self._bias)


def _scale_and_bias(
    normalize: tuple[Statistic, Statistic] | None, channels: int | None
) -> tuple[Tensor, Tensor | None]:
    if normalize is None:
        return torch.tensor(1 / 255), None
    mean, std = (torch.as_tensor(part, dtype=torch.float64).reshape(-1).cpu() for part in normalize)
    if not (torch.isfinite(mean).all() and torch.isfinite(std).all() and (std > 0).all()):
        raise ValueError(
            f"normalize has mean {mean.tolist()} and std {std.tolist()}; "
            "pass finite means and positive deviations, as Images.channel_stats() gives them."
        )
    channels = channels or max(len(mean), len(std))
    if {len(mean), len(std)} - {1, channels}:
        raise ValueError(
            f"normalize has {len(mean)} means and {len(std)} deviations for {channels} channels; "
            "pass one number, or one for each channel."
        )
    shape = (-1, 1, 1)
    return (1 / (255 * std)).float().view(shape), (-mean / std).float().view(shape)
