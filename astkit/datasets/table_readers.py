"""Readers of cells: each takes words of a column, without spaces around them, and knows one kind.

What a reader cannot read is NaN or NaT, and nothing is guessed from other cells.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import Any, NamedTuple

import numpy as np

Wide = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[np.object_]]

MISSING = frozenset(["", "na", "n/a", "nan", "-nan", "null", "none", "nat", "\\n", "<na>", "#n/a"])
MISSING |= frozenset(["#n/a n/a", "#na", "#nv", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"])
MISSING |= frozenset(["?", ".", "-", "–", "—", "−", "--"])
"""What stands for a missing number or date, in lower case: pandas' list, and those of databases."""
MARKS = re.compile(r"#+|#[^\W_/ ]{2,}(/0)?[!?]|0{1,4}([-/.])00?\2 ?0{1,4}([ T]00?:00(:00)?)?")
"""Further ones: errors of Excel, such as #DIV/0!, and dates of zeros."""
DIGITS = 15
"""Digits that a float64 tells apart: whole numbers of more digits are read as words."""
SCALES = {"k": 1e3, "m": 1e6, "mio": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "mrd": 1e9}
SCALES |= {"thousand": 1e3, "million": 1e6, "billion": 1e9}
"""What stands behind thousands, millions and billions, in lower case and without a point.

A small m or b is one only beside a currency: it may be a metre, or a bit.
"""
_YEAR: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july", "august")
_YEAR += ("september", "october", "november", "december")
MONTHS = frozenset(part for name in _YEAR for part in (name, name[:3]))
"""What stands beside the number of a year or a day, and is no unit."""
ORDINALS = ("st", "nd", "rd", "th")
SHARES = {"%": 0.01, "‰": 0.001}
LONG = 50
"""Letters of a date and its time, at most."""
FORMATS = 6
"""Formats of dates that a column is read in, at most."""

_START = re.compile(r"\W*(?:\d|[^\W\d_]{3}\s|[A-Z]{1,3}[$€£¥₹])")
_POINT = re.compile(r"[-+]?\d*\.(\d{0,2}|\d{4,})")  # which no comma is the decimal sign of
_SIGNS = str.maketrans("−–‒‑‐’‘´", "-----'''")
_ABOUT = re.compile(r"^[<>~≈≥≤=]+\s*|\s*[+*†]+$")
_BRACKETS = re.compile(r"([$€£¥₹]?)\s*\(\s*([^()]*\d[^()]*)\)\s*([%‰$€£¥₹]?)")
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<before>[^\W\d_]{3}(?=\s)|(?:[A-Z]{0,3}[$€£¥₹])?)\s*(?P<inner>[-+]?)"
    r"(?P<whole>\d{1,3}(?P<group>[.,'\u00a0\u202f ])\d{3}(?:(?P=group)\d{3})*"
    r"|\d{1,2}(?:,\d\d)+,\d{3}|\d*)"
    r"(?P<rest>[.,]\d*)?(?P<power>[eE][-+]?\d+)?(?P<last>-?)"
    r"\s*(?P<scale>(?:[kKMB]|[Mm]io\.?|[Mm]rd\.?|[bm]n|thousand|[mb]illion|[mb](?=\s?[$€£¥₹]))(?![^\W\d_]))?"
    r"\s*(?P<after>[%‰°$€£¥₹]?[^\W\d_]{0,8}[²³]?(/[^\W\d_]{1,4}[²³]?)?)"
)
_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?(?:\s*([AaPp])\.?[Mm]\.?)?")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = re.compile(rf"(?:\d{{1,4}}|{_MONTH})(?:[-/., ]+(?:\d{{1,4}}|{_MONTH})){{1,2}}", re.I)
_WEEKDAY = re.compile(r"^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[.,]?\s+(?=\d|[A-Z])", re.I)
_MOMENT = re.compile(
    r"(.*?\d)(?:T|,?\s+)([01]?\d|2[0-4])[:.]([0-5]\d)(?:[:.]([0-5]\d)(?:[.,](\d+))?)?"
    r"\s*([AaPp]\.?[Mm]\.?)?\s*(Z|UTC|GMT|[-+]\d\d(?::?\d\d)?)?"
)
# with any sign between the parts
_FORMS = ("%Y-%m-%d", "%m-%d-%Y", "%d-%m-%Y", "%m-%d-%y", "%d-%m-%y", "%y-%m-%d", "%m-%Y", "%Y-%m")
_NAMED = ("%d-%b-%Y", "%d-%b-%y", "%b-%d-%Y", "%b-%d-%y", "%b-%Y", "%b-%y", "%Y-%b-%d", "%Y-%b")


