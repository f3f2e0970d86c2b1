"""Rows of a data set as estimators read them: inputs, targets, features that need no training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from astkit import rng
from astkit.datasets.batch import IGNORED
from astkit.datasets.facts import (
    NAMES,
    class_labels,
    hash_of,
    like_classes,
    row_groups,
    underlying,
    varies,
)
from astkit.datasets.images import Images
from astkit.datasets.loader import fetch_rows
from astkit.datasets.table import Table

Matrix = Any
"""Features of n rows: float32 ``[n, d]``, a numpy array or a scipy CSR matrix."""
FeaturesOf = Callable[[Any], Any]
"""Features of the inputs of n rows, ``[n, d]``, from a user."""

CHUNK = 2048  # rows that are read at once
FEW = 64  # images that the filters see at once, which stay in the processor's cache
BUCKETS = 2**16  # of hashed n-grams
SIDE = 32  # pixels to which the longer side of an image is reduced before the convolution
FILTERS, WINDOW, CELLS = 24, 5, 3  # untrained filters, their side, and cells a side of their means
IMAGES, TEXTS, TOKENS, TABLE = "images", "texts", "tokens", "table"
GIVEN, UNKNOWN = "features", "other inputs"


class Rows:
    """The rows of a data set as estimators read them.

    The kind of the inputs follows from their type and shape, and with it their features:

    - a `Table`, or float ``[F]`` or ``[T, F]``, as of series: the columns themselves, NaN where a
      `Table` has no value. So are several inputs of numbers or vectors, one of them float, such as
      columns by name or categories beside them;
    - ``[C, H, W]``: `image_features`;
    - strings: counts of hashed words and pairs of words (scikit-learn's HashingVectorizer);
    - integers ``[T]``: counts of hashed n-grams, see `token_features`.

    Args:
        data: a map-style data set or a list of strings, or a loader or Subset of one.
        features: computes features of the inputs of a batch, for other kinds of data.
        by_row: computes features from row numbers, int64 ``[n]``, such as those of a model.
        classes: whether whole-number targets name classes; guessed by default, see `class_labels`.

    Attributes:
        kind: of the inputs.
        table: the `Table` that the rows are of; else ``None``.
        labels: int64 ``[N]``, where the targets are classes, else ``None``.
        groups: of rows that depend on each other, see `row_groups`, or ``None``.
        flops: of computing features so far.

    Raises ``ValueError`` for data without rows that can be selected, and where features are asked
    for of an unknown kind.
    """

    def __init__(
        self,
        data: Any,
        features: FeaturesOf | None = None,
        by_row: Callable[[Tensor], Tensor] | None = None,
        classes: bool | None = None,
    ) -> None:
        self._data, self._numbers, known = underlying(data)
        sized = hasattr(self._data, "__len__") and hasattr(self._data, "__getitem__")
        if isinstance(self._data, IterableDataset) or not sized or not len(self):
            raise ValueError(
                f"the data are a {type(self._data).__name__}, of which no rows can be selected:"
                " pass a map-style data set with at least one row"
            )
        # a subclass may change the rows that it gives
        self._in_memory = getattr(type(self._data), "__getitem__", None) in (
            Images.__getitem__,
            TensorDataset.__getitem__,
            Table.__getitem__,
        )
        if not known:
            raise ValueError(
                "the data are a DataLoader with a sampler of its own, so that its rows are not"
                " known: pass a data set, such as a Subset"
            )
        self._features, self._by_row = features, by_row
        if isinstance(self._data, Table) and self._numbers is not None:
            self._data, self._numbers = self._data.take(self._numbers), None
        own = features is not None or by_row is not None
        self.table = self._data if isinstance(self._data, Table) and not own else None
        self.labels, self._classes = class_labels(data, classes), classes
        self.groups = row_groups(data)
        self.flops = 0.0
        self._hashes: Tensor | None = None  # int64 [N], 0 where inputs were not read
        self._place: Tensor | None = None
        self._kept: Matrix = None
        first = self.inputs(torch.zeros(1, dtype=torch.int64))
        self.kind = GIVEN if own else kind_of(first)

    def __len__(self) -> int:
        return len(self._data if self._numbers is None else self._numbers)

    @property
    def of_model(self) -> bool:
        """Whether the features are those of a model, which may know the targets."""
        return self._by_row is not None

    @cached_property
    def _matrix(self) -> Matrix:
        """The columns of the `Table`, for trees."""
        assert self.table is not None
        return self.table.matrix(scaled=False)

    @cached_property
    def varies(self) -> bool:
        """Whether inputs differ from one reading of a row to the next."""
        return varies(self._data)

    def read(self, rows: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of ``rows``, int64 ``[n]``; targets are ``None`` where there are none.

        Strings come as a list, other parts stacked; tokens of transformers as `_tokenized` says,
        columns of a table together, unless the user's function has to tell them apart.
        """
        inputs, targets = self._read(rows)
        return _columns(inputs) if self._features is None else inputs, targets

    def _read(self, rows: Tensor) -> tuple[Any, Any]:
        rows = rows if self._numbers is None else self._numbers[rows]
        if self._in_memory:
            return _divided(self._data[rows])
        with rng.restored():
            items = fetch_rows(self._data, rows.tolist())
        if isinstance(items[0], str):
            for row, text in zip(rows.tolist(), items, strict=True):
                if not isinstance(text, str):
                    raise ValueError(f"row {row} of the texts is {text!r:.60}: pass strings only")
            return items, None
        if isinstance(items[0], Mapping) and "input_ids" in items[0]:
            return _tokenized(items)
        try:
            return _divided(default_collate(items))
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"the rows of the data cannot be stacked ({str(error)!r:.120}): pass data whose"
                " items are tensors or numbers of one shape"
            ) from error

    def inputs(self, rows: Tensor) -> Any:
        """Inputs of ``rows``: a tensor, a list of strings, or what the data hold."""
        return self.read(rows)[0]

    def targets(self, rows: Tensor) -> Tensor | None:
        """Targets of ``rows``, ``[n, ...]``; ``None`` where there are none.

        Raises ``ValueError`` for targets that are NaN or infinite.
        """
        parts = [self.read(part)[1] for part in rows.split(CHUNK)]
        if not all(isinstance(part, Tensor) for part in parts):
            return None
        if parts[0].ndim == 2 and len({part.shape[1] for part in parts}) > 1:
            longest = max(part.shape[1] for part in parts)
            parts = [F.pad(part, (0, longest - part.shape[1]), value=IGNORED) for part in parts]
        targets = torch.cat(parts)
        finite = targets.isfinite().reshape(len(targets), -1).all(1)
        if not bool(finite.all()):
            row = int(rows[~finite][0])
            raise ValueError(f"the target of row {row} is NaN or infinite: leave out such rows")
        return targets

    def numeric(self, targets: Tensor) -> bool:
        """Whether ``targets [n, ...]`` of these rows are numbers, not names of classes.

        Where it is not known, whole numbers are if they do not look like classes, and several of a
        row if each is 0 or 1.
        """
        if targets.is_complex():
            return False
        if targets.is_floating_point() or self._classes is False:
            return True
        if self._classes or self.labels is not None:
            return False
        several = targets.numel() > len(targets)
        return bool((targets <= 1).all()) if several else not like_classes(targets.flatten())

    def features(self, rows: Tensor) -> Matrix:
        """Features of the inputs of ``rows``, ``[n, d]``; what is kept is not read again."""
        place = torch.full_like(rows, -1) if self._place is None else self._place[rows]
        kept, new = (place >= 0).nonzero().squeeze(1), (place < 0).nonzero().squeeze(1)
        parts = [self._kept[place[kept].numpy()]] if len(kept) else []
        if len(new) or not parts:
            parts += [self._of(part) for part in rows[new].split(CHUNK)]
        order = torch.cat([kept, new]).argsort()
        return stack(parts)[order.numpy()] if len(kept) and len(new) else stack(parts)

    def hashes(self) -> Tensor:
        """A hash of the inputs of each row, int64 ``[N]``; 0 where it is not known.

        It is known of data in memory, and of rows that were read for their features.
        """
        known = torch.zeros(len(self)).long() if self._hashes is None else self._hashes
        missing = (known == 0).nonzero().squeeze(1)
        if self._in_memory and len(missing):
            for part in missing.split(CHUNK):
                self._hash(part, self.inputs(part))
        return known if self._hashes is None else self._hashes

    def _hash(self, rows: Tensor, inputs: Any) -> None:
        if isinstance(inputs, Tensor) and inputs.ndim == 2 and not inputs.is_floating_point():
            # tokens are padded with -1
            inputs = [np.trim_zeros(row + 1, "b") for row in inputs.cpu().numpy()]
        if isinstance(inputs, Tensor | list) and len(inputs) == len(rows):  # else several a row
            if self._hashes is None:
                self._hashes = torch.zeros(len(self), dtype=torch.int64)
            self._hashes[rows] = torch.tensor([hash_of(each) or 0 for each in inputs])

    def keep(self, rows: Tensor) -> None:
        """Compute the features of ``rows`` once, for all later calls."""
        self._kept = self.features(rows)
        self._place = torch.full((len(self),), -1)
        self._place[rows] = torch.arange(len(rows))

    def _of(self, rows: Tensor) -> Matrix:
        if self._by_row is not None:
            return self._by_row(rows).numpy()
        if self.table is not None:
            return self._matrix[rows.numpy()]
        x = self.inputs(rows)
        self._hash(rows, x)
        if self._features is not None:
            own = np.asarray(self._features(x), np.float32).reshape(len(rows), -1)
            if not np.isfinite(own).all():
                raise ValueError("features gave a NaN or infinite value: give finite numbers")
            return own
        if self.kind == IMAGES:
            columns, flops = image_features(x)
            self.flops += flops
            return columns.numpy()
        if self.kind == TEXTS:
            from sklearn.feature_extraction.text import HashingVectorizer

            options = {"ngram_range": (1, 2), "alternate_sign": False, "dtype": np.float32}
            return HashingVectorizer(n_features=BUCKETS, **options).transform(x)
        if self.kind == TOKENS:
            return token_features(x.numpy())
        if self.kind == TABLE:
            return x.reshape(len(rows), -1).float().numpy()
        shape = f" of shape {list(x.shape[1:])} a row" if isinstance(x, Tensor) else ""
        raise ValueError(
            f"no features are known for inputs that are a {type(x).__name__}{shape}: pass rows with"
            " one tensor or text as their input, or a function that returns [n, d] numbers for the"
            " inputs of n rows, as Aim(features=) among policies, or to forecast(features=)"
        )


