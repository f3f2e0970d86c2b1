"""Images with a transform, as torchvision's data sets have it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit.datasets import Images


class Transformed(Dataset[Any]):
    """Float images whose transform is the attribute ``name``."""

    def __init__(
        self,
        images: Images,
        change: Callable[[Tensor], Tensor] | None = None,
        name: str = "transform",
    ) -> None:
        self.images, self.name, self.targets = images, name, images.labels
        setattr(self, name, change)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        x, change = self.images.images[row] / 255, getattr(self, self.name)
        return x if change is None else change(x), int(self.targets[row])


def dimmed(image: Tensor) -> Tensor:
    """Darker by a random factor."""
    return image * (0.3 + 0.4 * torch.rand(1))
