"""Modules of astkit that a notebook requires; raises for imports missing in Kaggle's image."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from astkit.names import PUBLIC, REGISTRIES

PACKAGE, TABLE = "astkit", "astkit.names"
ROOT = Path(__file__).parents[2]  # parent folder of the package
# packages of Kaggle's image; anywidget, papermill and NVML are not in all of its versions
IMAGE = {"IPython", "PIL", "filelock", "ipywidgets", "matplotlib", "numpy", "pandas", "psutil"}
IMAGE |= {"pyarrow", "safetensors", "scipy", "sklearn", "torch", "torchvision", "tqdm"}

_TYPING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
_LOOK_UPS = {"resolve", "REGISTRIES"}  # of the table: they can name any registered object


class Import(NamedTuple):
    """One import: its module, the names taken from it, its line, and whether it is optional."""

    module: str
    names: tuple[str, ...]
    line: int
    optional: bool


def closure(cells: Mapping[str, str]) -> dict[str, str]:
    """Path below `ROOT` (with "/") to source, for all modules required by ``cells``, sorted.

    ``cells`` maps a label for messages to plain Python. Imports are followed through functions,
    packages and the table of names. Raises ``ValueError`` for an import not found in Python,
    Kaggle's image or the package, unless it is optional or only required by an optional one.
    """
    found: dict[str, Path] = {}
    required: set[str] = set()  # reached without an optional import
    waiting = [(label, source, True) for label, source in cells.items()]
    while waiting:
        label, source, needed = waiting.pop()
        for each in imports(source, label):
            must = needed and not each.optional
            for module in _modules(each):
                if module in required or (module in found and not must):
                    continue
                if path := _path(module):
                    found[module] = path
                    required |= {module} if must else set()
                    waiting.append((module, path.read_text(encoding="utf-8"), must))
                elif must:
                    _check_image(each, module, label)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(found.values())}
    return {path.relative_to(ROOT).as_posix(): text for path, text in texts.items()}


@cache  # the modules of a second notebook are mostly those of the first
def imports(source: str, label: str) -> list[Import]:
    """Imports of ``source``; use of the package's attributes counts as import of their names.

    Imports within functions and other blocks are optional, those under ``if TYPE_CHECKING`` do not
    count. Raises ``ValueError`` for a relative import, with ``label`` in its message.
    """
    nodes = list(_nodes(ast.parse(source)))
    found, kits = [], set()  # kits: names bound to the package
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append(Import(alias.name, (), node.lineno, node.col_offset > 0))
                if alias.name == PACKAGE or (not alias.asname and _top(alias.name) == PACKAGE):
                    kits.add(alias.asname or PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(
                    f"{label} has a relative import (line {node.lineno}): write the full name"
                )
            names = tuple(alias.name for alias in node.names)
            found.append(Import(node.module, names, node.lineno, node.col_offset > 0))
    used = [node for node in nodes if isinstance(node, ast.Attribute) and _is(node.value, kits)]
    # used otherwise than by attribute: names unknown from the source
    unknown = sum(_is(node, kits) for node in nodes) > len(used)
    names = tuple(PUBLIC) if unknown else tuple(node.attr for node in used)
    return [*found, Import(PACKAGE, names, 0, False)] if names else found


def _is(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Each node, parents first, without those under ``if TYPE_CHECKING``."""
    yield node
    typing = isinstance(node, ast.If) and ast.unparse(node.test) in _TYPING
    for child in node.orelse if isinstance(node, ast.If) and typing else ast.iter_child_nodes(node):
        yield from _nodes(child)


def _modules(each: Import) -> Iterator[str]:
    """Modules that an import loads, parents included."""
    loaded = [each.module]
    if _top(each.module) == PACKAGE:
        # a name may be a module, or an attribute of a module
        inner = [f"{each.module}.{name}" for name in each.names]
        loaded += [module for module in inner if _path(module)]
        if each.module == PACKAGE:
            loaded += [PUBLIC[name] for name in each.names if name in PUBLIC]
        looked_up = not each.names or _LOOK_UPS & {*each.names}
        if TABLE in inner or (each.module == TABLE and looked_up):
            entries = (entry for table in REGISTRIES.values() for entry in table.values())
            loaded += [TABLE, *(entry.partition(":")[0] for entry in entries)]
    for module in loaded:
        parts = module.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _check_image(each: Import, module: str, label: str) -> None:
    if _top(module) == PACKAGE:
        raise ValueError(f"{label} imports {module}, which {ROOT / PACKAGE} does not have")
    if _top(module) not in IMAGE | sys.stdlib_module_names:
        raise ValueError(
            f"{label} imports {each.module} (line {each.line}), which Kaggle's image does not have:"
            " remove what needs it, or import it within try ... except ImportError"
        )


def _path(module: str) -> Path | None:
    """File of a module of the package; ``None`` for others."""
    if _top(module) != PACKAGE:
        return None
    base = ROOT.joinpath(*module.split("."))
    places = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((path for path in places if path.is_file()), None)


def _top(module: str) -> str:
    return module.partition(".")[0]
