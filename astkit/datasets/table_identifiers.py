"""Columns that name each row, and say nothing else of it: a model would learn rows by heart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from astkit.datasets.table_reader import TableRows

LEAST = 50
"""Rows of a table from which on identifiers are looked for."""
NEARLY = 0.99
"""Share of the rows that have a word of their own, and of the words that are of one form."""
LENGTH = 8
"""Digits from which on numbers that are words name something, if they are all different."""
FIRST_YEAR, LAST_YEAR = 1500, 2100
"""Consecutive numbers between them may be years."""

_LETTERS, _HEX = re.compile(r"[^\W\d_]+"), re.compile(r"(0x)?[\da-f]+", re.IGNORECASE)
_TOKEN = re.compile(r"[\w{}#/-]+")
_PERIOD = re.compile(r"(19|20)\d\d\W?[QWHS]\d\d?|[QWHS]\d\d?\W?(19|20)\d\d")  # as 2024-Q1


def identifiers(frame: pd.DataFrame, apart: Collection[str]) -> list[str]:
    """Columns of words without spaces, nearly all different and of one form, but those ``apart``.

    Of one form: letters and digits in the same order, such as ``u0001``, or equally many of them,
    as in UUIDs; hexadecimal numbers; digits, if they count the rows or are many.
    """
    words = frame.select_dtypes("category").drop(columns=[*apart], errors="ignore")
    several = [name for name in words if words[name].nunique() >= max(LEAST, NEARLY * len(words))]
    return [str(name) for name in several if _are_of_one_form(words[name].dropna().tolist())]


def _are_of_one_form(words: list[str]) -> bool:
    tokens = [each for each in words if _TOKEN.fullmatch(each) and not _PERIOD.fullmatch(each)]
    if len(tokens) < NEARLY * len(words):
        return False
    forms = Counter(_LETTERS.sub("a", re.sub(r"\d+", "0", each)) for each in tokens)
    if set(forms) == {"0"}:
        numbers = list(map(int, tokens))
        return max(numbers) - min(numbers) == len(words) - 1 or min(map(len, tokens)) >= LENGTH
    mixed = sum(count for form, count in forms.items() if "a" in form and "0" in form)
    lengths = Counter(map(len, tokens))
    most = [max(each.values()) for each in (forms, lengths)]
    hexadecimal = sum(_HEX.fullmatch(each) is not None for each in tokens)
    return 2 * mixed >= len(words) and max(*most, hexadecimal) >= NEARLY * len(words)


def counters(
    rows: TableRows, apart: Collection[str], target: pd.DataFrame | None = None
) -> list[str]:
    """Columns of consecutive whole numbers without units, each once, but those ``apart``.

    Not years, and not those in order of the rows that go on in the ``target``, as time does.
    """
    found, frame = [], rows.frame
    apart = [*apart, *(name for name, column in rows.columns.items() if column.unit)]
    for name in frame.select_dtypes("number").columns.difference([*apart], sort=False):
        values = frame[name].to_numpy()
        whole = np.sort(values)
        years = whole[0] >= FIRST_YEAR and whole[-1] <= LAST_YEAR
        if len(values) < LEAST or years or whole[0] % 1 or (np.diff(whole) != 1).any():
            continue
        both = values if target is None else np.append(values, target[name])
        if target is None or not (np.diff(both) > 0).all():
            found.append(str(name))
    return found


def left_out(names: Collection[str]) -> list[str]:
    """A note about columns that name the rows."""
    held = f"columns that name or number the rows, left out: {', '.join(names)}"
    return [f"{held}; keep= makes them inputs"] * bool(names)
