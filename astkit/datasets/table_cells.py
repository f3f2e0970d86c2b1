"""Columns of a table: which hold numbers, dates or words, and the values of their cells."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from astkit.datasets.table_readers import (
    DIGITS,
    SHARES,
    Wide,
    Words,
    about,
    date_formats,
    dates,
    missing,
    number,
    points,
)

NUMBERS = 0.95
"""Share of the cells of a column, those missing aside, from which on the column holds numbers."""
MOSTLY = 0.5
"""Share from which on a column that is left as words gets a note."""
SPELLINGS, GROUPED = 20, 8
"""Different cells that are kept as examples, and those that show a sign of thousands."""
ASKED: Mapping[Any, str] = {
    **dict.fromkeys(("words", "category", "str", str), "words"),
    **dict.fromkeys(("number", "float", float, int), "number"),
}
"""Kinds of columns by their names in ``dtypes``."""
NO_END = np.datetime64("2262-01-01", "us")
"""Dates from here on say that there is no end, and are missing."""
WAYS = 1_000
"""Ways of writing that are told apart, at most."""
EIGHT = "%Y%m%d"
OTHERWISE = (
    "the table before was read in another way, by a guess that these cells disprove, and may be"
    " wrong: read it with dtypes="
)
END = "dates from 2262 on are read as no end, a missing date"


_START = re.compile(r"\W*(?:\d|[^\W\d_]{3}\s|[A-Z]{1,3}[$€£¥₹])")
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_DIGITS, _LETTERS = re.compile(r"\d+([.,' ]\d+)*"), re.compile(r"[^\W\d_]+")


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


def convert(
    cells: Any, column: Column, known: dict[str, int]
) -> tuple[Any, dict[str, list[tuple[int, str]]]]:
    """Values of ``cells``, and the place and text of those that count as missing, by the reason.

    Of words the values are their numbers, -1 for empty cells; new ones are added to ``known``.
    """
    if is_typed(cells):
        if typed_as(cells) == column.kind == "number" and not column.has_unit:
            return cells, {}
        if column.kind == "date" and cells.dtype.kind == "M":
            late = np.flatnonzero(cells >= NO_END)
            ends = [(place, str(cells[place])[:10]) for place in late.tolist()]
            return np.where(cells >= NO_END, np.datetime64("NaT"), cells), {END: ends}
        cells = _as_text(cells)
    if column.kind == "number" and not column.comma and column.scale == 1:
        values = _plain(cells)
        if values is not None:
            return values, {}
    codes, words = _distinct(cells)
    if column.kind == "words":
        numbers = [known.setdefault(word, len(known)) if word else -1 for word in words.tolist()]
        return np.array(numbers, np.int32)[codes], {}
    odd = dict[str, Any]()
    if column.kind == "number":
        values = numbers_of(words, column)
        gone = np.isnan(values)
    else:
        values = dates(words, column.format)
        gone = np.isnat(values)
        odd[END] = values >= NO_END
        values[odd[END]] = np.datetime64("NaT")
    zeros = [column.format == EIGHT and not word.strip("0") for word in words]
    odd[f"cells that are no {column.kind} count as missing"] = (
        gone & ~missing(words) & ~np.array(zeros, bool)
    )
    return values[codes], {
        why: [(place, words[codes[place]]) for place in _places(codes, each)]
        for why, each in odd.items()
    }


def _places(codes: np.ndarray[Any, Any], odd: np.ndarray[Any, Any]) -> list[int]:
    """Places of the cells whose word is ``odd``."""
    return np.flatnonzero(odd[codes]).tolist() if odd.any() else []


def numbers_of(words: Words, column: Column) -> Wide:
    """Numbers that are written in ``words`` as those of ``column``; NaN for others."""
    if column.comma or column.scale != 1:
        values, left = np.full(len(words), np.nan), np.arange(len(words))
    else:
        values = points(words)
        left = np.flatnonzero(np.isnan(values))
    for place in left.tolist():
        found = number(words[place], column.comma)
        if found is None or not Way(found.unit, found.scale).is_read(column):
            continue
        value = found.value * found.scale / column.scale
        value *= column.factor if found.unit else 1.0
        values[place] = -value if found.brackets and column.negative else value
    return values


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


def _plain(cells: Any) -> Wide | None:
    """Values of ``cells`` if all are finite numbers without units and too many digits."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    usual = bool((np.abs(values) < 10.0**DIGITS).all())  # not for NaN
    return values if usual and "_" not in "".join(cells) else None


