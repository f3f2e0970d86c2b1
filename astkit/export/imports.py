"""Imports of a source, parsed from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import resolve_name
from typing import NamedTuple

PACKAGE = "astkit"
TABLE = "astkit.names"
ALL = "*"  # names unknown from the source

_TYPING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
_IMPORTERS = ("import_module", "importlib.import_module", "__import__")


class Import(NamedTuple):
    """One import: its module, the names taken from it, its line, and whether it is optional."""

    module: str
    names: tuple[str, ...]
    line: int
    optional: bool


@dataclass
class Uses:
    """Imports, names of ``astkit`` itself, and kinds of registries used by a source."""

    imports: list[Import] = field(default_factory=list)
    public: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


def read(source: str, label: str, package: str = "") -> Uses:
    """Names used by ``source``, a module of ``package``; ``label`` names it in messages.

    Imports within functions and other blocks count as optional, those under ``if TYPE_CHECKING`` do
    not count. ``resolve(kind, ...)`` and ``REGISTRIES[kind]`` of astkit.names use that kind. Raises
    ``ValueError`` for an ``import_module`` whose argument is not a literal.
    """
    uses = Uses()
    kits: set[str] = set()  # names bound to the package
    tables: set[str] = set()  # names bound to resolve and REGISTRIES
    nodes = list(_nodes(ast.parse(source)))
    for node in nodes:
        for module, names, line in _imported(node, label, package):
            optional = getattr(node, "col_offset", 0) > 0
            uses.imports.append(Import(module, names, line, optional))
        if isinstance(node, ast.Import | ast.ImportFrom):
            _bind(node, uses, kits, tables)
    known: set[ast.AST] = set()  # names whose use is known
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name) as used, attr=attribute) if name in kits:
                uses.public.add(attribute)
                known.add(used)
            case (
                ast.Call(func=ast.Name(id=name) as used, args=[ast.Constant(value=str(kind)), *_])
                | ast.Subscript(value=ast.Name(id=name) as used, slice=ast.Constant(str(kind)))
            ) if name in tables:
                uses.kinds.add(kind)
                known.add(used)
            case ast.Name(id=name) if node not in known:
                uses.public |= {ALL} if name in kits else set()
                uses.kinds |= {ALL} if name in tables else set()
    return uses


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Each node, parents first, without those under ``if TYPE_CHECKING``."""
    yield node
    typing = isinstance(node, ast.If) and ast.unparse(node.test) in _TYPING
    for child in node.orelse if isinstance(node, ast.If) and typing else ast.iter_child_nodes(node):
        yield from _nodes(child)


def _imported(
    node: ast.AST, label: str, package: str
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Modules that a node imports, the names taken from each, and the line."""
    match node:
        case ast.Import(names=names, lineno=line):
            yield from ((alias.name, (), line) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level, lineno=line):
            module = module or ""
            if level:
                module = resolve_name("." * level + module, package)
            yield module, tuple(alias.name for alias in names), line
        case ast.Call(args=[ast.Constant(value=str(module)), *_], lineno=line) if _imports(node):
            yield module, (), line
        case ast.Call(lineno=line) if _imports(node):
            raise ValueError(
                f"{label} imports a module by a computed name (line {line}),"
                " which cannot be exported: write the name as a literal"
            )


def _imports(call: ast.Call) -> bool:
    return ast.unparse(call.func) in _IMPORTERS


def _bind(node: ast.Import | ast.ImportFrom, uses: Uses, kits: set[str], tables: set[str]) -> None:
    """Add what an import of the package, or from it, makes available."""
    module = None if isinstance(node, ast.Import) else node.module
    for alias in node.names:
        bound = alias.asname or alias.name
        if module == PACKAGE:
            uses.public.add(alias.name)
        if module == TABLE and alias.name in ("resolve", "REGISTRIES"):
            tables.add(bound)
        if f"{module}.{alias.name}" == TABLE or (module is None and alias.name == TABLE):
            uses.kinds.add(ALL)
        if module is None and PACKAGE in (alias.name, bound.partition(".")[0]):
            kits.add(bound.partition(".")[0])
