"""`Table`: a real table as a data set, its label in its own unit, with a model to begin with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from astkit.datasets.table_encoder import TableEncoder
from astkit.datasets.table_reader import Column, read_table

if TYPE_CHECKING:
    import pandas as pd

CLASSES = 20
"""Most distinct whole numbers of a label that are classes; words are always classes."""
MANY = 100
"""Most classes."""
NAMED = 5
"""Words of a column that a note names."""
WIDTH = 64
TASKS = ("regression", "classes")


class Table(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a table, ``(inputs, label)``: float32 ``[inputs]`` and a number or a class.

    Numbers and codes of words are stored; words become columns when rows are read. ::

        train = Table("old.csv", label="price")
        test = Table("new.csv", like=train)

    Args:
        source: path of a CSV or parquet file, or a DataFrame, see `read_table`.
        label: name of the column to be predicted.
        like: another `Table`, whose label, columns and encoding hold; the label may be missing.
        encoder: a scikit-learn transformer of the typed frame in place of `TableEncoder`.
        task: "regression" or "classes"; by default words and up to `CLASSES` distinct whole numbers
            are classes.
        drop: columns to leave out.
        groups: column that tells which rows depend on each other; it is no input.

    Attributes:
        frame: the inputs, typed; ``task``; ``notes``: what was left out, as sentences.
        classes: names of the classes, of a regression none.
        labelled: whether the label is known.
        values: labels, float32 ``[rows]`` in the label's unit, or classes, int64 ``[rows]``; zeros
            without a label.
        groups: int64 ``[rows]``, or ``None``.

    Raises ``ValueError`` for a table that cannot be read, an unknown column, and a label without
    values, of one value, or of more than `MANY` words.
    """

    frame: pd.DataFrame
    task: str
    classes: tuple[str, ...]
    scale: tuple[float, float]
    group: str | None
    vectors: list[Tensor]

    def __init__(
        self,
        source: Any,
        label: str | None = None,
        *,
        like: Table | None = None,
        encoder: Any = None,
        task: str | None = None,
        drop: Sequence[str] = (),
        groups: str | None = None,
    ) -> None:
        if (label is None) == (like is None):
            raise ValueError("label and like: give the name of a column, or a Table to be read as")
        rows = read_table(source, None if like is None else like.columns)
        self.notes = list(rows.notes)
        self.columns: dict[str, Column] = rows.columns
        self.label: str = label if like is None else like.label  # type: ignore[assignment]
        self.group = groups if like is None else like.group
        frame = rows.frame
        if like is None:
            _check_names(frame, self.label, [*drop, *([groups] if groups else [])])
            self.columns = {name: each for name, each in rows.columns.items() if name not in drop}
            frame = frame[list(self.columns)]
        frame = self._labelled(frame, task, like)
        self.groups: Tensor | None = None
        if self.group is not None:
            codes = frame.pop(self.group).factorize()[0]
            self.groups = torch.from_numpy(codes.astype(np.int64))
        if like is None:
            frame = self._distinct(frame)
            self.encoder = encoder or TableEncoder()
            self.encoder.fit(frame)
        else:
            self.encoder = like.encoder
            frame = frame[list(like.frame)]
        self.frame = frame
        self._encode()

    # --- reading -----------------------------------------------------------------------------

    def _labelled(self, frame: pd.DataFrame, task: str | None, like: Table | None) -> pd.DataFrame:
        """Take the label out of ``frame``, and leave out rows without one if others have one."""
        wanted = frame.pop(self.label)
        known = wanted.notna().to_numpy()
        self.labelled = bool(known.any())
        if self.labelled and not known.all():
            self.notes.append(f"{int((~known).sum()):,} rows without a {self.label!r}: left out")
            frame, wanted = frame[known].reset_index(drop=True), wanted[known]
        if like is not None:
            self.task, self.classes, self.scale = like.task, like.classes, like.scale
            self.values = self._values(wanted)
            return frame
        self.task = _task(wanted, self.label, task)
        self.classes = ()
        self.scale = (0.0, 1.0)
        if self.task == "classes":
            found = wanted.value_counts()
            self.classes = tuple(sorted((_name(each) for each in found[found > 0].index), key=_key))
        else:
            numbers = wanted.to_numpy("float64")
            self.scale = (float(numbers.mean()), float(numbers.std()) or 1.0)
        self.values = self._values(wanted)
        return frame

    def _values(self, wanted: pd.Series[Any]) -> Tensor:
        if self.task == "regression":
            numbers = wanted.fillna(0.0).to_numpy("float32")
            return torch.from_numpy(numbers.copy())
        codes = {name: code for code, name in enumerate(self.classes)}
        names = [_name(each) for each in wanted.astype(object)]
        if new := sorted({name for name in names if name not in codes and name != "nan"}):
            raise ValueError(
                f"label {self.label!r} has classes that no training row has: {', '.join(new[:5])}:"
                " leave these rows out"
            )
        return torch.tensor([codes.get(name, 0) for name in names])

    def _distinct(self, frame: pd.DataFrame) -> pd.DataFrame:
        """``frame`` without empty columns, copies of the label, and columns that add up to it."""
        empty = [str(name) for name in frame if frame[name].isna().all()]
        if empty:
            self.notes.append(f"columns without a value, left out: {', '.join(empty)}")
        frame = frame.drop(columns=empty)
        given = _copies(frame, self._label_codes()) + self._summands(frame)
        if given:
            self.notes.append(
                f"columns that hold the label {self.label!r}, left out: {', '.join(given)}"
            )
        frame = frame.drop(columns=given)
        if frame.columns.empty:
            raise ValueError(f"no columns are left beside the label {self.label!r}: give others")
        return frame

    def _label_codes(self) -> np.ndarray[Any, Any]:
        return np.unique(self.values.numpy(), return_inverse=True)[1]

    def _summands(self, frame: pd.DataFrame) -> list[str]:
        """Columns whose sum is the label of a regression, to rounding."""
        if self.task != "regression":
            return []
        names = [str(name) for name in frame if frame[name].dtype.kind == "f"]
        names = [name for name in names if frame[name].notna().all() and frame[name].std() > 0]
        if not names:
            return []
        step = max(1, len(frame) // 2_000)
        some = frame[names].iloc[::step].to_numpy("float64")
        wanted = self.values[::step].double().numpy()
        inputs = np.column_stack([some, np.ones(len(some))])
        if len(some) < 2 * inputs.shape[1]:
            return []
        factors = np.linalg.lstsq(inputs, wanted, rcond=None)[0]
        found = [n for n, factor in zip(names, factors, strict=False) if abs(factor - 1) < 1e-3]
        total = frame[found].to_numpy("float64").sum(1)
        alike = np.allclose(total, self.values.double().numpy(), rtol=1e-5, atol=1e-6)
        return found if found and alike else []

    # --- rows as inputs ----------------------------------------------------------------------

    def _encode(self) -> None:
        """Store numbers, codes of words, and what stands for each word."""
        if not isinstance(self.encoder, TableEncoder):
            dense = self.encoder.transform(self.frame)
            dense = dense.toarray() if hasattr(dense, "toarray") else np.asarray(dense)
            self.numbers = torch.from_numpy(dense.astype(np.float32))
            self.codes, self.vectors = torch.empty(len(dense), 0, dtype=torch.int32), []
            return
        self.numbers = torch.from_numpy(self.encoder.numbers(self.frame))
        codes = []
        self.vectors = []
        for name in self.frame.select_dtypes("category"):
            column = self.frame[name].cat
            words = column.categories.tolist()
            codes.append(torch.from_numpy(column.codes.to_numpy("int32").copy()))
            self.vectors.append(torch.from_numpy(self.encoder.vectors(str(name), words)))
            used = [words[code] for code in np.unique(column.codes) if code >= 0]
            if new := self.encoder.unknown(str(name), used):
                more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
                self.notes.append(
                    f"column {name!r} has words that no training row has:"
                    f" {', '.join(new[:NAMED])}{more}"
                )
        empty = torch.empty(len(self.frame), 0, dtype=torch.int32)
        self.codes = torch.stack(codes, 1) if codes else empty

    def inputs(self, rows: Tensor) -> Tensor:
        """The inputs of ``rows``, int64 ``[n]``: float32 ``[n, inputs]``."""
        parts = [self.numbers[rows]]
        codes = self.codes[rows].long()
        parts += [vectors[codes[:, place]] for place, vectors in enumerate(self.vectors)]
        return torch.cat(parts, 1)

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.numbers.shape[1] + sum(vectors.shape[1] for vectors in self.vectors)

    @property
    def labels(self) -> Tensor | None:
        """Class labels, int64 ``[rows]``; ``None`` for a regression."""
        return self.values if self.task == "classes" else None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        place = range(len(self))[row]
        return self.inputs(torch.tensor([place]))[0], self.values[place]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        places = torch.as_tensor(rows)
        return list(zip(self.inputs(places), self.values[places], strict=True))

    def take(self, rows: Tensor) -> Self:
        """The selected ``rows``, int64 ``[n]``."""
        taken = copy.copy(self)
        taken.frame = self.frame.iloc[rows.numpy()].reset_index(drop=True)
        for name in ("values", "numbers", "codes"):
            setattr(taken, name, getattr(self, name)[rows])
        taken.groups = None if self.groups is None else self.groups[rows]
        return taken

    def __repr__(self) -> str:
        return f"Table({self.sentence})"

    @property
    def sentence(self) -> str:
        """What is predicted from how much."""
        kind = "regression" if self.task == "regression" else f"{len(self.classes)} classes"
        rows, columns = len(self), self.frame.shape[1]
        return f"{kind} of {self.label}: {rows:,} rows, {columns} columns"

    # --- a model to begin with ---------------------------------------------------------------

    def model(self) -> nn.Module:
        """A network of two hidden layers; that of a regression answers in the label's unit."""
        outputs = 1 if self.task == "regression" else len(self.classes)
        layers: list[nn.Module] = [
            nn.Linear(self.width, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, outputs),
        ]
        if self.task == "regression":
            layers.append(InUnits(*self.scale))
        return nn.Sequential(*layers)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Model, criterion and metric, as arguments of `astkit.compare`."""
        from astkit.trainers import Metric

        make: Callable[[], nn.Module] = self.model
        if self.task == "classes":
            return {"make_model": make}
        return {
            "make_model": make,
            "criterion": partial(scaled_error, scale=self.scale[1]),
            "metrics": Metric("RMSE", RootMeanSquare(), higher_is_better=False),
        }


class InUnits(nn.Module):
    """Standardised outputs ``[rows, 1]`` in the unit of the label, ``[rows]``."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: float, scale: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0] * self.scale + self.mean


def scaled_error(outputs: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
    """Squared error of each row in units of ``scale``, ``[rows]``."""
    return ((outputs.reshape(targets.shape) - targets) / scale).square()


class RootMeanSquare:
    """Root of the mean squared error, in the unit of the label."""

    def __init__(self) -> None:
        self.total, self.rows = torch.zeros((), dtype=torch.float64), 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add the errors of a batch."""
        error = (outputs.reshape(targets.shape) - targets).double()
        self.total = self.total.to(error.device) + error.square().sum()
        self.rows += len(targets)

    def compute(self) -> Tensor:
        """The root over all rows."""
        return (self.total / max(1, self.rows)).sqrt()


def _check_names(frame: pd.DataFrame, label: str, others: Sequence[str]) -> None:
    for name in (label, *others):
        if name not in frame:
            raise ValueError(
                f"there is no column {name!r}: choose one of {', '.join(map(str, frame))}"
            )


def _task(wanted: pd.Series[Any], label: str, task: str | None) -> str:
    """What a label is: "regression" or "classes"."""
    if task is not None and task not in TASKS:
        raise ValueError(f"task is {task!r}: give 'regression' or 'classes'")
    distinct = wanted.nunique()
    if distinct < 2:
        raise ValueError(f"label {label!r} has {distinct} different values: give another column")
    if wanted.dtype.kind == "M":
        raise ValueError(f"label {label!r} holds dates, which no model predicts: give numbers")
    words = wanted.dtype.kind != "f"
    if words and task == "regression":
        raise ValueError(f"task is 'regression', but label {label!r} holds words: give numbers")
    if task is None:
        few = distinct <= CLASSES and not words and bool((wanted % 1 == 0).all())
        task = "classes" if words or few else "regression"
    if task == "classes" and distinct > MANY:
        raise ValueError(
            f"label {label!r} has {distinct:,} different values, more than {MANY} classes: give"
            " another column, or numbers and task='regression'"
        )
    return task


def _name(value: Any) -> str:
    """A class as it is written: whole numbers without a decimal point."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def _key(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name


def _copies(frame: pd.DataFrame, label: np.ndarray[Any, Any]) -> list[str]:
    """Columns with one value for each value of the label, and another one for each other."""
    count = len(np.unique(label))
    found = []
    for name in frame if count < len(label) // 2 else ():
        codes = frame[name].factorize()[0]
        if codes.max() + 1 == count and (codes >= 0).all():
            pairs = np.unique(codes.astype(np.int64) * count + label)
            if len(pairs) == count:
                found.append(str(name))
    return found
