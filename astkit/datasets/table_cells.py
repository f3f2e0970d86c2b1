"""Columns of a table: which hold numbers, dates or words, and the values of their cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from string import ascii_letters
from typing import Any

import numpy as np

from astkit.datasets.table_readers import (
    DIGITS,
    SHARES,
    Words,
    about,
    date_formats,
    dates,
    is_missing,
    number,
    numbers,
)

NUMBERS = 0.95
"""Share of the cells of a column, those missing aside, from which on the column holds numbers."""
MOSTLY = 0.5
"""Share from which on a column that is left as words gets a note."""
SPELLINGS, GROUPED = 20, 8
"""Spellings of other cells in such a column, and different cells that show a sign of thousands."""
DIFFERENT = 50_000
"""Different words of a column that are kept; of one with more, those of a sample of its cells."""
ASKED: Mapping[Any, str] = {
    **dict.fromkeys(("words", "category", "str", str), "words"),
    **dict.fromkeys(("number", "float", float, int), "number"),
}
"""Kinds of columns by their names in ``dtypes``."""
NO_END = np.datetime64("2262-01-01", "us")
"""Dates from here on say that there is no end, and are missing."""
EMPTY: Mapping[str, Any] = {
    "number": np.nan,
    "date": np.datetime64("NaT", "us"),
    "words": np.int32(-1),
}
"""What stands for an empty cell, by the kind of the column."""
TYPED = {"f": "number", "M": "date"}
"""Kinds of columns by those of numpy."""
EIGHT = "%Y%m%d"
FORMS = 200
"""Forms of words of which the first is in the sample of a column, at most."""
END = "dates from 2262 on are read as no end, a missing date"
OTHERWISE = (
    "the table before was read in another way, by a guess that these cells disprove, and may be"
    " wrong: read it with dtypes="
)

_PLAIN = re.compile(r"[-+]?[\d.]+")
_FORM = str.maketrans(dict.fromkeys("123456789", "0") | dict.fromkeys(ascii_letters, "a"))
_DIGITS, _LETTERS = re.compile(r"\d+([.,' ]\d+)*"), re.compile(r"[^\W\d_]+")

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read.

    Attributes:
        kind: "number", "date" or "words".
        comma: whether a comma is the decimal sign of its numbers, otherwise of thousands.
        unit: what stands before or after each number, such as "$" or "kg".
        format: of its dates, as of ``strptime``.
        scale: of a suffix, such as 1,000 of K, that all numbers have, which is a unit; otherwise 1,
            and each number is multiplied by its own.
        factor: by which numbers with the unit are multiplied, such as 0.01 beside plain ones.
        negative: whether numbers in brackets are negative; not where all have brackets.
        guess: whether cells could have been read otherwise, as days and months at a tie.
        loose: whether further tables may hold anything: no cell, or a person, said how it is read.
    """

    kind: str
    comma: bool = False
    unit: str = ""
    format: str = ""
    scale: float = 1.0
    factor: float = 1.0
    negative: bool = True
    guess: bool = False
    loose: bool = False

    @property
    def has_unit(self) -> bool:
        """Whether something stands before or after its numbers."""
        return bool(self.unit) or self.scale != 1

    def reads(self, found: Any) -> Mask:
        """Which of the numbers `found`, see `numbers`, are written as those of the column."""
        plain = (found["unit"] == "") & (found["scale"] == 1)
        # "7" is read beside "12 kg", "14B" is not beside "7A"
        alike: Mask = plain | (found["unit"] == self.unit)
        alike &= (self.scale == 1) | (found["scale"] == self.scale)
        return alike & ~np.isnan(found["value"])

    def is_missing(self, word: str) -> bool:
        """Whether a word stands for a missing number or date."""
        return is_missing(word) or (self.format == EIGHT and not word.strip("0"))

    def values(self, words: Words) -> Any:
        """What is written in ``words``: numbers, or else dates; NaN or NaT for others."""
        if self.kind == "date":
            return dates(words, self.format)
        found = numbers(words, self.comma)
        values = found["value"] * found["scale"] / self.scale
        values[found["unit"] != ""] *= self.factor
        values[found["brackets"]] *= -1 if self.negative else 1
        return np.where(self.reads(found), values, np.nan)


