"""Parts of a notebook: its parameters, and its cells as plain Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

PARAMETERS = "parameters"  # papermill's tag
BUDGET = "time_budget_h"
BUDGET_LINE = f"{BUDGET} = 0  # hours after which runs are saved and ended; 0 sets no limit"

_SHELL = re.compile(r"get_ipython\(\)\.(system|getoutput)\(")  # as IPython writes ! and !!


class Parts(NamedTuple):
    """Cells before the parameters, the parameters, and cells after them.

    ``first``: number of the first code cell after the parameters.
    """

    head: list[NotebookNode]
    parameters: NotebookNode
    body: list[NotebookNode]
    first: int


def open_notebook(path: Path) -> Parts:
    """The notebook at ``path``, with the time budget added to its parameters.

    Raises ``FileNotFoundError`` if it does not exist, and ``ValueError`` for a file that is not a
    notebook and for code before the parameters.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}")
    try:
        cells = nbformat.read(path, as_version=4).cells
        tagged = (i for i, cell in enumerate(cells) if PARAMETERS in cell.metadata.get("tags", []))
        first_code = (i for i, cell in enumerate(cells) if cell.cell_type == "code")
        place, first = next(tagged, None), next(first_code, len(cells))
        known = {} if place is None else literals(cells[place].source)
    except Exception as error:  # nbformat may raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a notebook: {reason[:300]}") from error
    if place is None:
        made = nbformat.v4.new_code_cell(BUDGET_LINE, metadata={"tags": [PARAMETERS]})
        return Parts(cells[:first], made, cells[first:], 1)
    if place != first:
        raise ValueError(f"{path}: the parameters cell must be the first code cell")
    parameters = cells[place]
    if BUDGET not in known:
        parameters.source = f"{parameters.source}\n{BUDGET_LINE}"
    return Parts(cells[:place], parameters, cells[place + 1 :], 2)


def literals(parameters: str) -> dict[str, Any]:
    """Values of the names assigned in a parameters cell; ``None`` for what is not a literal."""
    found: dict[str, Any] = {}
    for name, node in _assigned(parameters):
        try:
            found[name] = ast.literal_eval(node)
        except (TypeError, ValueError):  # a list as a key is a TypeError
            found[name] = None
    return found


def replaced(parameters: str, values: dict[str, Any]) -> str:
    """Source of a parameters cell with ``values`` in the place of its own; comments stay."""
    code = parameters.encode()  # columns of the syntax tree count bytes
    starts = [0, *accumulate(len(line) for line in code.splitlines(keepends=True))]
    for name, node in reversed(_assigned(parameters)):
        if name in values:
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            code = code[:start] + repr(values[name]).encode() + code[end:]
    return code.decode()


def _assigned(parameters: str) -> list[tuple[str, ast.expr]]:
    found = []
    for node in ast.parse(parameters).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found.append((name, value))
    return found


def plain(body: list[NotebookNode], first: int) -> dict[str, str]:
    """Label (counted from ``first``) to Python source per code cell; magics become calls.

    Raises ``ValueError`` for a cell with a shell command or another language, or with invalid
    syntax.
    """
    codes = (cell.source for cell in body if cell.cell_type == "code")
    labels = {f"code cell {number}": source for number, source in enumerate(codes, first)}
    return {label: _plain(source, label) for label, source in labels.items()}


def _plain(source: str, label: str) -> str:
    try:
        code = TransformerManager().transform_cell(source)
        ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"{label} is not Python: {error.msg} (line {error.lineno})") from None
    if source.lstrip().startswith("%%"):
        raise ValueError(
            f"{label} is a {source.split()[0]} cell, which cannot be exported: write it in Python"
        )
    if _SHELL.search(code) and not _SHELL.search(source):
        raise ValueError(f"{label} runs a shell command (!), which cannot be exported: remove it")
    return code


def check_values(values: dict[str, Any], known: Collection[str]) -> None:
    """Raise ``ValueError`` for a value that is not a literal or not in ``known``."""
    for name, value in values.items():
        if name not in known:
            raise ValueError(
                f"{name!r} is not a parameter of the notebook: choose from"
                f" {', '.join(sorted(known))}"
            )
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise ValueError(f"{name} is {value!r}: pass a number, a string, a list or None")
