"""Images in memory: pixels, labels and the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STATS_ROWS = 1024  # images whose statistics are taken at a time


@dataclass(frozen=True, eq=False)
class Images:
    """A labelled set of equally sized images.

    ``images``: uint8 ``[N, channels, height, width]``, 0 black to 255 full intensity;
    ``labels``: int64 ``[N]``, each in ``0..len(classes)-1``; ``classes``: one name a label;
    ``name``: how messages call the set. Raises ``ValueError`` when one of these does not hold.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        _check_tensor("images", self.images, torch.uint8, 4, "[N, channels, height, width]")
        _check_tensor("labels", self.labels, torch.int64, 1, "[N]")
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"images has {len(self.images)} rows and labels has {len(self.labels)}; "
                "pass exactly one label for each image."
            )
        if self.images.numel() == 0:
            raise ValueError(
                f"images is empty (shape {list(self.images.shape)}); "
                "pass at least one image with at least one pixel."
            )
        if not self.classes:
            raise ValueError("classes is empty; pass one name for each label, as a tuple.")
        check_label_range(self.labels, len(self.classes), f"{self.name!r}", "classes names")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """The number of named classes, whether or not each occurs."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(channels, height, width)`` of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def subset(self, index: Tensor | Sequence[int]) -> Images:
        """The rows ``index`` (int64 ``[K]`` or a bool mask ``[N]``), copied, in the order given.

        Raises ``IndexError`` for a row that does not exist, ``ValueError`` for no rows at all.
        """
        rows = torch.as_tensor(index, device=self.labels.device)
        if rows.numel() == 0:
            raise ValueError(f"index selects no row of {self.name!r}; select at least one.")
        return Images(self.images[rows], self.labels[rows], self.classes, self.name)

    def channel_stats(self) -> tuple[Tensor, Tensor]:
        """Mean and population standard deviation of each channel: float32 ``[C]``, units 0..1."""
        # a histogram gives exact sums without a float copy of the whole set
        levels = torch.arange(256, dtype=torch.float64)
        means, stds = [], []
        for channel in range(self.images.shape[1]):
            # part by part, because images on disk need not fit into memory
            parts = self.images[:, channel].split(STATS_ROWS)
            counts = [torch.bincount(part.reshape(-1), minlength=256).cpu() for part in parts]
            count = torch.stack(counts).sum(0)
            share = count.double() / count.sum()
            mean = (share * levels).sum()
            means.append(mean / 255)
            stds.append((share * (levels - mean) ** 2).sum().sqrt() / 255)
        return torch.stack(means).float(), torch.stack(stds).float()


def check_label_range(
    labels: Tensor, outputs: int, where: str, what: str = "the model has"
) -> None:
    """Raise ``ValueError`` unless every label lies in ``0..outputs-1``.

    The sentence names the lowest or highest offending label, how often it occurs in ``where``, and
    the remedy; ``what`` says who provides the ``outputs``.
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


def _check_tensor(name: str, value: object, dtype: torch.dtype, ndim: int, layout: str) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} is a {type(value).__name__}; pass a {dtype} tensor {layout} "
            "(torch.as_tensor converts arrays and lists)."
        )
    if value.dtype != dtype or value.ndim != ndim:
        raise ValueError(
            f"{name} is a {value.dtype} tensor of shape {list(value.shape)}; "
            f"pass a {dtype} tensor of shape {layout}."
        )