class Number(NamedTuple):
    """A number as it is written: its unit, what K or M multiply it by, in brackets, as 5-."""

    value: float
    unit: str
    scale: float = 1.0
    brackets: bool = False
    behind: bool = False


NONE = Number(np.nan, "")
NUMBER = np.dtype(
    [("value", float), ("unit", object), ("scale", float), ("brackets", bool), ("behind", bool)]
)


def is_missing(word: str) -> bool:
    """Whether a word stands for a missing number or date."""
    return word.lower() in MISSING or (word[:1] in "#0" and bool(MARKS.fullmatch(word)))


def numbers(words: Words, comma: bool) -> Any:
    """Each of ``words`` as a `Number`, an array of records; the value of others is NaN."""
    import pandas as pd

    found = np.full(len(words), np.array(NONE, NUMBER), NUMBER)
    values = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").to_numpy("float64")
    odd = np.array([_is_long(word) or (comma and "." in word) for word in words], bool)
    found["value"] = np.where(odd, np.nan, values)
    odd |= np.isnan(values)
    some = [_START.match(word) and not (comma and _POINT.fullmatch(word)) for word in words[odd]]
    read = [number(w, comma) if each else None for w, each in zip(words[odd], some, strict=True)]
    found[odd] = np.array([each or NONE for each in read], NUMBER)
    return found


def _is_long(word: str) -> bool:
    return len(word) > DIGITS and word.isdecimal()


def number(word: str, comma: bool) -> Number | None:
    """The number in a word, whose decimal sign is a ``comma`` or else a point, or ``None``."""
    text = word.translate(_SIGNS)
    if clock := _CLOCK.fullmatch(text):
        return _hours(clock)
    bracketed = _BRACKETS.fullmatch(text)
    found = _NUMBER.fullmatch("".join(bracketed.groups()) if bracketed else text)
    if found is None:
        return None
    before, after, scaled = found["before"], found["after"], found["scale"] or ""
    if before and after in ("m", "b") and not scaled:  # as £950m
        scaled, after = after, ""
    if (before and after) or after in ORDINALS:
        return None
    named = {before.lower(), after.lower()} & MONTHS
    if named or (found["last"] and (after or scaled)):  # as Jan 2022, or 3-bed
        return None
    group, whole, rest = found["group"], found["whole"], found["rest"] or ""
    last = "" if rest in (".", ",") else found["last"]  # in prices "12.-" is no minus
    if last and not rest and whole.startswith("0") and whole != "0":  # as 0501-
        return None
    signs = [*filter(None, (found["sign"], found["inner"], last, bracketed and "-"))]
    if group is None and "," in whole:  # 1,23,456
        group = ","
    decimal, decimals = "," if comma else ".", rest[1:]
    if group == decimal and not rest and whole.count(group) == 1:  # as 1.234, without thousands
        whole, _, decimals = whole.partition(group)
        group = None
    elif group == decimal or rest[:1] not in ("", decimal):
        return None
    if group and (whole.startswith("0") or found["power"]):  # as 012,345
        return None
    if rest in (".", ",") and after:  # as "2. Married"
        return None
    digits = re.sub(r"\D", "", whole)
    if len(signs) > 1 or not (digits or decimals) or _is_long(text):
        return None
    value = float(f"{digits or '0'}.{decimals or '0'}{found['power'] or ''}")
    minus = signs == ["-"] and not bracketed
    scale = SCALES[scaled.lower().rstrip(".")] if scaled else 1.0
    return Number(-value if minus else value, before or after, scale, bool(bracketed), bool(last))


def about(word: str) -> bool:
    """Whether a word is a number but for a sign such as "+" or ">", as in 10,000+."""
    bare = _ABOUT.sub("", word)
    return bare != word and any(number(bare, comma) is not None for comma in (False, True))


