"""Labelled images in memory: pixels, labels and class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STATS_ROWS = 1024  # images per chunk of the statistics


@dataclass(frozen=True, eq=False)
class Images:
    """A labelled set of images of equal size.

    ``images``: uint8 ``[N, channels, height, width]``, 0 black to 255 full intensity;
    ``labels``: int64 ``[N]``, each in ``0..len(classes)-1``; ``classes``: one name per label;
    ``name``: used in messages. Raises ``ValueError`` if one of these is violated.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        for part, value, dtype, shape in (
            ("images", self.images, torch.uint8, ("N", "channels", "height", "width")),
            ("labels", self.labels, torch.int64, ("N",)),
        ):
            if value.dtype != dtype or value.ndim != len(shape):
                wrong = f"{part} is a {value.dtype} of shape {list(value.shape)}"
                raise ValueError(f"{wrong}; pass a {dtype} tensor of shape [{', '.join(shape)}].")
        size, rows = list(self.images.shape), len(self.labels)
        if len(self.images) != rows or self.images.numel() == 0:
            remedy = "pass at least one image with a pixel, and a label for each"
            raise ValueError(f"images has shape {size} and labels has {rows} rows; {remedy}.")
        named = f"classes names {len(self.classes)}: renumber the labels from 0, or name more"
        for label in (int(self.labels.min()), int(self.labels.max())):
            if label not in range(len(self.classes)):
                raise ValueError(f"{self.name!r} has the label {label}, but {named}.")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.images.shape[1:]))
        return f"Images({self.name!r}: {len(self):,} of {size}, {len(self.classes)} classes)"

    def __getitem__(self, rows: int | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images and labels of one or several rows."""
        index = torch.as_tensor(rows, device=self.labels.device)
        return self.images[index], self.labels[index]

    @property
    def num_classes(self) -> int:
        """The number of named classes, including classes without samples."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(channels, height, width)`` of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def subset(self, index: Tensor | Sequence[int]) -> Images:
        """The rows ``index`` (int64 ``[K]`` or a bool mask ``[N]``), copied, in the order given.

        Raises ``IndexError`` for a row out of range, ``ValueError`` for an empty selection.
        """
        rows = torch.as_tensor(index, device=self.labels.device)
        rows = rows if len(rows) else rows.long()  # of an empty list
        return Images(self.images[rows], self.labels[rows], self.classes, self.name)

    def channel_stats(self) -> tuple[Tensor, Tensor]:
        """Mean and population standard deviation of each channel: float32 ``[C]``, units 0..1.

        The deviation is at least a grey level, 1 / 255, since a channel may be constant.
        """
        # histograms give exact sums without a float copy; in chunks, since memory-mapped images
        # need not fit into memory
        counts = torch.zeros(self.images.shape[1], 256, dtype=torch.int64)
        for part in self.images.split(STATS_ROWS):
            channels = (channel.reshape(-1) for channel in part.unbind(1))
            counts += torch.stack([torch.bincount(each, minlength=256) for each in channels]).cpu()
        share = counts.double() / counts.sum(1, keepdim=True)
        levels = torch.arange(256, dtype=torch.float64)
        mean = (share * levels).sum(1, keepdim=True)
        std = (share * (levels - mean) ** 2).sum(1).sqrt().clamp_min(1)
        return (mean[:, 0] / 255).float(), (std / 255).float()
