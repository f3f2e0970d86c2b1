"""Cells of a table as they are written: which are numbers, dates or words, and their values."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NUMBERS = 0.95
"""Share of the cells of a column, those missing aside, from which on the column holds numbers."""
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "-", "--", "?", "."))
"""What stands for a missing number, in any case. In a column of words only an empty cell does."""
DIGITS = 15
"""Digits that a float64 tells apart: whole numbers of more digits are read as words."""

Wide = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[np.object_]]

_UNIT = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<before>[^\W\d_]{3}(?=\s)|[$€£¥₹]?)\s*(?P<inner>[-+]?)"
    r"(?P<whole>\d{1,3}(?P<group>[.,'\u00a0\u202f ])\d{3}(?:(?P=group)\d{3})*|\d*)"
    r"(?P<rest>[.,]\d*)?(?P<power>[eE][-+]?\d+)?"
    r"\s*(?P<after>[%‰°$€£¥₹]?[^\W\d_]{0,8}[²³]?(/[^\W\d_]{1,4}[²³]?)?)"
)


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read.

    Attributes:
        kind: "number", "date" or "words".
        comma: whether a comma is the decimal sign of its numbers, otherwise of thousands.
        unit: what stands before or after each number, such as "$" or "kg".
        format: of its dates, as of ``strptime``.
    """

    kind: str
    comma: bool = False
    unit: str = ""
    format: str = ""


def convert(cells: Any, column: Column, known: dict[str, int]) -> tuple[Any, list[tuple[int, str]]]:
    """Values of ``cells``, and the place and text of those that are not of the column's kind.

    Of words the values are their numbers, -1 for empty cells; new ones are added to ``known``.
    """
    if is_typed(cells):
        if typed_as(cells) == column.kind:
            return cells, []
        cells = _as_text(cells)
    if column.kind == "number" and not column.comma:
        values = _plain(cells)
        if values is not None:
            return values, []
    codes, words = _distinct(cells)
    if column.kind == "words":
        numbers = [known.setdefault(word, len(known)) if word else -1 for word in words.tolist()]
        return np.array(numbers, np.int32)[codes], []
    if column.kind == "number":
        values = _numbers(words, column.comma, column.unit)
        gone = np.isnan(values)
    else:
        values = _dates(words, column.format)
        gone = np.isnat(values)
    odd = np.flatnonzero(gone & ~_missing(words))
    places = [] if not len(odd) else np.flatnonzero(np.isin(codes, odd)).tolist()
    return values[codes], [(place, words[codes[place]]) for place in places]


def is_typed(cells: Any) -> bool:
    """Whether ``cells`` are numbers or dates of a DataFrame, rather than texts."""
    return isinstance(cells, np.ndarray) and cells.dtype.kind in "fM"


def typed_as(values: np.ndarray[Any, Any]) -> str:
    """The kind of a column of typed values."""
    return "number" if values.dtype.kind == "f" else "date"


def _as_text(values: np.ndarray[Any, Any]) -> Words:
    """Numbers and dates as they would be written in a file."""
    import pandas as pd

    codes, distinct = pd.factorize(values)
    if values.dtype.kind == "f":
        texts = [str(int(each)) if each.is_integer() else repr(each) for each in distinct.tolist()]
    else:
        texts = [str(pd.Timestamp(each)).removesuffix(" 00:00:00") for each in distinct]
    return np.array([*texts, ""], object)[codes]


def _distinct(cells: Any) -> tuple[np.ndarray[Any, Any], Words]:
    """The number of each cell, and the text of each number, without spaces around it."""
    import pandas as pd

    codes, words = pd.factorize(np.asarray(cells, object))
    return codes, np.array([word.strip() for word in words], object)


def _missing(words: Words) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([word.lower() in MISSING for word in words], bool)