class Way(NamedTuple):
    """How a number is written.

    ``sign``: "." or "," if it is one with this decimal sign only, with "?" before it if the sign
    may also stand before thousands, "" if neither matters, "+" if only such a sign is too many.
    """

    unit: str = ""
    scale: float = 1.0
    brackets: bool = False
    sign: str = ""
    behind: bool = False

    def is_read(self, column: Column) -> bool:
        """Whether it is a number as ``column`` writes them."""
        if column.kind != "number" or self.sign in ("+", "." if column.comma else ","):
            return False
        # "7" is read beside "12 kg", "14B" is not beside "7A"
        alike = self.unit == column.unit or (not self.unit and self.scale == 1)
        return alike and column.scale in (1.0, self.scale)


Key = tuple[Way | None, tuple[bool, ...]]
"""How a word is written as a number, and whether it is a date, by format."""


@dataclass
class Tally:
    """Cells that are written alike: how many, the size of their numbers, and some of them."""

    count: int = 0
    least: float = np.inf
    most: float = 0.0
    words: dict[str, None] = field(default_factory=dict)

    def add(self, words: Words, counts: Any, sizes: Any) -> None:
        """Count ``words``, each as often as it occurs."""
        self.count += int(counts.sum())
        self.least = min(self.least, float(np.min(sizes)))
        self.most = max(self.most, float(np.max(sizes)))
        self.words |= dict.fromkeys(words[: SPELLINGS + 1 - len(self.words)])


def way_of(word: str) -> tuple[Way | None, float]:
    """How a number is written in a word, ``None`` for other words, and its size."""
    if not _START.match(word):
        return None, 0.0
    point, comma = number(word, False), number(word, True)
    found = point or comma
    if found is None:
        return (Way(sign="+") if about(word) else None), 0.0
    sign = ""
    if point is None or comma is None:
        sign = "," if point is None else "."
    elif point.value != comma.value:  # the smaller one is that with decimals
        sign = "?," if abs(comma.value) < abs(point.value) else "?."
    return Way(found.unit, found.scale, found.brackets, sign, found.behind), abs(found.value)