def _hours(clock: re.Match[str]) -> Number | None:
    """A time of day, or a duration, in hours."""
    hours, half = int(clock[1]), (clock[4] or "").lower()
    if half:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + 12 * (half == "p")
    return Number(hours + int(clock[2]) / 60 + float(clock[3] or 0) / 3600, ":")


def is_number(word: str) -> bool:
    """Whether a word is a number with a decimal point."""
    found = number(word, False)
    return found is not None and not found.unit


def dates(words: Words, form: str) -> np.ndarray[Any, Any]:
    """Dates that are written in ``words`` in the format ``form``; NaT for others.

    A time of day may follow where the format has none; without one, it is midnight.
    """
    if form == "%Y%m%d":  # which pandas writes as floats where some are missing
        words = np.array([word.removesuffix(".0") for word in words], object)
    if re.search(r"%[HIaABjp]|,|%b\.", form):
        return _parsed(words.tolist(), form)
    split = [_split(word) for word in words]
    times = np.array([time for _, time in split], "timedelta64[us]")
    return _parsed([day for day, _ in split], form) + times


def _split(word: str) -> tuple[str, int]:
    """The day in a word, and the time behind it in microseconds."""
    found = _MOMENT.fullmatch(word) if 10 < len(word) < LONG else None
    return (_day(found[1]), _time(found)) if found else (_day(word), 0)


def _time(found: re.Match[str]) -> int:
    """The time behind a day in microseconds, in UTC."""
    hours, minutes, seconds, fraction, half, zone = found.groups()[1:]
    hour = int(hours) if not half else int(hours) % 12 + 12 * (half[0] in "pP")
    digits = re.sub(r"\D", "", zone or "")
    ahead = (int(digits[:2] or 0) * 60 + int(digits[2:] or 0)) * (-1 if "-" in (zone or "") else 1)
    whole = (hour * 60 + int(minutes) - ahead) * 60 + int(seconds or 0)
    return whole * 10**6 + int(f"{fraction or '':0<6}"[:6])


def _day(text: str) -> str:
    """A day without its weekday, and months without points and further letters."""
    if text.replace("-", "").isdecimal():
        return text
    text = _WEEKDAY.sub("", text.strip())
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|,", "", text)
    return re.sub(r"([A-Za-z]{3})[A-Za-z]*\.?", r"\1", text) if _DAY.fullmatch(text) else text


def _parsed(texts: Sequence[str], form: str) -> np.ndarray[Any, Any]:
    """Whole ``texts`` in one format, also of years that nanoseconds since 1970 do not reach."""
    import pandas as pd

    found = pd.to_datetime(pd.Series(texts, dtype=object), format=form, errors="coerce", utc=True)
    values = found.dt.tz_localize(None).to_numpy("datetime64[us]").copy()
    for place in np.flatnonzero(np.isnat(values)).tolist():
        if re.search(r"(?<!\d)(0\d|1[0-6]|2[2-9]|[3-9]\d)\d\d", texts[place]):
            try:
                moment = datetime.strptime(texts[place], form)
            except ValueError:
                continue
            values[place] = np.datetime64(moment.replace(tzinfo=None), "us")
    return values


def date_formats(words: Sequence[str]) -> list[str]:
    """Formats in which some of ``words`` are dates, the month before the day first."""
    from pandas.tseries.api import guess_datetime_format

    days = [day for day, _ in map(_split, words) if _DAY.fullmatch(day)]
    found = Counter[str]()
    forms = (*_NAMED, *_FORMS) if re.search("[A-Za-z]", "".join(days)) else _FORMS
    for sign, form in product([sign for sign in "-/. " if sign in "".join(days)], forms):
        form = form.replace("-", sign)
        found += Counter({form: int((~np.isnat(_parsed(days, form))).sum())})
    if not found:  # such as those with the time in their midst
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of words that fit one order of day and month only
            some = [word for word in words if re.search(r"\d", word)]
            for first in (False, True):
                guesses = [guess_datetime_format(word, dayfirst=first) for word in some]
                found.update(guess for guess in guesses if guess and "%Y-%d" not in guess)
    return [form for form, _ in found.most_common(FORMATS)]
