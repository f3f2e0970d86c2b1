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

from astkit.datasets.table_cells import Column
from astkit.datasets.table_copies import columns_with_label
from astkit.datasets.table_encoder import TableEncoder
from astkit.datasets.table_identifiers import counters, identifiers, left_out
from astkit.datasets.table_label import Label, without
from astkit.datasets.table_reader import TableRows, read_table
from astkit.datasets.table_sources import listed

if TYPE_CHECKING:
    import pandas as pd

NAMED = 3
"""Words of a column, and classes, that a note names."""
WIDTH = 64
"""Hidden units of the model to begin with."""


class Table(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a table, ``(inputs, label)``: float32 ``[inputs]`` and a number or a class.

    Numbers and codes of words are stored; words become columns when rows are read. ::

        from astkit.datasets import load

        bikes = load("bikes")
        train = Table(bikes.train, label="bikers")  # or the path of a CSV or parquet file
        recent = Table(bikes.recent, like=train)
        Trainer(train.model(), train, recent, epochs=1, **train.objective).run()

    Args:
        source: path of a CSV or parquet file, a DataFrame, or `TableRows`; see `read_table`.
        label: name of the column to be predicted.
        like: another `Table`, whose label, columns and encoding hold; the label may be missing.
        encoder: a scikit-learn transformer of the typed frame in place of `TableEncoder`; a copy
            is fitted.
        task: "regression" or "classes"; by default words and up to 20 distinct whole numbers are
            classes.
        drop: columns to leave out.
        groups: column that tells which rows depend on each other; it is no input.
        keep: columns that are inputs although they seem to be identifiers: words without spaces
            that are nearly all different and of one form, such as ``u0001``.
        encoding: of a CSV that is no UTF-8, such as "cp1251".
        dtypes: how columns are read, as ``{"day": "%d/%m/%Y", "zip": "words"}``, see `read_table`.

    Attributes:
        frame: the inputs, typed.
        label: a `Label`: name, task, classes; ``labelled``: whether any row has one.
        values: labels, float32 ``[rows]`` in the label's unit, or classes, int64 ``[rows]``; zeros
            without a label.
        groups: name of the group of each row, or ``None``.
        rows: int64 ``[rows]``, the number of each row in the source.
        notes: what was left out, as sentences.
        date, in_order: the column that orders the rows in time, and whether they lie in that order;
            ``None`` where it is not said.

    Rows without a label are left out where others have one, and so are columns that hold the label
    and columns without a value. Raises ``ValueError`` for a table that cannot be read, an unknown
    column, and a label of one value, of dates, or of more than 100 words.
    """

    columns: Mapping[str, Column]
    reading: Mapping[str, Any]
    label: Label
    group: str | None
    date: str | None = None
    in_order: bool | None = None

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
        keep: Sequence[str] = (),
        encoding: str | None = None,
        dtypes: Mapping[Any, Any] | None = None,
    ) -> None:
        if (label is None) == (like is None):
            raise ValueError("label and like: give the name of a column, or a Table to be read as")
        if like is not None and not isinstance(like, Table):
            raise ValueError(f"like is a {type(like).__name__}: give a Table to be read as")
        if like is not None and dtypes:
            raise ValueError(f"dtypes is {dtypes!r} beside like, whose readings hold: leave it out")
        label, drop = label if label is None else str(label), list(map(str, drop))
        keep = list(map(str, keep))
        groups = groups if groups is None else str(groups)
        rows = source
        if not isinstance(source, TableRows):
            needed = [each for each in (label, groups, *keep) if each is not None]
            columns = None if like is None else like.columns
            reading: dict[str, Any] = {"drop": drop, "encoding": encoding, "dtypes": dtypes}
            if like is not None:
                reading = {**like.reading, "encoding": encoding or like.reading["encoding"]}
            rows = read_table(source, columns, needed=needed, **reading)
        self.notes = list(rows.notes)
        if like is None and rows is not source:
            apart = [str(label), str(groups), *keep, *drop]
            drop += (named := identifiers(rows.frame, apart))
            self.notes += left_out(named)
            if numbers := counters(rows, apart):
                held = f"columns that number the rows are inputs: {', '.join(numbers)}"
                self.notes.append(f"{held}; drop= leaves them out")
        self.group = groups if like is None else like.group
        frame = rows.frame.drop(columns=[each for each in drop if each in rows.frame])
        self.label = like.label if like is not None else Label.of(frame[label], str(label), task)
        frame = self._labelled(frame, rows.numbers)
        self.groups = None
        if self.group is not None:
            if self.group in rows.lacking:
                raise ValueError(f"there is no column {self.group!r} of groups: add it")
            self.groups = named_groups(frame.pop(self.group))
        if like is None:
            self.frame = self._distinct(frame)
            kept = (self.label.name, self.group, *self.frame)
            self.columns = {name: each for name, each in rows.columns.items() if name in kept}
            further = [*drop, *(name for name in rows.columns if name not in kept)]
            self.reading = {"drop": further, "encoding": encoding}
            self.encoder = TableEncoder() if encoder is None else copy.deepcopy(encoder)
        else:
            self.frame = frame[list(like.frame)]
            if absent := [each for each in rows.lacking if each in like.frame]:
                self.notes.append(f"columns that are absent count as missing: {', '.join(absent)}")
            self.columns, self.reading, self.encoder = like.columns, like.reading, like.encoder
        self._encode(fit=like is None)

    # --- reading -----------------------------------------------------------------------------

    def _labelled(self, frame: pd.DataFrame, numbers: np.ndarray[Any, Any]) -> pd.DataFrame:
        """Take the label out of ``frame``, and leave out rows without one if others have one."""
        name = self.label.name
        wanted = frame[name]
        frame = frame.drop(columns=name)
        known = self.label.known(wanted)
        self.labelled = bool(known.any())
        self.rows = torch.from_numpy(numbers)
        missing = wanted.isna().to_numpy()
        if self.labelled and missing.any():
            self.notes.append(without(name, int(missing.sum())))
        if (new := wanted[~known & ~missing]).size:
            names = listed([repr(str(each)) for each in new.unique()], NAMED)
            self.notes.append(
                f"classes that no training row has, {'left out with' if self.labelled else 'in'}"
                f" {len(new):,} of {len(wanted):,} rows: {names}"
            )
        if self.labelled and not known.all():
            self.rows = self.rows[np.flatnonzero(known)]
            frame, wanted = frame[known].reset_index(drop=True), wanted[known]
        self.values = self.label.values(wanted)
        return frame

    def _distinct(self, frame: pd.DataFrame) -> pd.DataFrame:
        """``frame`` without empty columns, copies of the label, and columns that add up to it."""
        empty = [str(name) for name in frame if frame[name].isna().all()]
        if empty:
            self.notes.append(f"columns without a value, left out: {', '.join(empty)}")
        frame = frame.drop(columns=empty)
        given = columns_with_label(frame, self.values.numpy(), self.task == "regression")
        if given:
            held = f"columns that hold the label {self.label.name!r}"
            self.notes.append(f"{held}, left out: {', '.join(given)}")
        frame = frame.drop(columns=given)
        if frame.columns.empty:
            none = f"no columns are left beside the label {self.label.name!r}: give others"
            raise ValueError("\n- ".join([none, *self.notes]))
        return frame

    # --- rows as inputs ----------------------------------------------------------------------

    def _encode(self, fit: bool) -> None:
        """Store numbers, codes of words, and what stands for each word."""
        self.vectors: list[Tensor] = []
        self.codes = torch.empty(len(self.frame), 0, dtype=torch.int32)
        if not isinstance(self.encoder, TableEncoder):
            made = self.encoder
            encoded = (
                made.fit_transform(self.frame, self.values) if fit else made.transform(self.frame)
            )
            dense = encoded.toarray() if hasattr(encoded, "toarray") else np.asarray(encoded)
            self.numbers = torch.from_numpy(dense.astype(np.float32))
            if not bool(self.numbers.isfinite().all()):
                raise ValueError("encoder gives missing or infinite numbers: give a SimpleImputer")
            return
        if fit:
            self.encoder.fit(self.frame)
        self.numbers = torch.from_numpy(self.encoder.numbers(self.frame))
        names = list(map(str, self.frame.select_dtypes("category")))
        self.codes = torch.empty(len(self.frame), len(names), dtype=torch.int32)
        spelt = list[str]()
        for place, name in enumerate(names):
            column = self.frame[name].cat
            words = column.categories.tolist()
            self.codes[:, place] = torch.from_numpy(column.codes.to_numpy("int32").copy())
            self.vectors.append(torch.from_numpy(self.encoder.vectors(name, words)))
            if not fit:
                used = np.unique(column.codes)
                new = self.encoder.unknown(name, [words[code] for code in used if code >= 0])
                if new and self.encoder.by_letters(name):
                    spelt.append(f"{len(new):,} of {name!r}")
                elif new:
                    self.notes.append(
                        f"column {name!r} has words that no training row has, read as"
                        f' "other": {listed([*map(repr, new)], NAMED)}'
                    )
        if spelt:
            self.notes.append(
                f"words that no training row has, read by their letters: {', '.join(spelt)}"
            )

    def inputs(self, rows: Any) -> Tensor:
        """The inputs of a row, float32 ``[inputs]``, or of several ``rows``, ``[n, inputs]``."""
        parts = [self.numbers[rows]]
        codes = self.codes[rows].long()
        # the last vector is that of missing cells, whose code is -1
        parts += [vectors[codes[..., place]] for place, vectors in enumerate(self.vectors)]
        return torch.cat(parts, -1)

    def matrix(self, scaled: bool = True) -> np.ndarray[Any, Any]:
        """The inputs of all rows, float32 ``[rows, inputs]``.

        Unless ``scaled``, for trees, numbers are as they are and NaN where they are missing; those
        of an encoder of your own are always as it gives them.
        """
        numbers = self.numbers.numpy()
        if not scaled and isinstance(self.encoder, TableEncoder):
            numbers = self.encoder.numbers(self.frame, scaled=False)
        return np.concatenate([numbers, *map(self.words, self._worded)], 1)

    def words(self, name: str) -> np.ndarray[Any, Any]:
        """The inputs that a column of words becomes, float32 ``[rows, n]``."""
        if name not in self._worded:  # of an encoder of your own
            return self.frame[name].cat.codes.to_numpy("float32")[:, None]
        place = self._worded.index(name)
        return self.vectors[place].numpy()[self.codes[:, place].numpy()]

    @property
    def names(self) -> list[str]:
        """The column behind each input, followed by what it says of it, such as "day hour"."""
        if not isinstance(self.encoder, TableEncoder):
            return [f"input {place}" for place in range(self.width)]
        words = zip(self._worded, self.vectors, strict=True)
        return [*self.encoder.names, *(name for name, each in words for _ in range(each.shape[1]))]

    @property
    def _worded(self) -> list[str]:
        """Columns of words that the table's own encoder has made inputs of."""
        return list(map(str, self.frame.select_dtypes("category")))[: len(self.vectors)]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.numbers.shape[1] + sum(vectors.shape[1] for vectors in self.vectors)

    @property
    def task(self) -> str:
        """ "regression" or "classes"."""
        return self.label.task

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; ``None`` for a regression."""
        return self.label.classes or None

    def cells(self, row: int) -> dict[str, float | str | None]:
        """What a row holds, by column; ``None`` for missing cells."""
        import pandas as pd

        cells = self.frame.iloc[row].items()
        known = {str(name): None if pd.isna(cell) else cell for name, cell in cells}
        return {
            n: each if isinstance(each, float | None) else str(each) for n, each in known.items()
        }

    @property
    def labels(self) -> Tensor | None:
        """Classes, int64 ``[rows]``; ``None`` for a regression and without a label."""
        return self.values if self.task == "classes" and self.labelled else None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: Any) -> tuple[Tensor, Tensor]:
        return self.inputs(row), self.values[row]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*self[torch.as_tensor(rows)], strict=True))

    def hashes(self) -> np.ndarray[Any, Any]:
        """A hash of inputs and label of each row, ``[rows]``, the same in tables read alike."""
        import pandas as pd

        label = pd.Series(self.values.numpy(), name=self.label.name)
        columns = pd.concat([self.frame, label], axis=1)
        return pd.util.hash_pandas_object(columns, index=False).to_numpy().view(np.int64)

    def take(self, rows: Tensor) -> Self:
        """The selected ``rows``, int64 ``[n]``."""
        taken = copy.copy(self)
        vars(taken).pop("old_rows", None)  # of joined data
        taken.frame = self.frame.iloc[rows.numpy()].reset_index(drop=True)
        for name in ("values", "numbers", "codes", "rows"):
            setattr(taken, name, getattr(self, name)[rows])
        taken.groups = None if self.groups is None else self.groups[rows.numpy()]
        return taken

    def encoded(self, rows: Tensor, like: Self | None = None) -> Self:
        """The selected ``rows``, int64 ``[n]``, encoded anew by what they hold, or ``like`` others.

        Nothing of further rows, such as their words and medians, is in the inputs.
        """
        taken = self.take(rows)
        taken.notes = []
        taken.encoder = copy.deepcopy(self.encoder) if like is None else like.encoder
        taken._encode(fit=like is None)
        return taken

    def extended(self, other: Any) -> Self:
        """These rows and those of ``other``, a `Table` that is ``like`` this one.

        Raises ``ValueError`` for another one, and for rows without labels.
        """
        alike = isinstance(other, Table) and other.encoder is self.encoder
        if not alike or list(other.frame) != list(self.frame):
            unlike = f"target is {other!r:.80}, read in another way than the training table"
            raise ValueError(f"{unlike}: read it as Table(source, like=train)")
        if not other.labelled:
            raise ValueError(
                f"target has no labels {self.label.name!r} to be trained on: give some"
            )
        both = copy.copy(self)
        both.frame = _stacked(self.frame, other.frame)
        both.values = torch.cat([self.values, other.values])
        both.rows = torch.cat([self.rows, other.rows])
        if self.groups is not None:
            both.groups = np.concatenate([self.groups, other.groups])
        both._encode(fit=False)
        both.notes = [*self.notes, *(f"target: {note}" for note in other.notes)]
        return both

    def __repr__(self) -> str:
        return f"Table({self.label}: {len(self):,} rows, {self.frame.shape[1]} columns)"

    # --- a model to begin with ---------------------------------------------------------------

    def model(self) -> nn.Module:
        """A network of two hidden layers; that of a regression answers in the label's unit."""
        regression = self.task == "regression"
        outputs = 1 if regression else len(self.label.classes)
        layers = nn.Sequential(
            nn.Linear(self.width, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, outputs),
        )
        return nn.Sequential(layers, InUnits(self.label)) if regression else layers

    def in_units(self, make_model: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        """Makes models of a regression whose outputs, in standard deviations, get its unit."""
        return partial(_in_units, make_model, self.label)

    @property
    def objective(self) -> Mapping[str, Any]:
        """Criterion and metrics of the task, as arguments of `Trainer` and `compare`.

        Of a regression the squared error in units of the label's variance, and the RMSE in the
        label's unit; of classes their defaults, cross-entropy and accuracy.
        """
        if self.task == "classes":
            return {}
        return {
            "criterion": partial(scaled_error, deviation=self.label.deviation),
            "metrics": {"RMSE": RootMeanSquare()},
        }


def _stacked(first: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The rows of both; words of a column have one list, that of ``first`` with new ones added."""
    import pandas as pd

    columns = {}
    for name in first:
        parts = [first[name], other[name]]
        if isinstance(first[name].dtype, pd.CategoricalDtype):
            known = pd.api.types.union_categoricals(parts)
            columns[name] = pd.Series(known)
        else:
            columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


def named_groups(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """Names of groups, of which a missing one is a group of its own."""
    codes, names = column.factorize()
    missing = np.flatnonzero(codes < 0)
    every = np.array([*map(str, names), *(f"row {row + 1}" for row in missing)], object)
    codes[missing] = len(names) + np.arange(len(missing))
    return every[codes]


class InUnits(nn.Module):
    """Turns standard deviations from the mean, ``[rows, 1]``, into the label's unit, ``[rows]``."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, label: Label) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(label.mean))
        self.register_buffer("deviation", torch.tensor(label.deviation))

    def forward(self, outputs: Tensor) -> Tensor:
        if outputs.numel() != len(outputs):
            given = f"the model gives {list(outputs.shape)} for a regression of one number"
            raise ValueError(f"{given}: return [rows, 1] or [rows]")
        return outputs.reshape(-1) * self.deviation + self.mean


def _in_units(make_model: Callable[[], nn.Module], label: Label) -> nn.Module:
    return nn.Sequential(make_model(), InUnits(label))


def scaled_error(outputs: Tensor, targets: Tensor, deviation: float = 1.0) -> Tensor:
    """Squared error of each row in units of ``deviation``, ``[rows]``."""
    return ((outputs.reshape(targets.shape) - targets) / deviation).square()


class RootMeanSquare:
    """Root of the mean squared error, in the unit of the label."""

    higher_is_better = False

    def __init__(self) -> None:
        self.sums: list[Tensor] = []
        self.rows = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add the errors of a batch."""
        self.sums.append((outputs.reshape(targets.shape) - targets).square().sum())
        self.rows += len(targets)

    def compute(self) -> Tensor:
        """The root over all rows."""
        return (torch.stack(self.sums).cpu().double().sum() / self.rows).sqrt()