class Scan:
    """What the cells of a column may be, from one look at each.

    Attributes:
        notes: after `decide`, what could have been read otherwise, by what it is about.
    """

    def __init__(
        self,
        comma: bool,
        nameless: bool,
        like: Column | None = None,
        asked: Column | None = None,
    ) -> None:
        self.comma = comma  # whether the file's separator suggests decimal commas
        self.like, self.asked = like, asked  # how the column was read before, or is to be read
        self.rows = self.cells = 0
        self.ways: defaultdict[Key, Tally] = defaultdict(Tally)
        self.compact, self.eight = 0, ""  # cells of eight digits that are dates, and one of them
        self.formats: list[str] = []
        self.days: defaultdict[str, set[int]] = defaultdict(set)  # by format
        self.digits, self.zeros = set[int](), False  # of numbers, and whether a 0 is the first
        self.typed: Column | None = None
        self.begin: int | None = 0 if nameless else None  # of cells that count the rows
        self.notes: dict[str, str] = {}

    # --- looking -----------------------------------------------------------------------------

    def add(self, cells: Any) -> None:
        """Look at the ``cells`` of the next rows."""
        self._count(cells)
        self.rows += len(cells)
        if is_typed(cells) and self.like is not None and self.like.has_unit:
            cells = _as_text(cells)
        if is_typed(cells):
            self.typed = Column(typed_as(cells))
            known = cells[cells == cells]
            if (
                self.typed.kind == "number"
                and ((known == 0) | ((known >= 1e7) & (known < 1e8))).all()
            ):
                self._add_compact(_as_text(known), np.ones(len(known)))
            self.cells += len(known)
            return
        values = _plain(cells)
        if values is not None:
            words, counts = np.array(cells, object), np.ones(len(cells), np.int64)
        else:
            codes, words = _distinct(cells)
            known = ~missing(words)
            words, counts = words[known], np.bincount(codes, minlength=len(words))[known]
            values = points(words)
        self._add_compact(words, counts)
        self.cells += int(counts.sum())
        plain = ~np.isnan(values)
        if len(self.digits) < 2 and 0 not in self.digits:
            numbers = [word.strip() for word in words[plain].tolist()]
            self.digits |= {len(each) if each.isdecimal() else 0 for each in numbers}
            self.zeros |= any(each.startswith("0") for each in numbers)
        signs = np.array([point_of(word) for word in words[plain].tolist()], object)
        for sign in dict.fromkeys(signs):
            some = np.flatnonzero(plain)[signs == sign]
            self.ways[Way(sign=sign), ()].add(words[some], counts[some], np.abs(values[some]))
        self._add_others(words[~plain], counts[~plain])

    def _add_compact(self, words: Words, counts: Any) -> None:
        """Count cells such as 20240131, as long as all are."""
        known = np.array([bool(word.strip("0")) for word in words], bool)  # zeros are missing
        days = words[known]
        alike = self.compact == self.cells and all(len(day) == len("20240131") for day in days)
        values = dates(days, EIGHT) if alike else days
        if alike and not np.isnat(values).any():
            self.compact += int(counts.sum())
            self.eight = min(filter(None, [self.eight, *days]), default="")

    def _add_others(self, words: Words, counts: Any) -> None:
        """Count cells that are no plain numbers."""
        if not self.formats:
            self.formats = date_formats(words[:: len(words) // 50 + 1].tolist())
            if self.like is not None and self.like.kind == "date":
                self.formats = list(dict.fromkeys([self.like.format, *self.formats]))
        flags = []
        for form in self.formats:
            values = dates(words, form)
            flags.append(~np.isnat(values))
            days = np.unique(values[flags[-1]].astype("datetime64[D]").astype(int))
            self.days[form].update(days.tolist())
        rows = zip(*flags, strict=True) if flags else ((),) * len(words)
        found = [way_of(word) for word in words.tolist()]
        alike: defaultdict[Key, list[int]] = defaultdict(list)
        for place, (way, row) in enumerate(zip((way for way, _ in found), rows, strict=True)):
            known = len(self.ways) + len(alike) < WAYS or (way, row) in self.ways
            alike[(way, row) if known else (None, ())].append(place)
        sizes = np.array([size for _, size in found])
        for key, places in alike.items():
            self.ways[key].add(words[places], counts[places], sizes[places])

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

    def counts_rows(self) -> bool:
        """Whether the cells are the numbers of the rows, from 0 or 1."""
        return self.begin is not None and self.rows > 1

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, proved: Collection[str] = ()) -> Column:
        """How the column is read, where others of the file prove decimal signs.

        What was a number or date before is one, maybe written otherwise.
        """
        own, like = self._own(proved), self.like
        if like is None or own == like:
            return own
        same = (own.kind, own.unit, own.scale) == (like.kind, like.unit, like.scale)
        signed = (
            own.negative
            and not like.negative
            and any(key[0] is not None and key[0].brackets for key in self._read(own))
        )
        if same and (signed or self.fitting(like) < self._least):
            if like.guess and self.typed is None:
                words = [
                    word
                    for word in self._words_of(own)
                    if self._value(word, own) != self._value(word, like)
                ]
                self._note(OTHERWISE, own, words)
            return own
        self.notes = {}
        self._note_units(like)
        return like

    def _own(self, proved: Collection[str]) -> Column:
        asked = self.asked
        if asked is not None and (asked.kind != "number" or self.typed is not None):
            return asked
        if self.eight and self.compact == self.cells and asked is None:
            day = Column("date", format=EIGHT)
            self._note("numbers of eight digits are read as dates", day, [self.eight])
            return day
        if self.typed is not None:
            return replace(self.typed, loose=not self.cells)
        best = self._number(proved)
        if asked is not None or self.fitting(best) >= self._least:
            if asked is None and self.zeros and len(self.digits) == 1 < max(self.digits):
                return Column("words")  # as 00501
            ways = [key[0] for key in self._read(best)]
            if asked is None and ways and all(way.behind and not way.sign for way in ways if way):
                why = "read as words: a minus behind whole numbers says nothing where all have it"
                self.notes = {why: repr(self._words_of(best)[0])}
                return Column("words")
            self._note_units(best)
            return best
        self.notes = {}
        day = self._date(proved)
        if self.fitting(day) >= self._least:
            if "%y" in day.format:
                why = "years of two digits are those from 1969 to 2068"
                self._note(why, day, self._words_of(day))
            return day
        self.notes = {}
        self._note_words(max(best, day, key=self.fitting))
        return Column("words")

    @property
    def _least(self) -> float:
        """Cells that a reading has to explain."""
        return NUMBERS * self.cells

    def _read(self, column: Column, fits: bool = True) -> dict[Key, Tally]:
        """Cells that are numbers or dates as ``column`` writes them, or all others."""
        if column.kind == "date":
            place = self.formats.index(column.format) if column.format in self.formats else -1
            known = {key for key in self.ways if key[1] and place >= 0 and key[1][place]}
        else:
            known = {key for key in self.ways if key[0] is not None and key[0].is_read(column)}
        return {key: tally for key, tally in self.ways.items() if (key in known) == fits}

    def fitting(self, column: Column) -> int:
        """Number of cells that are numbers or dates as ``column`` writes them."""
        return sum(tally.count for tally in self._read(column).values())

    def _words_of(self, column: Column, fits: bool = True) -> list[str]:
        """Some of the words that ``column`` reads, or of all others."""
        return [word for tally in self._read(column, fits).values() for word in tally.words]

    def _note(self, why: str, column: Column, words: Sequence[str]) -> None:
        """Note how one of ``words`` is read, one that is not missing if there is one."""
        word = next((each for each in words if self._value(each, column)), words[0])
        self.notes[why] = f"{word!r} as {self._value(word, column) or 'missing'}"

    def _value(self, word: str, column: Column) -> str:
        """What a ``word`` is read as; nothing if it is missing."""
        value = convert([word], replace(column, factor=1.0), {})[0][0]
        if value != value:
            return ""
        return str(value)[:10] if column.kind == "date" else f"{value:.10g}"

    # --- numbers -----------------------------------------------------------------------------

    def _unit(self, comma: bool) -> tuple[int, str]:
        """Cells that are numbers with one decimal sign, plain or with a unit, and the unit."""
        written = "" if self.asked is None else self.asked.format
        if written and number(written, comma) is None:
            return -1, ""
        counts = Counter[str]()
        for (way, _), tally in self.ways.items():
            if way is not None and way.is_read(Column("number", comma, way.unit)):
                counts[way.unit] += tally.count
        plain = counts.pop("", 0)
        unit = max(counts, key=lambda each: counts[each], default="")
        return plain + counts[unit], unit

    def proves(self) -> str:
        """The decimal sign that the numbers of the column prove, or nothing."""
        (points, _), (commas, _) = self._unit(False), self._unit(True)
        sure = points != commas and max(points, commas) >= self._least
        return "." if sure and points > commas else "," if sure else ""

    def _number(self, proved: Collection[str]) -> Column:
        """The reading of numbers that explains most cells."""
        (points, unit), (commas, other) = self._unit(False), self._unit(True)
        column = Column("number", commas > points, other if commas > points else unit)
        doubts = {key[0].sign[1:] for key in self._read(column) if key[0] and "?" in key[0].sign}
        if points == commas and doubts:
            column = self._with_sign(column, "." if "." in doubts else ",", proved)
        read = [(way, tally) for (way, _), tally in self._read(column).items() if way is not None]
        scales = {way.scale for way, _ in read}
        bracketed = bool(read) and all(way.brackets for way, _ in read)
        plain = [each.most for way, each in read if not way.unit]
        shares = [each.most for way, each in read if way.unit in SHARES]
        return replace(
            column,
            scale=scales.pop() if len(scales) == 1 else 1.0,
            factor=SHARES[unit] if plain and shares and max(plain) <= 1 < max(shares) else 1.0,
            negative=not bracketed,
            guess=column.guess or bracketed,
            loose=not self.cells or self.asked is not None,
        )

    def _with_sign(self, column: Column, sign: str, proved: Collection[str]) -> Column:
        """``column`` with its decimal sign, where ``sign`` may be that of thousands."""
        read = [(way, tally) for (way, _), tally in self._read(column).items() if way is not None]
        whole = [tally for way, tally in read if not way.sign]
        words = [word for way, each in read if way.sign == f"?{sign}" for word in each.words]
        small = bool(whole) and min(each.least for each in whole) < 1_000
        grouped = small and len(words) >= GROUPED and max(each.most for each in whole) < 1_000
        if sign in proved:
            comma = sign == ","
        elif grouped:
            comma = sign == "."
        else:
            comma = "," in proved if len(proved) == 1 else self.comma
        column = replace(column, comma=comma, guess=not proved or (grouped and sign in proved))
        if column.guess:
            self._note(f"{sign!r} may stand before decimals or thousands, read", column, words)
        return column

    def _note_units(self, column: Column) -> None:
        """Note numbers with a unit beside those without one, and what K or M multiply."""
        words = self._words_of(column) if column.kind == "number" else []
        read = {word: way_of(word)[0] or Way() for word in words}
        units = [word for word, way in read.items() if way.unit]
        plain = [word for word, way in read.items() if not way.unit]
        scaled = [word for word, way in read.items() if way.scale != 1]
        why = "cells with and without a unit are read alike"
        if plain and units and column.factor != 1:
            why = f"cells with {column.unit} are read as {column.factor} times their number"
            self.notes[why] = f"{units[0]!r} and {plain[0]!r}"
        elif plain and units:
            self.notes[why] = f"{units[0]!r} and {plain[0]!r}"
        elif plain and column.unit and column.factor == 1:  # as in a table that was read before
            self.notes[why] = f"{plain[0]!r}, in the table before with {column.unit}"
        if scaled and column.scale == 1:
            why = "K, M and B multiply by a thousand, a million and a billion"
            self._note(why, column, scaled)

    # --- dates and words ---------------------------------------------------------------------

    def _date(self, proved: Collection[str]) -> Column:
        """The format of dates that explains most cells."""
        import pandas as pd

        counts = {form: self.fitting(Column("date", format=form)) for form in self.formats}
        most = max(counts.values(), default=0)
        tied = [form for form, count in counts.items() if count == most]
        best = Column("date", format=tied[0] if tied else "")
        words = np.array(self._words_of(best), object)
        read = [dates(words, form) for form in tied]
        differ = np.array([len(set(each)) > 1 for each in zip(*read, strict=True)], bool)
        if not differ.any():
            return best
        whole = [pd.DatetimeIndex(each) for each in read]
        parts = [
            f"{part}s"
            for part in ("day", "month", "year")
            if len({tuple(getattr(each, part)) for each in whole}) > 1
        ]
        if "years" in parts:  # dates are rather past than to come
            last = {form: np.datetime64(max(self.days[form]), "D").astype("M8[Y]") for form in tied}
            tied = [form for form in tied if last[form] == min(last.values())]
        spreads = {form: _spread(self.days[form]) for form in tied}
        first, *others = sorted(tied, key=lambda form: spreads[form])
        if others and 2 * spreads[first] >= spreads[others[0]]:
            # no country writes the month first before a point
            days_first = (self.comma and "," in proved) or "." in tied[0]
            first = next((f for f in tied if f.startswith("%d" if days_first else "%m")), tied[0])
        best = Column("date", format=first, guess=True)
        self._note(f"{' and '.join(parts)} may be exchanged, read", best, words[differ])
        return best

    def _note_words(self, best: Column) -> None:
        """Note that ``best`` reads most cells, and that the others have few spellings, or one form.

        Numbers such as 10,000+ count as read.
        """
        left, count = self._read(best, fits=False), self.fitting(best)
        signed = sum(tally.count for (way, _), tally in left.items() if way and way.sign == "+")
        words = self._words_of(best, fits=False)
        forms = {_DIGITS.sub("0", _LETTERS.sub("a", word)) for word in words}
        if count + signed >= MOSTLY * self.cells and (len(words) <= SPELLINGS or len(forms) == 1):
            why = "read as words, as less than 95 % of the cells are of one kind"
            shown = ", ".join(map(repr, words[:3]))
            self.notes[why] = f"{count:,} of {self.cells:,} are {best.kind}s, not {shown}"


def point_of(word: str) -> str:
    """The ``sign`` of a plain number, see `Way`."""
    return "" if "." not in word else "?." if _GROUPED.fullmatch(word) else "."


def _spread(days: Collection[int]) -> float:
    """Deviation of the gaps between ``days``, in units of their mean; 0 where there is one."""
    gaps = np.diff(sorted(days))
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 else 0.0