def kind_of(inputs: Any) -> str:
    """The kind of the ``inputs`` of some rows."""
    if isinstance(inputs, list) and inputs and isinstance(inputs[0], str):
        return TEXTS
    if isinstance(inputs, Tensor):
        if inputs.ndim == 4 and not inputs.is_complex():
            return IMAGES
        if inputs.is_floating_point() and inputs.ndim in (2, 3):
            return TABLE
        if inputs.ndim == 2 and not inputs.is_complex():
            return TOKENS
    return UNKNOWN


def image_features(images: Tensor) -> tuple[Tensor, float]:
    """Pixel statistics and untrained filters, float32 ``[n, d]``, and the FLOPs of the filters.

    ``images [n, C, H, W]``: uint8 in 0..255, or numbers of any scale. Of each channel the mean, the
    deviation, and mean differences of neighbours, at full and half resolution; of random filters
    without mean, the positive parts averaged over CELLS x CELLS cells: few, so that a linear head
    cannot learn two domains at once, as little as a network in a few epochs. Source of the
    filters: Saxe et al., "On random weights and unsupervised feature learning", ICML 2011.
    """
    x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    half = F.avg_pool2d(x, 2, ceil_mode=True)
    columns = [x.mean((2, 3)), x.std((2, 3), correction=0)]
    for size in (x, half):
        columns += [size.diff(dim=place).abs().mean((2, 3)) for place in (2, 3)]
    longer = max(x.shape[2:])
    if longer > SIDE:
        sides = [max(WINDOW, round(side * SIDE / longer)) for side in x.shape[2:]]
        x = F.interpolate(x, sides, mode="area")
    channels = x.shape[1]
    random = rng.generator("aim", "filters", channels)
    filters = torch.randn(FILTERS, channels, WINDOW, WINDOW, generator=random)
    filters -= filters.mean((1, 2, 3), keepdim=True)
    filters /= filters.flatten(1).norm(dim=1)[:, None, None, None]
    cells = []
    for part in x.split(FEW):
        seen = F.conv2d(part, filters, stride=2, padding=WINDOW // 2)
        cells.append(F.adaptive_avg_pool2d(seen.clamp_min(0), CELLS).flatten(1))
    flops = 2.0 * seen[0].numel() * filters[0].numel() * len(x)
    return torch.cat([*columns, torch.cat(cells)], 1).nan_to_num(), flops


def token_features(tokens: np.ndarray[Any, Any]) -> Matrix:
    """Counts of hashed runs of 1 to 3 tokens, CSR ``[n, BUCKETS]``, of norm 1 a row.

    ``tokens``: integers ``[n, T]``, of which negative ones do not count. Source: hashed n-gram
    features of Xie et al., "Data selection for language models via importance resampling" (DSIR),
    NeurIPS 2023.
    """
    from scipy.sparse import csr_matrix

    n, length = tokens.shape
    columns, whole = [], []
    for size in range(1, min(3, length) + 1):
        runs = np.full((n, length - size + 1), size, np.uint64)
        real = np.ones(runs.shape, bool)
        for place in range(size):
            part = tokens[:, place : length - size + place + 1]
            runs = mix_bits(runs + part.astype(np.uint64))
            real &= part >= 0
        columns.append((runs % BUCKETS).astype(np.int32))
        whole.append(real)
    index, kept = np.hstack(columns), np.hstack(whole)
    starts = np.concatenate([[0], kept.sum(1).cumsum()])
    counts = csr_matrix((np.ones(starts[-1], np.float32), index[kept], starts), (n, BUCKETS))
    counts.sum_duplicates()
    squares = np.append(counts.data**2, np.float32(0))  # the last row may hold none
    lengths = np.sqrt(np.add.reduceat(squares, counts.indptr[:-1]))
    counts.data /= np.repeat(lengths, np.diff(counts.indptr))
    return counts


def stack(parts: list[Matrix]) -> Matrix:
    """Matrices one below the other."""
    if isinstance(parts[0], np.ndarray):
        return np.vstack(parts)
    from scipy.sparse import vstack

    return vstack(parts, "csr")


def mix_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014), on uint64."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _divided(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a collated batch, detached; single inputs without what holds them."""
    if isinstance(batch, Mapping):
        target = next((batch[name] for name in NAMES if name in batch), None)
        # masks say which values count, and hold no values
        parts = [part for name, part in batch.items() if name not in NAMES and not _is_mask(part)]
    elif isinstance(batch, tuple | list) and not isinstance(batch[0], str):
        *parts, target = batch if len(batch) > 1 else (batch[0], None)
    else:
        parts, target = [batch], None
    parts = [part.detach() if isinstance(part, Tensor) else part for part in parts]
    if isinstance(target, Tensor):
        target = target.detach()
    inputs = parts[0] if len(parts) == 1 else parts
    if isinstance(inputs, tuple):
        inputs = list(inputs)
    return inputs, target


