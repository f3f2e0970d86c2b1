"""What the lattice learns: from one embedding to another, split so that no source is on both sides.

Embeddings come from texts through the `Teacher`, or from a user's files, which stay on disk and
are read batch by batch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from astkit import rng
from astkit.datasets import Batch
from astkit.lattice.pairs import TextPair, docs_pairs, in_validation, read_pairs
from astkit.lattice.teacher import Teacher

CHUNK = 4096  # rows that are read at a time


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of a store of embeddings.

    Attributes:
        x, y: sources and targets of the whole store, ``[N, dim]``; they may lie on disk.
        rows: int64 ``[K]``: which rows of the store these are.
    """

    x: Tensor
    y: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Sources and targets number ``index`` (int64 ``[B]``), float32 ``[B, dim]`` each."""
        rows = self.rows[index]
        return self.x.index_select(0, rows).float(), self.y.index_select(0, rows).float()

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Tensor, Tensor]]:
        """All of them in order, at most ``size`` at a time."""
        for index in torch.arange(len(self)).split(size):
            yield self.fetch(index)


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
    teacher = Teacher.fit(fitted, dim, seed=seed)
    x, y = teacher([pair.source for pair in pairs]), teacher([pair.target for pair in pairs])
    return Task(name, Pairs(x, y, sides[0]), Pairs(x, y, sides[1]), tuple(pairs))


def embedding_task(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
) -> Task:
    """A task of precomputed embeddings, which stay on disk.

    Two .npy files ``[N, dim]``, one for each side, or one .safetensors file with the tensors
    "source" and "target". A row's part follows from the bytes of its source. Nothing is unpickled.

    Raises ``ValueError`` for files that do not hold that, and for values that are not finite;
    ``FileNotFoundError`` where there is none.
    """
    path = Path(source)
    if path.suffix == ".safetensors":
        x, y = _tensors(path)
    elif target is None:
        raise ValueError(f"target is missing: give the .npy file that belongs to {path}")
    else:
        x, y = _array(path), _array(Path(target))
    if x.ndim != 2 or x.shape != y.shape or not (x.is_floating_point() and y.is_floating_point()):
        raise ValueError(
            f"{path} holds sources {x.dtype} {list(x.shape)} and targets {y.dtype}"
            f" {list(y.shape)}: give floating point [N, dim] for both, one row a pair"
        )
    whole = Pairs(x, y, torch.arange(len(x)))
    validation: list[bool] = []
    for number, (rows, targets) in enumerate(whole.chunks()):
        if not (rows.isfinite().all() and targets.isfinite().all()):
            raise ValueError(
                f"{path} or its targets hold a value that is not finite in rows from"
                f" {number * CHUNK} on: leave such pairs out"
            )
        validation += [in_validation(row.tobytes()) for row in rows.numpy()]
    sides = _sides(validation, str(path))
    return Task(name or path.stem, Pairs(x, y, sides[0]), Pairs(x, y, sides[1]))


def identity(task: Task) -> Task:
    """The easiest task on ``task``'s sources: the target is the source."""
    train, held = (replace(part, y=part.x) for part in (task.train, task.validation))
    return Task("identity", train, held)


def rotated(task: Task, seed: int = 0) -> Task:
    """The next task on ``task``'s sources: the target is ``Q x`` with a fixed orthogonal ``Q``.

    ``Q`` is drawn from the Haar measure (Mezzadri, Notices of the AMS 54(5), 2007), keyed by
    ``seed``; the targets are computed now and held in memory.
    """
    draws = torch.randn(task.dim, task.dim, generator=rng.generator(seed, "rotation"))
    q, r = torch.linalg.qr(draws)
    y = task.train.x.float() @ (q * r.diagonal().sign()).T
    return Task("rotation", replace(task.train, y=y), replace(task.validation, y=y))


class PairLoader:
    """Batches of ``pairs`` for a `Trainer`: sources as ``x``, targets as ``y``, both float32.

    The order of a pass is a function of (seed, pass). Nothing is read before its batch is made, so
    pairs on disk may be larger than the memory; with ``TrainConfig(prefetch=True)`` the next batch
    is read while this one computes. ``beside``: columns to put behind sources and behind targets,
    float32 ``[N, any]`` each, a row for each of the store. Raises ``ValueError`` for a batch size
    below 1.
    """

    keyed = True

    def __init__(
        self,
        pairs: Pairs,
        batch_size: int = 64,
        *,
        shuffle: bool = True,
        seed: int = 0,
        beside: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give 1 or more")
        self.pairs, self.batch_size, self.shuffle, self.seed = pairs, batch_size, shuffle, seed
        self._beside = beside
        self.device = torch.device("cpu")

    def to(self, device: torch.device | str) -> PairLoader:
        """Deliver on ``device`` from now on. Returns itself."""
        self.device = torch.device(device)
        return self

    @property
    def num_samples(self) -> int:
        """Pairs in a full pass."""
        return len(self.pairs)

    def __len__(self) -> int:
        return -(-len(self.pairs) // self.batch_size)

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch`` over ``order`` (all pairs by default), from ``start`` on.

        ``index`` counts the pairs of this part.
        """
        if order is None:
            n = len(self.pairs)
            order = rng.permutation(n, self.seed, "order", epoch) if self.shuffle else None
            order = torch.arange(n) if order is None else order
        rows = order[start * self.batch_size :]
        if not len(rows):  # split would give one empty batch
            return
        for index in rows.split(self.batch_size):
            x, y = self.pairs.fetch(index)
            if self._beside is not None:
                stored = self.pairs.rows[index]
                x, y = (
                    torch.cat([a, b[stored]], 1) for a, b in zip((x, y), self._beside, strict=True)
                )
            yield Batch(*(part.to(self.device, non_blocking=True) for part in (index, x, y)))

    def check_labels(self, num_outputs: int) -> None:
        """Targets are embeddings, so there is no label to check."""


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


def _tensors(path: Path) -> tuple[Tensor, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return file.get_tensor("source"), file.get_tensor("target")
    except SafetensorError as error:
        raise ValueError(
            f"{path} does not hold the tensors 'source' and 'target' ({error}): write them with"
            " safetensors.torch.save_file"
        ) from error
