"""Loaders that were made elsewhere, behind the same protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit.datasets.images import Images, check_label_range
from astkit.datasets.loaders import Batch, BatchSource, check_start
from astkit.datasets.streams import as_labels


class ForeignLoader:
    """An ordinary loader of ``(x, y)`` or ``(index, x, y)`` batches, such as a torch DataLoader.

    ``index`` is the running position within the pass where the loader gives none. Tensors are moved
    to ``device`` and otherwise left as they are; order and epochs are the loader's own affair.
    Raises ``ValueError`` when ``loader`` cannot be iterated.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str = "cpu") -> None:
        if not isinstance(loader, Iterable):
            raise ValueError(
                f"loader is a {type(loader).__name__}, which cannot be iterated; "
                "pass a DataLoader or another iterable of (x, y) batches."
            )
        self.loader = loader
        self.device = torch.device(device)
        self._outputs: int | None = None

    def to(self, device: torch.device | str) -> ForeignLoader:
        """Deliver on ``device`` from now on. Returns itself."""
        self.device = torch.device(device)
        return self

    @property
    def num_samples(self) -> int | None:
        """Rows of the loader's data set, ``None`` when it does not tell."""
        try:
            return len(self.loader.dataset)  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            return None

    @property
    def num_classes(self) -> int | None:
        """Classes the loader's data set names, ``None`` when it names none."""
        classes = getattr(getattr(self.loader, "dataset", None), "classes", None)
        return None if classes is None else len(classes)

    @property
    def batch_size(self) -> int | None:
        """The loader's batch size, ``None`` when it does not tell."""
        size: int | None = getattr(self.loader, "batch_size", None)
        return size

    def __len__(self) -> int:
        """Batches in a full pass; raises ``TypeError`` when the loader cannot tell."""
        return len(self.loader)  # type: ignore[arg-type]

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """One pass; the first ``start`` batches are loaded and dropped.

        Raises ``ValueError`` for an ``order`` and, while iterating, for a batch that is not a pair,
        a label out of range, or a loader that yields nothing.
        """
        if order is not None:
            raise ValueError(
                "order was given for an ordinary loader, which loads every row itself; to select "
                "rows before they are loaded, pass the data set in an astkit.datasets.Loader."
            )
        check_start(start)
        return self._deliver(start)

    def check_labels(self, num_outputs: int) -> None:
        """From now on raise ``ValueError`` at a batch with a label outside ``0..num_outputs-1``."""
        self._outputs = num_outputs

    def _deliver(self, start: int) -> Iterator[Batch]:
        position = 0
        number = -1
        for number, item in enumerate(self.loader):
            index, x, y = _parts(item, position)
            position += len(y)
            if number < start:
                continue
            if self._outputs is not None and len(y):
                check_label_range(y, self._outputs, f"batch {number}")
            yield Batch(*(part.to(self.device, non_blocking=True) for part in (index, x, y)))
        if number < 0:
            raise ValueError(
                "The loader yielded no batch; check that its data set is not empty and that it can "
                "be iterated more than once (a generator cannot)."
            )


def as_loader(obj: object, device: torch.device | str = "cpu") -> BatchSource:
    """``obj`` as a source of batches on ``device``.

    A ``Loader`` or another source of batches is moved there if it has ``to``, and an iterable of
    batches is wrapped. Raises ``ValueError`` for a bare data set or anything else.
    """
    if isinstance(obj, BatchSource):
        return obj.to(device) if hasattr(obj, "to") else obj
    if isinstance(obj, Images | Dataset):
        raise ValueError(
            f"Got a {type(obj).__name__}, which does not say how to batch its rows; "
            "wrap it first: Loader(data, batch_size=128)."
        )
    return ForeignLoader(obj, device)  # type: ignore[arg-type]


def _parts(item: object, position: int) -> tuple[Tensor, Tensor, Tensor]:
    parts = tuple(item) if isinstance(item, tuple | list) else ()
    if len(parts) not in (2, 3) or not all(isinstance(part, Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts) or type(item).__name__
        raise ValueError(
            f"The loader yielded ({kinds}); it must yield tensor pairs (x, y) "
            "or triples (index, x, y)."
        )
    x, y = parts[-2], as_labels(parts[-1])
    if y.ndim == 0 or len(x) != len(y):
        raise ValueError(
            f"The loader yielded x of shape {list(x.shape)} with y of shape {list(y.shape)}; "
            "it must yield batches with one label for each row."
        )
    index = parts[0].long() if len(parts) == 3 else torch.arange(position, position + len(y))
    return index, x, y
