"""Export as one Python file: settings, modules, start, and the cells as plain code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from astkit.export import cells
from astkit.export.bundle import Bundle, guard, module_source
from astkit.export.imports import PACKAGE

_VALUES = "# What is written here replaces the values above."
_SHOWN_ALREADY = ("print", "display")


def text(made: Bundle) -> str:
    """The script's source.

    The modules are unpacked into a folder named by their hash and verified there, so that
    tracebacks and ``inspect.getsource`` find them. The last expression of a cell is shown as in a
    notebook, ``await`` blocks, line magics are comments. Raises ``ValueError`` for asynchronous
    code other than ``await`` at the top level of a cell.
    """
    about = f"{made.name}, from {made.stamp}, in one file: edit its settings, run it."
    parts = [
        repr(about),  # a valid literal for any file name
        f"# %% Settings\n{made.parameters}",
        f"{_VALUES}\n{cells.override(made.values)}",
        f"# %% The package: one entry a module\nMODULES = {{}}\n{_modules(made)}",
        f"# %% Unpack and check\n{guard(made)}\n\n{module_source('unpack')}",
        module_source("verify"),
        _begin(made),
        *_body(made),
    ]
    return "\n\n\n".join(parts) + "\n"


def _modules(made: Bundle) -> str:
    return "\n".join(f"MODULES[{name!r}] = {_literal(text)}" for name, text in made.modules.items())


def _literal(source: str) -> str:
    """``source`` as a literal, raw and triple-quoted if possible."""
    for quotes in ("'''", '"""'):
        if quotes not in source and not source.endswith((quotes[0], "\\")):
            return f"r{quotes}{source}{quotes}"
    lines = source.splitlines(keepends=True)
    return "(\n" + "".join(f"    {line!r}\n" for line in lines) + ")"


def _begin(made: Bundle) -> str:
    return f"""# %% Start
HOME = unpack(MODULES, Path.cwd() / f"{PACKAGE}-{{SOURCE[:12]}}")
use(HOME / "{PACKAGE}", SOURCE)

{made.start}"""


def _body(made: Bundle) -> Iterator[str]:
    sources = cells.plain(made.body, made.first)
    labels = iter(sources)
    for cell in made.body:
        if cell.cell_type == "code":
            label = next(labels)
            yield f"# %%\n{_as_script(sources[label], label)}"
        elif cell.cell_type == "markdown":
            # split at all line ends of Python, not only "\\n"
            yield "\n".join(
                ["# %% [markdown]", *(f"# {x}".rstrip() for x in cell.source.splitlines())]
            )


def _as_script(source: str, label: str) -> str:
    """``source`` with awaits replaced by blocking calls, and its last expression displayed."""
    edits: list[tuple[tuple[int, int], tuple[int, int], str]] = []
    tree = ast.parse(source)
    for node in _top_level(tree):
        if isinstance(node, ast.Await):
            if any(isinstance(inner, ast.Await) for inner in _top_level(node.value)):
                raise ValueError(f"{label} awaits within an await: give the inner one a name")
            line, column = _at(node)
            edits.append(((line, column), (line, column + len("await")), "STAGE.wait(lambda:"))
            edits.append((_end(node), _end(node), ")"))
        elif isinstance(node, ast.AsyncFor | ast.AsyncWith) or getattr(node, "is_async", False):
            raise ValueError(
                f"{label} has an asynchronous loop or with at its top level, which a script"
                " cannot run: put it into a function and await that"
            )
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not _shows_itself(last, source):
        edits.insert(0, (_at(last), _at(last), "STAGE.show("))
        edits.append((_end(last), _end(last), ")"))
    return _edited(source, edits)


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes below ``tree`` outside functions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _top_level(node)


def _shows_itself(last: ast.Expr, source: str) -> bool:
    called = last.value.func if isinstance(last.value, ast.Call) else None
    named = isinstance(called, ast.Name) and called.id in _SHOWN_ALREADY
    return named or source.rstrip().endswith(";")


def _at(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _edited(source: str, edits: list[tuple[tuple[int, int], tuple[int, int], str]]) -> str:
    """``source`` with the text between each pair of (line, byte) positions replaced."""
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    pieces, done = [], 0
    content = source.encode()
    for begin, end, replacement in sorted(edits, key=lambda edit: edit[0]):
        first, last = (starts[line - 1] + column for line, column in (begin, end))
        pieces += [content[done:first], replacement.encode()]
        done = max(done, last)
    return b"".join([*pieces, content[done:]]).decode()
