"""Parameters of a notebook, and grids of them: read, checked before execution, written as text."""

from __future__ import annotations

import ast
import csv
import difflib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import numpy as np

from astkit.runs.record import digest

MOST = 100_000  # combinations of one grid: more are probably a typing error

_RANGE = re.compile(r"(?<![\w.])([+-]?\d+)\.\.([+-]?\d+)(?![\w.])")
_EXAMPLE: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list such as [1, 2]",
    tuple: "a list such as [1, 2]",
    dict: 'a mapping such as {"a": 1}',
}


@dataclass(frozen=True)
class Notebook:
    """A notebook with its parameters; created by `read`.

    Attributes:
        path: its absolute path.
        defaults: parameters and default values, from the cell tagged ``parameters``.
        code: eight hexadecimal digits of a hash over its code cells.
    """

    path: Path
    defaults: dict[str, Any]
    code: str

    def default(self, name: str) -> Any:
        """The default of a parameter; ``ValueError`` for an unknown one, with similar names."""
        if name in self.defaults:
            return self.defaults[name]
        near = difflib.get_close_matches(name, self.defaults, n=2)
        if not self.defaults:
            remedy = "tag its first code cell 'parameters'"
        elif near:
            remedy = f"did you mean {' or '.join(near)}?"
        else:
            remedy = f"choose from {', '.join(self.defaults)}"
        raise ValueError(f"{self.path.name} has no parameter {name!r}: {remedy}")

    def fit(self, name: str, value: Any) -> Any:
        """``value`` converted to the type of the parameter's default.

        Integers are converted to float if the default is a float, a scalar becomes a list if it is
        a list, and a default of ``None`` accepts anything. Raises ``ValueError`` for
        other types, unknown names, and values that JSON cannot represent.
        """
        default = self.default(name)
        try:
            fitted = _fit(value, default)
        except TypeError:
            kind = _EXAMPLE.get(type(default), f"a {type(default).__name__}")
            if isinstance(default, list | tuple) and default:
                kind += f", of entries like {default[0]!r}"
            raise ValueError(
                f"{name} is {value!r}, but its default in {self.path.name} is {default!r}:"
                f" give {kind}"
            ) from None
        digest({name: fitted})  # raises for values that JSON cannot represent
        return fitted

    def from_text(self, name: str, text: str) -> Any:
        """The value in ``text``: verbatim if the default is a string, else a literal; see `fit`.

        Literals are those of JSON and of Python; anything else is a string.
        """
        return self.fit(name, text if isinstance(self.default(name), str) else literal(text))

    def given(self, options: Sequence[str]) -> dict[str, Any]:
        """The values in ``name=value`` options; see `from_text` and `assignments`."""
        return {name: self.from_text(name, text) for name, text in assignments(options).items()}

    def to_text(self, name: str, value: Any) -> str:
        """Text that `from_text` parses to ``value``."""
        return value if isinstance(self.defaults[name], str) else json.dumps(value)

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters: the defaults, updated with ``given``; see `fit`."""
        return {**self.defaults, **{name: self.fit(name, given[name]) for name in given}}

    def grid(self, options: Sequence[str]) -> dict[str, list[Any]]:
        """The values given by ``name=values`` options, in the types of the defaults.

        Values are separated by commas: literals, or words, which need quotes only if they contain
        commas; ``a..b`` is the range of integers from ``a`` to ``b``, both included. Raises
        ``ValueError`` for unknown names and values of another type.
        """
        return {name: self._values(name, text) for name, text in assignments(options).items()}

    def _values(self, name: str, text: str) -> list[Any]:
        if not isinstance(self.default(name), str):
            ranges = _RANGE.sub(lambda found: _range(name, *map(int, found.groups())), text)
            found = literal(f"[{ranges}]")
            if isinstance(found, list):
                return [self.fit(name, value) for value in found]
            if set(text) & set("[{("):
                raise ValueError(f"{name} is {text!r}: close its brackets, and quote its strings")
        words = next(csv.reader([text], quotechar='"' if '"' in text else "'"))
        return [self.from_text(name, word.strip()) for word in words or [""]]

    def combinations(self, grid: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every combination of a grid's values, the last name varying fastest.

        ``grid`` maps names to a list, tuple, range or array of values, or to one constant value.
        Raises ``ValueError`` for an unknown name, a value of another type, no values, duplicates,
        or more than `MOST` combinations.
        """
        columns = {name: self._column(name, values) for name, values in grid.items()}
        if (count := math.prod(map(len, columns.values()))) > MOST:
            raise ValueError(f"these are {count:,} combinations: give at most {MOST:,}")
        rows = itertools.product(*columns.values())
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _column(self, name: str, values: Any) -> list[Any]:
        several = isinstance(values, list | tuple | range | np.ndarray)
        column = [self.fit(name, value) for value in (values if several else [values])]
        if not column:
            raise ValueError(f"{name} has no values: give one or more")
        counts = Counter(map(repr, column))  # True is not 1, although they are equal
        text, count = counts.most_common(1)[0]
        if count > 1:
            raise ValueError(f"{name} contains {text} twice: give each value once")
        return column