def _columns(inputs: Any) -> Any:
    """Several numbers or vectors a row as one, ``[n, F]``, unless all are integers, as tokens."""
    parts = inputs if isinstance(inputs, list) else []
    numbers = all(isinstance(part, Tensor) and part.ndim < 3 for part in parts)
    if not parts or not numbers or not any(part.is_floating_point() for part in parts):
        return inputs
    return torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)


def _tokenized(items: list[Any]) -> tuple[Tensor, Tensor | None]:
    """``input_ids`` and targets of rows as transformers take them, of any lengths, ``[n, ...]``.

    Shorter rows end with -1, their targets with `IGNORED`; tokens that the ``attention_mask``
    leaves out are -1 too.
    """

    def padded(name: str, value: int) -> Tensor:
        parts = [torch.as_tensor(item[name]) for item in items]
        return pad_sequence(parts, batch_first=True, padding_value=value)

    tokens = padded("input_ids", -1)
    if "attention_mask" in items[0]:
        tokens = tokens.where(padded("attention_mask", 0) > 0, -1)
    name = next((name for name in NAMES if name in items[0]), None)
    if name is None:
        return tokens, None
    if torch.as_tensor(items[0][name]).ndim:
        return tokens, padded(name, IGNORED)
    return tokens, torch.stack([torch.as_tensor(item[name]) for item in items])


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool
