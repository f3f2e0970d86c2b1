"""Parameters of a notebook: read from its parameters cell, and checked before execution."""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import numpy as np

from astkit.runs.record import digest

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
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

    def check_names(self, names: Sequence[str]) -> None:
        """Raise ``ValueError`` for an unknown parameter, suggesting similar names."""
        unknown = [name for name in names if name not in self.defaults]
        if not unknown:
            return
        near = difflib.get_close_matches(unknown[0], self.defaults, n=2)
        if not self.defaults:
            remedy = "tag its first code cell 'parameters'"
        elif near:
            remedy = f"did you mean {' or '.join(near)}?"
        else:
            remedy = f"choose from {', '.join(self.defaults)}"
        raise ValueError(f"{self.path.name} has no parameter {unknown[0]!r}: {remedy}")

    def fit(self, name: str, value: Any) -> Any:
        """``value`` converted to the type of the parameter's default.

        Integers are converted to float if the default is a float, a scalar becomes a list if it is
        a list, and a default of ``None`` accepts anything. Raises ``ValueError`` for
        other types, unknown names, and values that JSON cannot represent.
        """
        self.check_names([name])
        default = self.defaults[name]
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
        """The value parsed from ``text``; see `fit`.

        JSON literals, and Python's quoted strings, lists, tuples and dicts, are parsed. Anything
        else is a string, taken verbatim; if the default is a string, only quoted strings are
        parsed.
        """
        self.check_names([name])
        default, value = self.defaults[name], _literal(text)
        if isinstance(default, str) and not isinstance(value, str):
            value = text
        if isinstance(default, int | float) and isinstance(value, str):
            value = _number(value, type(default))
        if isinstance(default, list | tuple | dict) and value == text and text[:1] in ("[", "{"):
            raise ValueError(f"{name} is {text!r}: close its brackets, and quote strings in them")
        return self.fit(name, value)

    def to_text(self, name: str, value: Any) -> str:
        """Text that `from_text` parses to ``value``."""
        verbatim = isinstance(self.defaults[name], str) and self.from_text(name, value) == value
        return str(value) if verbatim else json.dumps(value)

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters: the defaults, updated with ``given``; see `fit`."""
        self.check_names(list(given))
        return {**self.defaults, **{name: self.fit(name, given[name]) for name in given}}


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


def seed_of(parameters: Mapping[str, Any]) -> int:
    """The seed for the run folder's name: ``seed``, the only entry of ``seeds``, or 0."""
    seeds = [parameters[name] for name in ("seed", "seeds") if name in parameters]
    seed = seeds[0] if seeds else 0
    if isinstance(seed, list | tuple) and len(seed) == 1:
        seed = seed[0]
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else 0


def _assigned(source: str, notebook: str) -> dict[str, Any]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "text", None) or ""
        raise ValueError(
            f"the parameters cell of {notebook} is not plain Python ({line.strip()!r}): move all"
            " but assignments to another cell"
        ) from error
    values = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            names, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            names, value = [statement.target], statement.value
        else:
            continue
        for name in map(ast.unparse, names):
            try:
                values[name] = ast.literal_eval(value)
            except (ValueError, TypeError):
                raise ValueError(
                    f"parameter {name} of {notebook} is {ast.unparse(value)!r}: give it a literal,"
                    " and compute in the next cell"
                ) from None
    return values


def _literal(text: str) -> Any:
    """The value of a literal in ``text``, or ``text`` itself if it is not a literal."""
    words = text.strip()
    try:
        return json.loads(words, strict=False)
    except (ValueError, RecursionError):
        pass
    if not words.startswith(("[", "{", "(")) and not _QUOTED.fullmatch(words):
        return text
    try:
        return ast.literal_eval(words)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


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


def _number(text: str, kind: type) -> Any:
    """A number in Python syntax, such as .5 or 1_000; otherwise the text itself."""
    try:
        return text if kind is bool else kind(text)
    except ValueError:
        return text