def read(path: str | os.PathLike[str]) -> Notebook:
    """Read a notebook's parameters.

    Raises ``FileNotFoundError`` for a missing file, ``ValueError`` for a file that is not a
    notebook or a parameters cell that contains non-literals.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no notebook {path}")
    path = Path(path).resolve()
    try:
        cells = nbformat.read(path, 4).cells
        sources = [cell for cell in cells if cell.cell_type == "code"]
        tagged = [cell for cell in sources if "parameters" in cell.metadata.get("tags", [])]
        code = digest({"code": ["".join(cell.source) for cell in sources]})
    except Exception as error:  # nbformat may raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a notebook: {reason[:300]}") from error
    return Notebook(path, _assigned(tagged[0].source, path.name) if tagged else {}, code)


def assignments(options: Sequence[str]) -> dict[str, str]:
    """``name=value`` options as a mapping; raises ``ValueError`` for invalid or repeated ones."""
    found: dict[str, str] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ValueError(f"-p got {option!r}: give name=value")
        if name.strip() in found:
            raise ValueError(f"-p gives {name.strip()} twice: give it once")
        found[name.strip()] = text
    return found


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values differ between rows."""
    names = rows[0] if rows else {}
    return [name for name in names if any(row[name] != rows[0][name] for row in rows)]


def seed_of(parameters: Mapping[str, Any]) -> int:
    """The seed for the run folder's name: ``seed``, the only entry of ``seeds``, or 0."""
    seed = parameters.get("seed", parameters.get("seeds", 0))
    if isinstance(seed, list | tuple) and len(seed) == 1:
        seed = seed[0]
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else 0


def _assigned(source: str, notebook: str) -> dict[str, Any]:
    """Names and values of the assignments of literals in ``source``."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"the parameters cell of {notebook} is not plain Python ({error}): move all but"
            " assignments to another cell"
        ) from error
    values = {}
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            name = ast.unparse(target)
            try:
                values[name] = ast.literal_eval(statement.value)
            except (ValueError, TypeError):
                raise ValueError(
                    f"parameter {name} of {notebook} is {ast.unparse(statement.value)!r}: give it a"
                    " literal, and compute in the next cell"
                ) from None
    return values


def literal(text: str) -> Any:
    """The value of a literal in ``text``, or ``text`` itself if it is not a literal."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text.strip())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return text


def _range(name: str, first: int, last: int) -> str:
    if first > last:
        raise ValueError(f"{name} is {first}..{last}: give the smaller number first")
    if last - first >= MOST:
        raise ValueError(f"{name} is {first}..{last}: give at most {MOST:,} values")
    return ",".join(map(str, range(first, last + 1)))


def _fit(value: Any, default: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if default is None:
        return value
    if isinstance(default, list | tuple):
        entries = value if isinstance(value, list | tuple) else [value]
        # entries of mixed types do not determine the type of a new entry
        alike = len({type(entry) for entry in default}) == 1
        return type(default)(_fit(entry, default[0] if alike else None) for entry in entries)
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise TypeError
    return value
