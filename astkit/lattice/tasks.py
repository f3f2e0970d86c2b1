"""What the lattice learns: from one embedding to another, split so that no source is on both sides.

Embeddings come from texts through the `Teacher`, or from a user's files, which stay on disk and
are read batch by batch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit import rng
from astkit.datasets import Loader
from astkit.lattice.pairs import TextPair, docs_pairs, in_validation, read_pairs
from astkit.lattice.teacher import Teacher

CHUNK = 4096  # rows that are read at a time


@dataclass(frozen=True, eq=False)
class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a store of embeddings, as a data set of sources and targets.

    Attributes:
        x, y: sources and targets of the whole store, ``[N, dim]``; they may lie on disk.
        rows: int64 ``[K]``: which rows of the store these are.
    """

    x: Tensor
    y: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.fetch(torch.tensor([index]))
        return x[0], y[0]

    def __getitems__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        return self.fetch(torch.tensor(index))  # which a DataLoader collates no further

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Sources and targets number ``index`` (int64 ``[B]``), float32 ``[B, dim]`` each."""
        rows = self.rows[index]
        return self.x.index_select(0, rows).float(), self.y.index_select(0, rows).float()

    def whole(self) -> tuple[Tensor, Tensor]:
        """All sources and all targets, as `fetch` gives them."""
        return self.fetch(torch.arange(len(self)))

    def loader(self, batch_size: int = 64, *, shuffle: bool = True, seed: int = 0) -> Loader:
        """A loader that reads a batch from the store when it is asked for, never the whole."""
        return Loader(self, batch_size, shuffle=shuffle, seed=seed, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


@dataclass(frozen=True, eq=False)
class Task:
    """Pairs to train on and pairs to validate with.

    Attributes:
        name: for tables.
        train, validation: parts of one store.
        texts: the pair of texts behind each row of the store; empty where there are none.
    """

    name: str
    train: Pairs
    validation: Pairs
    texts: Sequence[TextPair] = ()

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.train.x.shape[1]

    def texts_of(self, part: Pairs) -> list[TextPair]:
        """The texts behind ``part``; raises ``ValueError`` for a task without texts."""
        if not self.texts:
            raise ValueError(
                f"the task {self.name!r} has embeddings alone: make it of texts with text_task"
            )
        return [self.texts[row] for row in part.rows.tolist()]


def docs_task(
    count: int | None = None,
    dim: int = 768,
    *,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
) -> Task:
    """The frozen documentation pairs (see `docs_pairs`), or ``count`` of them drawn by ``seed``.

    Raises ``ValueError`` for a ``count`` that there is not.
    """
    pairs = docs_pairs(root)
    if count is not None:
        if not 1 <= count <= len(pairs):
            raise ValueError(f"count is {count}: give 1 to {len(pairs)}, or None for all pairs")
        drawn = rng.permutation(len(pairs), seed, "docs_task")[:count]
        pairs = [pairs[row] for row in sorted(drawn.tolist())]
    return text_task(pairs, dim, seed=seed, name="docs")


def text_task(
    pairs: Sequence[TextPair] | str | os.PathLike[str],
    dim: int = 768,
    *,
    seed: int = 0,
    name: str = "texts",
) -> Task:
    """A task of text pairs, or of a JSONL file of them (see `read_pairs`).

    The teacher is fitted to both sides of the training part. Raises ``ValueError`` when one part
    is left empty, or for a file that is none.
    """
    if isinstance(pairs, str | os.PathLike):
        pairs = read_pairs(pairs)
    sides = _sides([in_validation(pair.source) for pair in pairs], name)
    train = [pairs[row] for row in sides[0].tolist()]
    fitted = [pair.source for pair in train] + [pair.target for pair in train]
    teacher = Teacher(fitted, dim, seed)
    x, y = teacher([pair.source for pair in pairs]), teacher([pair.target for pair in pairs])
    return Task(name, Pairs(x, y, sides[0]), Pairs(x, y, sides[1]), tuple(pairs))


def embedding_task(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, name: str = "embeddings"
) -> Task:
    """A task of precomputed embeddings, which stay on disk.

    Two .npy files ``[N, dim]``, one for each side. A row's part follows from the bytes of its
    source. Nothing is unpickled.

    Raises ``ValueError`` for files that do not hold that, and for values that are not finite;
    ``FileNotFoundError`` where there is none.
    """
    x, y = _array(Path(source)), _array(Path(target))
    if x.ndim != 2 or x.shape != y.shape or not (x.is_floating_point() and y.is_floating_point()):
        raise ValueError(
            f"{source} holds {x.dtype} {list(x.shape)} and {target} {y.dtype} {list(y.shape)}: give"
            " floating point [N, dim] for both, one row a pair"
        )
    everything = Pairs(x, y, torch.arange(len(x)))
    validation: list[bool] = []
    for index in torch.arange(len(x)).split(CHUNK):
        rows, targets = everything.fetch(index)
        if not (rows.isfinite().all() and targets.isfinite().all()):
            raise ValueError(
                f"{source} or {target} hold a value that is not finite in rows from"
                f" {int(index[0])} on: leave such pairs out"
            )
        validation += [in_validation(row.tobytes()) for row in rows.numpy()]
    sides = _sides(validation, name)
    return Task(name, Pairs(x, y, sides[0]), Pairs(x, y, sides[1]))


def _sides(validation: Sequence[bool], name: str) -> tuple[Tensor, Tensor]:
    """Rows of the training part and of the validation part."""
    mask = torch.tensor(validation, dtype=torch.bool)
    train, held = (~mask).nonzero().squeeze(1), mask.nonzero().squeeze(1)
    if not len(train) or not len(held):
        raise ValueError(
            f"of {len(mask)} pairs of {name!r}, {len(train)} are for training and {len(held)} for"
            " validation: give more pairs with different sources"
        )
    return train, held


def _array(path: Path) -> Tensor:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        with warnings.catch_warnings():
            # a writable mapping of more than the memory would be refused
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is no .npy file of numbers ({error}): write it with numpy.save"
        ) from error