def _plain(cells: Any) -> Wide | None:
    """Values of ``cells`` if all are finite numbers without units and too many digits."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    usual = bool((np.abs(values) < 10.0**DIGITS).all())  # not for NaN
    return values if usual and "_" not in "".join(cells) else None


def _numbers(words: Words, comma: bool, unit: str = "") -> Wide:
    """Numbers that are written in ``words``; NaN for others."""
    values = _points(words)
    for place in np.flatnonzero(np.isnan(values)).tolist():
        parsed = _parse(words[place], comma)
        if parsed is not None and parsed[1] == unit:
            values[place] = parsed[0]
    if comma:  # a point was taken for the decimal sign
        for place in np.flatnonzero(["." in word for word in words]).tolist():
            parsed = _parse(words[place], comma)
            values[place] = np.nan if parsed is None else parsed[0]
    return values


def _points(words: Words) -> Wide:
    """Numbers with a decimal point, also infinite ones; NaN for other words."""
    import pandas as pd

    numbers = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
    return numbers.to_numpy("float64", copy=True)


def _parse(word: str, comma: bool) -> tuple[float, str] | None:
    """The number in a cell and its unit, or ``None``."""
    found = _UNIT.fullmatch(word)
    if found is None or (found["sign"] and found["inner"]):
        return None
    if found["before"] and found["after"]:
        return None
    group, whole, rest = found["group"], found["whole"], found["rest"] or ""
    decimal, decimals = "," if comma else ".", rest[1:]
    if group == decimal and not rest and whole.count(group) == 1:  # as 1.234, without thousands
        whole, _, decimals = whole.partition(group)
    elif group == decimal or rest[:1] not in ("", decimal) or (group and whole.startswith("0")):
        return None
    digits = re.sub(r"\D", "", whole)
    if not digits and not decimals:
        return None
    number = float(f"{digits or '0'}.{decimals or '0'}{found['power'] or ''}")
    sign = -1.0 if "-" in (found["sign"], found["inner"]) else 1.0
    return sign * number, found["before"] or found["after"]


def is_number(word: str) -> bool:
    """Whether a word is a number with a decimal point."""
    return bool(np.isfinite(_numbers(np.array([word], object), False))[0])


def _dates(words: Words, form: str) -> np.ndarray[Any, Any]:
    """Dates that are written in ``words`` in the format ``form``; NaT for others."""
    import pandas as pd

    dates = pd.to_datetime(pd.Series(words, dtype=str), format=form, errors="coerce", utc=True)
    return dates.dt.tz_localize(None).to_numpy("datetime64[ns]")


def _formats(words: Sequence[str]) -> list[str]:
    """Formats in which one of ``words`` may be a date, the month before the day first."""
    from pandas.tseries.api import guess_datetime_format

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of words that fit one order of day and month only
        for first in (False, True):
            guesses = [guess_datetime_format(word, dayfirst=first) for word in words]
            found += [guess for guess in guesses if guess is not None]
    return [form for form, _ in Counter(found).most_common(4)]


class Scan:
    """What the cells of a column may be, from one look at each."""

    def __init__(self, comma: bool, nameless: bool, like: Column | None = None) -> None:
        self.comma = comma  # whether the file's separator suggests decimal commas
        self.like = like  # how the column was read in a table before
        self.rows = self.cells = 0
        self.plain = self.points = 0  # numbers without a unit; those that a comma would forbid
        self.written: Counter[tuple[str, bool]] = Counter()  # others, by unit and decimal comma
        self.dates: Counter[str] = Counter()
        self.formats: list[str] | None = None
        self.typed: Column | None = None
        self.begin: int | None = 0 if nameless else None  # of cells that count the rows

    def add(self, cells: Any) -> None:
        """Look at the ``cells`` of the next rows."""
        self._count(cells)
        self.rows += len(cells)
        if is_typed(cells):
            self.typed = Column(typed_as(cells))
            return
        commas = self.comma or (self.like is not None and self.like.comma)
        if not commas and _plain(cells) is not None:
            self.cells += len(cells)
            self.plain += len(cells)
            return
        codes, words = _distinct(cells)
        counts = np.bincount(codes, minlength=len(words))
        missing = _missing(words)
        self.cells += int(counts[~missing].sum())
        long = np.array([len(word) > DIGITS and word.isdecimal() for word in words], bool)
        plain = ~np.isnan(_points(words)) & ~missing & ~long
        self.plain += int(counts[plain].sum())
        others = np.flatnonzero(~plain & ~missing & ~long)
        for place in others.tolist():
            for comma in (False, True):
                parsed = _parse(words[place], comma)
                if parsed is not None:
                    self.written[parsed[1], comma] += int(counts[place])
        if commas or any(comma for _, comma in self.written):
            for place in np.flatnonzero(plain).tolist():
                if "." in words[place] and _parse(words[place], True) is None:
                    self.points += int(counts[place])
        self._add_dates(words[others], counts[others])

    def _count(self, cells: Any) -> None:
        """Look whether the cells go on counting the rows."""
        if self.begin is None:
            return
        if not self.rows:
            self.begin = int(str(cells[0]) in ("1", "1.0"))
        start = self.begin + self.rows
        numbers = range(start, start + len(cells))
        if is_typed(cells):
            alike = bool(np.array_equal(cells, np.array(numbers, float)))
        else:
            alike = list(cells) == list(map(str, numbers))
        self.begin = self.begin if alike else None

    def _add_dates(self, words: Words, counts: np.ndarray[Any, Any]) -> None:
        if self.formats is None and len(words):
            self.formats = _formats(words[:50].tolist())
            if self.like is not None and self.like.kind == "date":
                self.formats = list(dict.fromkeys([self.like.format, *self.formats]))
        for form in self.formats or ():
            self.dates[form] += int(counts[~np.isnat(_dates(words, form))].sum())

    def decide(self) -> Column:
        """How the column is read.

        What was a number or date before is one, maybe written otherwise.
        """
        like, own = self.like, self._own()
        if like is None or own == like:
            return own
        if own.kind != like.kind or own.unit != like.unit or self._cells_of(like) >= self._least:
            return like
        return own

    def _own(self) -> Column:
        if self.typed is not None:
            return self.typed
        readings = [Column("number")]
        readings += [Column("number", comma, unit) for unit, comma in self.written]
        # of readings that explain as many cells, the decimal sign that goes with the separator
        best = max(readings, key=lambda each: (self._cells_of(each), each.comma == self.comma))
        if self._cells_of(best) >= self._least:
            return best
        if self.dates and self.cells:
            form, count = self.dates.most_common(1)[0]
            if count >= self._least:
                return Column("date", format=form)
        return Column("words")

    @property
    def _least(self) -> float:
        """Cells that a reading has to explain."""
        return NUMBERS * self.cells

    def _cells_of(self, column: Column) -> int:
        """Cells that are numbers or dates as ``column`` writes them."""
        if column.kind == "date":
            return self.dates[column.format]
        plain = self.plain - (self.points if column.comma else 0)
        return self.written[column.unit, column.comma] + plain

    def counts_rows(self) -> bool:
        """Whether the cells are the numbers of the rows, from 0 or 1."""
        return self.begin is not None and self.rows > 1
