"""Grids of parameters: ``0.05,0.1,0.2``, ``0..4``, and what they multiply out to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from astkit.runs.parameters import Notebook, assignments

_RANGE = re.compile(r"([+-]?\d+)\.\.([+-]?\d+)")
_CLOSES = {"[": "]", "{": "}", "(": ")"}


def from_options(notebook: Notebook, options: Sequence[str]) -> dict[str, list[Any]]:
    """The grid that ``name=values`` options give, values in the types of the defaults.

    Values are separated by commas outside brackets and quotes; ``a..b`` are the integers from ``a``
    to ``b``, both included; each value is a JSON or YAML literal. Raises ``ValueError`` for names
    that the notebook does not know and values of another type.
    """
    texts = assignments(options)
    notebook.check_names(list(texts))
    return {
        name: [notebook.from_text(name, item) for item in _items(name, text)]
        for name, text in texts.items()
    }


def combinations(notebook: Notebook, grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last name varying fastest.

    Args:
        notebook: whose parameters they are.
        grid: by name, a list, tuple, range or array of values, or one value that does not vary.

    Raises:
        ValueError: for an unknown name, a value of another type, no values, or one twice.
    """
    notebook.check_names(list(grid))
    columns = {name: _column(notebook, name, values) for name, values in grid.items()}
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values are not the same in all rows."""
    names = rows[0] if rows else {}
    return [name for name in names if any(row[name] != rows[0][name] for row in rows)]


def _column(notebook: Notebook, name: str, values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    several = isinstance(values, list | tuple | range)
    column = [notebook.fit(name, value) for value in (values if several else [values])]
    if not column:
        raise ValueError(f"{name} has no values: give one or more")
    shown = [repr(value) for value in column]  # True is no 1, though Python finds them equal
    for index, value in enumerate(column):
        if shown[index] in shown[:index]:
            raise ValueError(f"{name} holds {value!r} twice: give each value once")
    return column


def _items(name: str, text: str) -> Iterator[str]:
    items = [item.strip() for item in _split(name, text)]
    for item in items:
        if not item and len(items) > 1:
            raise ValueError(f"{name}={text} has an empty value: take out a comma")
        if found := _RANGE.fullmatch(item):
            first, last = int(found[1]), int(found[2])
            if first > last:
                raise ValueError(f"{name} is {item}: give the smaller number first")
            yield from map(str, range(first, last + 1))
        else:
            yield item


def _split(name: str, text: str) -> list[str]:
    """``text`` in pieces, apart at commas outside brackets and quotes."""
    pieces, open_brackets, quote = [""], "", ""
    for character in text:
        begins = not pieces[-1].strip() or pieces[-1].rstrip()[-1] in "[{(,:"
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and begins:  # inside a word it is an apostrophe
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
