"""Columns of a table as numbers: standardised, one-hot, or what the letters of words say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FEW = 30
"""Most distinct words of a column that is encoded one-hot."""
RARE = 5
"""Words of fewer rows are "other"."""
WIDTH = 16
"""Numbers that stand for a word of a column of many."""
CLIP = 5.0
"""Standard deviations to which numbers are clipped."""
SAMPLE = 20_000
"""Distinct words of a column to which its numbers are fitted, at most: the most frequent ones."""
STEP = 100_000
"""Rows that are encoded at a time."""
DAY = 86_400e6

Array = np.ndarray[Any, np.dtype[np.float32]]
Wide = np.ndarray[Any, np.dtype[np.float64]]


class TableEncoder:
    """Encodes numbers, dates and words; fitted to training rows alone.

    - A number: standardised and clipped to `CLIP`; missing, it is the median, and a further column
      says so where training rows lack it.
    - A date: days since 1970, weekday, month and, where times differ, hour, as numbers.
    - One of up to `FEW` words: one-hot; rare and unknown words are "other".
    - One of more words: its share of the rows, and `WIDTH` numbers of its letters (TF-IDF of
      character n-grams, then a truncated SVD, of scikit-learn), which unknown words have too.

    Attributes:
        names: of the columns of `numbers`.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._fills: Wide = np.empty(0)
        self._means: Wide = np.empty(0)
        self._scales: Wide = np.empty(0)
        self._lacking: list[int] = []
        self._hours: set[str] = set()
        self._words: dict[str, _OneHot | _Letters] = {}

    def fit(self, frame: pd.DataFrame) -> Self:
        """Fit to the columns of ``frame``: float64, datetime64 and categories."""
        self._hours = {
            str(name)
            for name in frame.select_dtypes("datetime")
            if (frame[name].dt.hour.fillna(0) != 0).any()
        }
        self.names, self._lacking, moments = [], [], []
        for place, (part, values, leads) in enumerate(self._parts(frame)):
            gone = np.isnan(values)
            fill = 0.0 if gone.all() else float(np.median(values[~gone]))
            filled = np.where(gone, fill, values)
            moments.append((fill, filled.mean(), filled.std()))
            self.names.append(part)
            if leads and gone.any():
                self._lacking.append(place)
        self._fills, self._means, scales = np.array(moments, np.float64).reshape(-1, 3).T
        self._scales = np.where(scales > 1e-12 * np.abs(self._means), scales, 1.0)
        self.names += [f"{self.names[place]} missing" for place in self._lacking]
        self._words = {}
        for name in frame.select_dtypes("category"):
            counts = frame[name].value_counts()
            counts = counts[counts > 0]
            if len(counts) <= FEW:
                self._words[str(name)] = _OneHot(counts)
            else:
                self._words[str(name)] = _Letters(str(name), counts, len(frame))
        return self

    def _parts(self, frame: pd.DataFrame) -> Iterator[tuple[str, Wide, bool]]:
        """Names and values, with NaN, of numbers and of the parts of dates.

        The last item is false for parts that lack where another one does.
        """
        for each in frame:
            name, column = str(each), frame[each]
            if column.dtype.kind == "f":
                yield name, column.to_numpy("float64"), True
            elif column.dtype.kind == "M":
                moments = column.to_numpy("datetime64[us]")
                days = np.where(np.isnat(moments), np.nan, moments.astype("int64") / DAY)
                yield f"{name} day", days, True
                moment = {"weekday": column.dt.day_of_week, "month": column.dt.month}
                if name in self._hours:
                    moment["hour"] = column.dt.hour
                for part, values in moment.items():
                    yield f"{name} {part}", values.to_numpy("float64", na_value=np.nan), False

    def numbers(self, frame: pd.DataFrame, scaled: bool = True) -> Array:
        """Float32 ``[rows, len(names)]``.

        ``scaled``: for networks and linear models; otherwise, for trees, values as they are, with
        NaN for missing ones.
        """
        values = np.empty((len(frame), len(self.names)), np.float32)
        for start in range(0, len(frame), STEP):
            rows = slice(start, start + STEP)
            some = [column for _, column, _ in self._parts(frame.iloc[rows])]
            wide = np.stack(some, 1) if some else np.empty((len(values[rows]), 0))
            gone = np.isnan(wide)
            if scaled:
                filled = np.where(gone, self._fills, wide)
                wide = np.clip((filled - self._means) / self._scales, -CLIP, CLIP)
            values[rows, : wide.shape[1]] = wide
            values[rows, wide.shape[1] :] = gone[:, self._lacking]
        return values

    def vectors(self, name: str, words: Sequence[str]) -> Array:
        """What stands for ``words`` of a column, float32 ``[len(words) + 1, width]``.

        The last row stands for missing cells.
        """
        known = self._words[name].vectors(list(words))
        return np.concatenate([known, np.zeros((1, known.shape[1]), np.float32)])

    def unknown(self, name: str, words: Sequence[str]) -> list[str]:
        """Those of ``words`` that no training row has."""
        return [word for word in words if word not in self._words[name].known]

    def by_letters(self, name: str) -> bool:
        """Whether words of a column, also unknown ones, are read by their letters."""
        return isinstance(self._words[name], _Letters)


class _OneHot:
    """A column for each word that is not rare, and one for all others."""

    def __init__(self, counts: pd.Series[int]) -> None:
        self.known = set(counts.index)
        self.columns = {word: place for place, word in enumerate(counts.index[counts >= RARE])}

    def vectors(self, words: Sequence[str]) -> Array:
        places = [self.columns.get(word, len(self.columns)) for word in words]
        eye: Array = np.eye(len(self.columns) + 1, dtype=np.float32)
        return eye[places]


class _Letters:
    """The logarithm of a word's share of the rows, and what its letters say, standardised."""

    def __init__(self, name: str, counts: pd.Series[int], rows: int) -> None:
        try:
            from sklearn.decomposition import TruncatedSVD
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.pipeline import make_pipeline
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"column {name!r} has {len(counts):,} different words, which scikit-learn"
                " turns into numbers: install scikit-learn, or leave the column out"
            ) from error
        self.known = {word: count / rows for word, count in counts.items()}
        self.least = 1 / rows
        words = counts.index[:SAMPLE].tolist()
        letters = TfidfVectorizer(
            analyzer="char_wb", ngram_range=(1, 3), max_features=4096, dtype=np.float32
        )
        found = letters.fit_transform(words).shape[1]
        width = min(WIDTH, found - 1, len(words) - 1)
        svd = TruncatedSVD(width, random_state=0) if width > 0 else "passthrough"
        self.letters = make_pipeline(letters, svd).fit(words)
        values = self._values(words)
        weights = counts.to_numpy()[: len(words)]
        self.mean = np.average(values, 0, weights)
        deviation = np.sqrt(np.average((values - self.mean) ** 2, 0, weights))
        self.scale = np.where(deviation > 1e-6, deviation, 1.0)

    def vectors(self, words: Sequence[str]) -> Array:
        made: Array = np.empty((len(words), len(self.mean)), np.float32)
        for start in range(0, len(words), STEP):
            rows = slice(start, start + STEP)
            scaled = (self._values(words[rows]) - self.mean) / self.scale
            made[rows] = np.clip(scaled, -CLIP, CLIP)
        return made

    def _values(self, words: Sequence[str]) -> Wide:
        shares = [np.log(self.known.get(word, self.least)) for word in words]
        letters = self.letters.transform(list(words))
        dense = letters.toarray() if hasattr(letters, "toarray") else letters
        return np.column_stack([shares, dense])