def asked(name: str, kind: Any) -> Column:
    """How somebody wants a column to be read: an entry of ``dtypes``.

    Raises ``ValueError`` for what is no kind, no format of dates and no number.
    """
    if isinstance(kind, str | type) and kind in ASKED:
        return Column(ASKED[kind], loose=True)
    text = kind if isinstance(kind, str) else ""
    read = {each for comma in (False, True) if (each := number(text, comma)) is not None}
    if len(read) == 1:
        return Column("number", format=text, loose=True)
    with suppress(ValueError):
        datetime.strptime(datetime(2024, 1, 31).strftime(text), text)
        if "%" in text and not read:
            return Column("date", format=text, loose=True)
    raise ValueError(
        f"dtypes[{name!r}] is {kind!r}: give a format of dates such as '%d/%m/%Y', a number as it"
        " is written, such as '1.234,5', 'number', 'words' or 'category'"
    )


class Cells:
    """The values of a column, filled in a chunk at a time.

    Attributes:
        values: of all rows; of words their numbers in ``words``, -1 for empty cells.
        strays, ends: places and texts of cells that are not of the kind, and of dates that say
            there is no end; both count as missing.
    """

    def __init__(self, column: Column, rows: int) -> None:
        self.column = column
        self.values: Any = np.full(rows, EMPTY[column.kind])
        self.words: dict[str, int] = {}
        self.strays: list[tuple[int, str]] = []
        self.ends: list[tuple[int, str]] = []

    def fill(self, first: int, cells: Any) -> None:
        """Read the ``cells`` from row ``first`` on."""
        import pandas as pd

        column, values = self.column, self.values[first : first + len(cells)]
        typed = typed_as(cells)
        usual = typed is None and column.kind == "number" and not column.comma
        plain = _plain(cells) if usual and column.scale == 1 else None
        if plain is not None:
            values[:] = plain
        elif typed == column.kind and not column.has_unit:
            values[:] = cells
        else:
            texts = as_text(cells) if typed else np.asarray(cells, object)
            distinct: Any
            codes, distinct = pd.factorize(texts)
            words = np.array([word.strip() for word in distinct], object)
            if column.kind == "words":
                known = self.words
                read: Any = [known.setdefault(w, len(known)) if w else -1 for w in words.tolist()]
                values[:] = np.array(read, np.int32)[codes]
                return
            read = column.values(words)
            odd = np.isnan(read) & ~np.array([column.is_missing(word) for word in words], bool)
            places = np.flatnonzero(odd[codes]).tolist()
            self.strays += [(first + place, words[codes[place]]) for place in places]
            values[:] = read[codes]
        if column.kind == "date":
            places = np.flatnonzero(values >= NO_END).tolist()
            self.ends += [(first + place, str(cells[place]).strip()[:10]) for place in places]
            values[places] = np.datetime64("NaT")

    @property
    def unfit(self) -> str:
        """That fewer than `NUMBERS` of the cells are read, and what of the others."""
        count = int((self.values == self.values).sum()) + len(self.strays)
        if count - len(self.strays) >= NUMBERS * count or self.column.loose:
            return ""
        two = " and ".join(map(repr, list(dict.fromkeys(text for _, text in self.strays))[:2]))
        some = f"{len(self.strays):,} of {count:,} cells, such as {two}"
        return f"{some}, are no {self.column.kind}"


def typed_as(cells: Any) -> str | None:
    """The kind of numbers or dates of a DataFrame; ``None`` for texts."""
    return TYPED.get(cells.dtype.kind) if isinstance(cells, np.ndarray) else None


def as_text(values: np.ndarray[Any, Any]) -> Words:
    """Numbers and dates as they would be written in a file."""
    import pandas as pd

    codes, distinct = pd.factorize(values)
    if values.dtype.kind == "f":
        texts = [str(int(each)) if each.is_integer() else repr(each) for each in distinct.tolist()]
    else:
        texts = [str(pd.Timestamp(each)).removesuffix(" 00:00:00") for each in distinct]
    return np.array([*texts, ""], object)[codes]


