"""Grids of parameters, such as ``0.05,0.1,0.2`` or ``0..4``, and their combinations."""

from __future__ import annotations

import collections
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from astkit.runs.parameters import Notebook, assignments

MOST = 100_000  # combinations of one sweep: more is probably a typing error

_RANGE = re.compile(r"([+-]?\d+)\.\.([+-]?\d+)")
_CLOSES = {"[": "]", "{": "}", "(": ")"}


def from_options(notebook: Notebook, options: Sequence[str]) -> dict[str, list[Any]]:
    """The grid given by ``name=values`` options, with values in the types of the defaults.

    Values are separated by commas outside brackets and quotes, stripped, and parsed by
    `Notebook.from_text`; ``a..b`` is the range of integers from
    ``a`` to ``b``, both included. Raises ``ValueError`` for unknown names and values of another
    type.
    """
    texts = assignments(options)
    notebook.check_names(list(texts))
    return {
        name: [notebook.from_text(name, item) for item in _items(name, text)]
        for name, text in texts.items()
    }


def combinations(notebook: Notebook, grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last name varying fastest.

    ``grid`` maps names to a list, tuple, range or array of values, or to one constant value. Raises
    ``ValueError`` for an unknown name, a value of another type, no values, duplicates, or more than
    `MOST` combinations.
    """
    notebook.check_names(list(grid))
    columns = {name: _column(notebook, name, values) for name, values in grid.items()}
    if (count := math.prod(map(len, columns.values()))) > MOST:
        raise ValueError(f"these are {count:,} combinations: give at most {MOST:,}")
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values differ between rows."""
    names = rows[0] if rows else {}
    return [name for name in names if any(row[name] != rows[0][name] for row in rows)]


def _column(notebook: Notebook, name: str, values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    several = isinstance(values, list | tuple | range)
    if several and values[MOST:]:
        raise ValueError(f"{name} has more than {MOST:,} values: give fewer")
    column = [notebook.fit(name, value) for value in (values if several else [values])]
    if not column:
        raise ValueError(f"{name} has no values: give one or more")
    counts = collections.Counter(map(repr, column))  # True is not 1, although they are equal
    for value in column:
        if counts[repr(value)] > 1:
            raise ValueError(f"{name} contains {value!r} twice: give each value once")
    return column


def _items(name: str, text: str) -> Iterator[str]:
    items = [item.strip() for item in _split(name, text)]
    for item in items:
        if not item and len(items) > 1:
            raise ValueError(f"{name}={text} has an empty value: remove a comma")
        if found := _RANGE.fullmatch(item):
            first, last = int(found[1]), int(found[2])
            if first > last:
                raise ValueError(f"{name} is {item}: give the smaller number first")
            if last - first >= MOST:
                raise ValueError(f"{name} is {item}: give at most {MOST:,} values")
            yield from map(str, range(first, last + 1))
        else:
            yield item


def _split(name: str, text: str) -> list[str]:
    """``text`` split at commas outside brackets and quotes."""
    pieces, open_brackets, quote = [""], "", ""
    for character in text:
        begins = not pieces[-1].strip() or pieces[-1].rstrip()[-1] in "[{(,:"
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and begins:  # inside a word, ' is an apostrophe
            quote = character
        elif character in _CLOSES:
            open_brackets += _CLOSES[character]
        elif open_brackets and character == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
        elif character == "," and not open_brackets:
            pieces.append("")
            continue
        pieces[-1] += character
    if quote or open_brackets:
        missing = quote or open_brackets[-1]
        raise ValueError(f"{name}={text} is not closed: add the missing {missing}")
    return pieces
