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
        layout = "[N, channels, height, width]"
        for part, value, dtype, shape in (
            ("images", self.images, torch.uint8, layout),
            ("labels", self.labels, torch.int64, "[N]"),
        ):
            kind = getattr(value, "dtype", type(value).__name__)
            size = list(getattr(value, "shape", ()))
            if not isinstance(value, Tensor) or kind != dtype or len(size) != shape.count(",") + 1:
                raise ValueError(
                    f"{part} is a {kind} of shape {size}; pass a {dtype} tensor of shape {shape} "
                    "(torch.as_tensor converts arrays and lists)."
                )
        if len(self.images) != len(self.labels) or self.images.numel() == 0:
            raise ValueError(
                f"images has shape {list(self.images.shape)} and labels has {len(self.labels)} "
                "rows; pass at least one image with a pixel, and one label for each image."
            )
        if not self.classes:
            raise ValueError("classes is empty; pass one name for each label, as a tuple.")
        check_label_range(self.labels, len(self.classes), f"{self.name!r}", "classes names")

    def __len__(self) -> int:
        return len(self.labels)

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
        if rows.numel() == 0:
            raise ValueError(f"index selects no row of {self.name!r}; select at least one.")
        return Images(self.images[rows], self.labels[rows], self.classes, self.name)

    def channel_stats(self) -> tuple[Tensor, Tensor]:
        """Mean and population standard deviation of each channel: float32 ``[C]``, units 0..1."""
        # histograms give exact sums without a float copy; in chunks, since memory-mapped images
        # need not fit into memory
        counts = torch.zeros(self.images.shape[1], 256, dtype=torch.int64)
        for part in self.images.split(STATS_ROWS):
            channels = (channel.reshape(-1) for channel in part.unbind(1))
            counts += torch.stack([torch.bincount(each, minlength=256) for each in channels]).cpu()
        share = counts.double() / counts.sum(1, keepdim=True)
        levels = torch.arange(256, dtype=torch.float64)
        mean = (share * levels).sum(1, keepdim=True)
        std = (share * (levels - mean) ** 2).sum(1).sqrt()
        return (mean[:, 0] / 255).float(), (std / 255).float()


def check_label_range(
    labels: Tensor, outputs: int, where: str, what: str = "the model has"
) -> None:
    """Raise ``ValueError`` unless every label lies in ``0..outputs-1``.

    The message contains the lowest or highest invalid label, its count in ``where``, and the
    remedy; ``what`` names the provider of the ``outputs``.
    """
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < outputs:
        return
    bad = low if low < 0 else high
    count = int((labels == bad).sum())
    remedy = (
        "renumber the labels from 0, or drop those rows"
        if bad < 0
        else f"provide at least {bad + 1}, or renumber the labels"
    )
    raise ValueError(
        f"Label {bad} occurs {count} time{'' if count == 1 else 's'} in {where}, but {what} "
        f"{outputs} (labels 0 to {outputs - 1}); {remedy}."
    )