def _plain(cells: Any) -> Any:
    """Values of ``cells`` if all are finite numbers without units and too many digits."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    usual = bool((np.abs(values) < 10.0**DIGITS).all())  # not for NaN
    return values if usual and "_" not in "".join(cells) else None


class Scan:
    """The different words of a column, how often each occurs, and how they are to be read.

    Of more than `DIFFERENT` words, those of a random sample of the cells.

    Attributes:
        notes: after `decide`, what could have been read otherwise, by what it is about.
    """

    def __init__(
        self, comma: bool, like: Column | None = None, asked: Column | None = None
    ) -> None:
        self.comma = comma  # whether the file's separator suggests decimal commas
        self.like, self.asked = like, asked  # how the column was read before, or is to be read
        self.typed: Column | None = None
        self.counts: Any = Counter[str]()
        self.words: Words = np.empty(0, object)
        self.found: dict[bool, Any] = {}  # the words as numbers, by whether commas are decimal
        self.notes: dict[str, str] = {}
        self._several: list[Column] = []  # readings as numbers, with either decimal sign
        self._days: dict[str, Any] = {}  # the words as dates, by format
        self._share, self._draw = 1.0, np.random.default_rng(0)
        self._forms = set[str]()  # of the words in the sample

    # --- looking -----------------------------------------------------------------------------

    def add(self, cells: Any) -> None:
        """Count the ``cells`` of the next rows."""
        if typed := typed_as(cells):
            known = cells[cells == cells]
            self.typed = Column(typed, loose=not len(known))
            eight = typed == "number" and ((known == 0) | ((known >= 1e7) & (known < 1e8))).all()
            if not eight and not (self.like is not None and self.like.has_unit):
                return
            cells = as_text(known)
        words = list(map(str.strip, cells))
        if self._share < 1:
            drawn = self._draw.random(len(words)) < self._share
            words = [
                word for word, kept in zip(words, drawn, strict=True) if self._takes(word, kept)
            ]
        self.counts.update(words)
        if len(self.counts) > DIFFERENT:
            half = self._draw.binomial([*self.counts.values()], 0.5).tolist()
            self._forms = set()
            pairs = zip(self.counts, half, strict=True)
            self.counts = Counter({word: max(1, n) for word, n in pairs if self._takes(word, n)})
            self._share /= 2

    def _takes(self, word: str, drawn: int) -> bool:
        """Whether a word is in the sample: if it is ``drawn``, or the first of its form.

        One cell may decide how all are read, such as 7.5 beside (1.5), or 007 beside 100.
        """
        form = ("0" if word[:1] == "0" < word[1:2] else "") + word.translate(_FORM)
        new = form not in self._forms and len(self._forms) < FORMS
        self._forms |= {form} if new else set()
        return bool(drawn) or new

    def proves(self) -> str:
        """The decimal sign that the numbers of the column prove, or nothing; after all cells."""
        known = {word: count for word, count in self.counts.items() if not is_missing(word)}
        self.words, self.counts = np.array([*known], object), np.array([*known.values()], int)
        self.found = {False: numbers(self.words, False)}
        self.found[True] = self.found[False].copy()  # as which words without a sign are read, too
        signed = np.array([bool(re.search("[.,]", word)) for word in self.words], bool)
        self.found[True][signed] = numbers(self.words[signed], True)
        self._several = [self._with_unit(comma) for comma in (False, True)]
        points, commas = map(self._fitting, self._several)
        if points == commas or max(points, commas) < self._least:
            return ""
        return "." if points > commas else ","

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, proved: Collection[str] = ()) -> Column:
        """How the column is read, where others of the file prove decimal signs.

        What was a number or date before is one, maybe written otherwise.
        """
        own, like = self._own(proved), self.like
        if like is None or own == like:
            return own
        brackets = self.found[own.comma]["brackets"][own.reads(self.found[own.comma])]
        signed = own.negative and not like.negative and brackets.any()
        same = (own.kind, own.unit, own.scale) == (like.kind, like.unit, like.scale)
        if same and (signed or self._fitting(like) < self._least):
            if like.guess and self.typed is None:
                differ = own.values(self.words) != like.values(self.words)
                self._note(OTHERWISE, own, self.words[differ])
            return own
        self.notes = {}
        self._note_units(like)
        return like

    def _own(self, proved: Collection[str]) -> Column:
        asked = self.asked
        if asked is not None and (asked.kind != "number" or self.typed is not None):
            return asked
        day = Column("date", format=EIGHT)
        eight = np.array(sorted(word for word in self.words if word.strip("0.")), object)
        lengths = {len(word.removesuffix(".0")) for word in eight}  # as pandas writes floats
        alike = asked is None and lengths == {len("20240131")}
        if alike and not np.isnat(day.values(eight)).any():
            self._note("numbers of eight digits are read as dates", day, eight)
            return day
        if self.typed is not None:
            return self.typed
        best = self._number(proved)
        if asked is not None or self._fitting(best) >= self._least:
            found = self.found[best.comma]
            read = best.reads(found)
            plain = [word for word in self.words[read] if _PLAIN.fullmatch(word)]
            lengths = {len(word) if word.isdecimal() else 0 for word in plain}
            zeros = any(word.startswith("0") for word in plain)
            if asked is None and zeros and len(lengths) == 1 < max(lengths):
                return Column("words")  # as 00501
            whole = np.floor(found["value"][read]) == found["value"][read]
            if asked is None and self._least and (whole & found["behind"][read]).all():
                why = "read as words: a minus behind whole numbers says nothing where all have it"
                self.notes = {why: repr(self.words[0])}
                return Column("words")
            self._note_units(best)
            return best
        self.notes = {}
        day = self._date(proved)
        if self._fitting(day) >= self._least:
            if "%y" in day.format:
                self._note("years of two digits are those from 1969 to 2068", day, self.words)
            return day
        self.notes = {}
        self._note_words(max(best, day, key=self._fitting))
        return Column("words")

    @property
    def _least(self) -> float:
        """Cells that a reading has to explain."""
        return NUMBERS * float(self.counts.sum())

    def _read(self, column: Column) -> Mask:
        """Which words are numbers or dates as ``column`` writes them."""
        if column.kind == "number":
            return column.reads(self.found[column.comma])
        return ~np.isnat(self._dates(column.format))

    def _dates(self, form: str) -> Any:
        """The words as dates of a format."""
        if form not in self._days:
            none = np.full(len(self.words), np.datetime64("NaT", "us"))
            self._days[form] = dates(self.words, form) if form else none
        return self._days[form]

    def _fitting(self, column: Column) -> int:
        """Number of cells that are numbers or dates as ``column`` writes them."""
        return int(self.counts[self._read(column)].sum())

    def _note(self, why: str, column: Column, words: Words) -> None:
        """Note how one of ``words`` is read, one that is not missing."""
        values = replace(column, factor=1.0).values(words)
        known = values < NO_END if column.kind == "date" else values == values
        word, value = words[known.argmax()], values[known.argmax()]
        said = str(value)[:10] if column.kind == "date" else f"{value:.10g}"
        self.notes[why] = f"{word!r} as {said}"

    # --- numbers -----------------------------------------------------------------------------

    def _with_unit(self, comma: bool) -> Column:
        """The numbers with one decimal sign, plain or with a unit, that most cells are."""
        found, counts = self.found[comma]["unit"], Counter[str]()
        for place in np.flatnonzero(found != ""):
            counts[found[place]] += int(self.counts[place])
        units = ["", *(unit for unit, _ in counts.most_common(1))]
        return max((Column("number", comma, unit) for unit in units), key=self._fitting)

    def _number(self, proved: Collection[str]) -> Column:
        """The reading of numbers that explains most cells."""
        written = "" if self.asked is None else self.asked.format
        several = [s for s in self._several if not written or number(written, s.comma) is not None]
        column = max(several, key=self._fitting)
        if len({self._fitting(each) for each in several}) < len(several):
            column = self._with_sign(several, proved)
        found = self.found[column.comma]
        found = found[column.reads(found)]
        scales, units = set(found["scale"].tolist()), found["unit"]
        sizes = np.abs(found["value"])
        plain, shares = sizes[units == ""], sizes[[unit in SHARES for unit in units]]
        small = len(plain) and len(shares) and plain.max() <= 1 < shares.max()
        bracketed = len(found) > 0 and bool(found["brackets"].all())
        return replace(
            column,
            scale=scales.pop() if len(scales) == 1 else 1.0,
            factor=SHARES[column.unit] if small else 1.0,
            negative=not bracketed,
            guess=column.guess or bracketed,
            loose=not len(self.words) or self.asked is not None,
        )

    def _with_sign(self, several: Sequence[Column], proved: Collection[str]) -> Column:
        """The one of two readings that is meant, where a sign may be that of thousands."""
        values = [self.found[each.comma]["value"] for each in several]
        read = self._read(several[0]) & self._read(several[1])
        words = self.words[read & (values[0] != values[1])]
        if not len(words):
            return several[0]
        sign = "." if any("." in word for word in words) else ","
        words = words[[sign in word for word in words]]
        whole = np.abs(values[0][read & (values[0] == values[1])])
        grouped = len(whole) and whole.max() < 1_000 and len(words) >= GROUPED
        if sign in proved:
            comma = sign == ","
        elif grouped:
            comma = sign == "."
        else:
            comma = "," in proved if len(proved) == 1 else self.comma
        guess = not proved or bool(grouped and sign in proved)
        column = replace(several[comma], guess=guess)
        if guess:
            self._note(f"{sign!r} may stand before decimals or thousands, read", column, words)
        return column

    def _note_units(self, column: Column) -> None:
        """Note numbers with a unit beside those without one, and what K or M multiply."""
        if column.kind != "number":
            return
        found = self.found[column.comma]
        read = column.reads(found)
        units = self.words[read & (found["unit"] != "")]
        plain = self.words[read & (found["unit"] == "")]
        scaled = self.words[read & (found["scale"] != 1)]
        why = "cells with and without a unit are read alike"
        if len(plain) and len(units) and column.factor != 1:
            why = f"cells with {column.unit} are read as {column.factor} times their number"
        if len(plain) and len(units):
            self.notes[why] = f"{units[0]!r} and {plain[0]!r}"
        elif len(plain) and column.unit and column.factor == 1:  # of a table that was read before
            self.notes[why] = f"{plain[0]!r}, in the table before with {column.unit}"
        if len(scaled) and column.scale == 1:
            why = "K, M and B multiply by a thousand, a million and a billion"
            self._note(why, column, scaled)

    # --- dates and words ---------------------------------------------------------------------

    def _date(self, proved: Collection[str]) -> Column:
        """The format of dates that explains most cells."""
        import pandas as pd

        others = self.words[np.isnan(self.found[False]["value"])]
        forms = date_formats(others[:: len(others) // 50 + 1].tolist())
        counts = {form: self._fitting(Column("date", format=form)) for form in forms}
        tied = [form for form in forms if counts[form] == max(counts.values())]
        if len(tied) < 2:
            return Column("date", format="".join(tied))
        days = pd.DataFrame({form: self._dates(form) for form in tied})
        words, days = self.words[days.notna().all(axis=1)], days.dropna()
        differ = days.ne(days[tied[0]], axis=0).any(axis=1)
        if not differ.any():
            return Column("date", format=tied[0])
        parts = {
            f"{part}s": pd.DataFrame({form: getattr(days[form].dt, part) for form in tied})
            for part in ("day", "month", "year")
        }
        doubtful = [part for part, each in parts.items() if each.nunique(axis=1).max() > 1]
        if "years" in doubtful:  # few ones, as 24-01-31 or 31/01/24 beside others of 2024
            years = {form: parts["years"][form].unique() for form in tied}
            order = {n: (len(each), "-" in n and each.max()) for n, each in years.items()}
            tied = [form for form in tied if order[form] == min(order.values())]
        spreads = {form: _spread(days[form]) for form in tied}
        first, *others = sorted(tied, key=lambda form: spreads[form])
        if others and 2 * spreads[first] >= spreads[others[0]]:
            # no country writes the month first before a point
            days_first = (self.comma and "," in proved) or "." in tied[0]
            first = next((f for f in tied if f.startswith("%d" if days_first else "%m")), tied[0])
        best = Column("date", format=first, guess=True)
        exchanged = ", ".join(doubtful[:-1]) + " and " + doubtful[-1]
        self._note(f"{exchanged} may be exchanged, read", best, words[differ])
        return best

    def _note_words(self, best: Column) -> None:
        """Note that ``best`` reads most cells, and that the others have few spellings, or one form.

        Numbers such as 10,000+ count as read.
        """
        read = self._read(best)
        left, count = self.words[~read], int(self.counts[read].sum())
        signed = int(self.counts[~read][[about(word) for word in left]].sum())
        if not count or count + signed < MOSTLY * self.counts.sum():
            return
        forms = {_DIGITS.sub("0", _LETTERS.sub("a", word)) for word in left}
        if len(left) <= SPELLINGS or len(forms) == 1:
            why = "read as words, as less than 95 % of the cells are of one kind"
            shown = ", ".join(map(repr, left[:3]))
            sample = " of a sample" if self._share < 1 else ""
            some = f"{count:,} of {self.counts.sum():,}{sample}"
            self.notes[why] = f"{some} are {best.kind}s, not {shown}"


def _spread(days: Any) -> float:
    """Deviation of the gaps between ``days``, in units of their mean; 0 where there is one."""
    gaps = np.diff(np.unique(days.to_numpy("datetime64[D]").astype(int)))
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 else 0.0
