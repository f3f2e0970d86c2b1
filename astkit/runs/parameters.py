"""The parameters of a notebook: read from its parameters cell, and checked before anything runs."""

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
    """A notebook that can be run with other parameters; `read` makes one.

    Attributes:
        path: its absolute path.
        defaults: its parameters with the values that the cell tagged ``parameters`` gives them.
        code: eight hexadecimal digits of a hash of the source of its code cells.
    """

    path: Path
    defaults: dict[str, Any]
    code: str

    def check_names(self, names: Sequence[str]) -> None:
        """Raise ``ValueError`` for an unknown parameter, with similar names."""
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
        """``value`` in the type of the parameter's default.

        Whole numbers become floats where the default is one, a scalar becomes a list's only entry
        where it is a list, and a default of ``None`` takes anything. Raises ``ValueError`` for
        another type, an unknown name, or what JSON cannot hold.
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
        digest({name: fitted})  # raises for what a record cannot hold
        return fitted

    def from_text(self, name: str, text: str) -> Any:
        """The value that ``text`` stands for; see `fit`.

        JSON's literals, and Python's quoted texts, lists, tuples and mappings, are what they are.
        Anything else is a text, taken verbatim; so is all but a quoted text where the default is a
        text.
        """
        self.check_names([name])
        default, value = self.defaults[name], _literal(text)
        if isinstance(default, str) and not isinstance(value, str):
            value = text
        if isinstance(default, int | float) and isinstance(value, str):
            value = _number(value, type(default))
        if isinstance(default, list | tuple | dict) and value == text and text[:1] in ("[", "{"):
            raise ValueError(f"{name} is {text!r}: close its brackets, and quote the texts in them")
        return self.fit(name, value)

    def to_text(self, name: str, value: Any) -> str:
        """What `from_text` reads as ``value``."""
        verbatim = isinstance(self.defaults[name], str) and self.from_text(name, value) == value
        return str(value) if verbatim else json.dumps(value)

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters: the defaults, with what is ``given`` in their place; see `fit`."""
        self.check_names(list(given))
        return {**self.defaults, **{name: self.fit(name, given[name]) for name in given}}


def read(path: str | os.PathLike[str]) -> Notebook:
    """Read a notebook's parameters.

    Raises ``FileNotFoundError`` where there is none, ``ValueError`` for a file that is no notebook
    or a parameters cell that is not made of literals.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no notebook {path}")
    path = Path(path).resolve()
    try:
        cells = nbformat.read(path, 4).cells
        sources = [cell for cell in cells if cell.cell_type == "code"]
        tagged = [cell for cell in sources if "parameters" in cell.metadata.get("tags", [])]
        code = digest({"code": ["".join(cell.source) for cell in sources]})
    except Exception as error:  # nbformat raises whatever its reader stumbles over
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is no notebook: {reason[:300]}") from error
    return Notebook(path, _assigned(tagged[0].source, path.name) if tagged else {}, code)


def assignments(options: Sequence[str]) -> dict[str, str]:
    """``name=value`` options as a mapping; raises ``ValueError`` for another form or a repeat."""
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
    """The seed in the name of a run's folder: ``seed``, the only one of ``seeds``, or 0."""
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
    """The value of a literal in ``text``; ``text`` itself where it is none."""
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
        # entries of several types do not say which type another one has
        alike = len({type(entry) for entry in default}) == 1
        return type(default)(_fit(entry, default[0] if alike else None) for entry in entries)
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise TypeError
    return value


def _number(text: str, kind: type) -> Any:
    """Numbers as Python writes them, such as .5 or 1_000; other texts as they are."""
    try:
        return text if kind is bool else kind(text)
    except ValueError:
        return text
