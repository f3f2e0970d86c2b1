"""Imports of a source, parsed from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import resolve_name
from typing import NamedTuple

PACKAGE = "astkit"
TABLE = "astkit.names"
ALL = "*"  # names unknown from the source

_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Import(NamedTuple):
    """One import: its module, the names taken from it, its line, and whether it may fail."""

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

    Imports within functions count, those under ``if TYPE_CHECKING`` do not. An import is optional
    if a surrounding ``try`` or ``suppress`` catches ImportError. ``resolve(kind, ...)`` and
    ``REGISTRIES[kind]`` of astkit.names use that kind. Raises ``ValueError`` for an
    ``import_module`` whose argument is not a literal.
    """
    reader = _Reader(label, package)
    reader.visit(ast.parse(source))
    return reader.uses


class _Reader(ast.NodeVisitor):
    def __init__(self, label: str, package: str) -> None:
        self.label, self.package = label, package
        self.uses = Uses()
        self._caught = False
        self._kits: set[str] = set()  # names bound to the package
        self._tables: set[str] = set()  # names bound to resolve and REGISTRIES

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, (), node.lineno)
            if alias.name == PACKAGE or (alias.name.startswith(f"{PACKAGE}.") and not alias.asname):
                self._kits.add(alias.asname or PACKAGE)
            if alias.name == TABLE:
                self.uses.kinds.add(ALL)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            module = resolve_name("." * node.level + module, self.package)
        names = tuple(alias.name for alias in node.names)
        self._add(module, names, node.lineno)
        if module == PACKAGE:
            self.uses.public.update(names)
        for alias in node.names:
            if module == TABLE and alias.name in ("resolve", "REGISTRIES"):
                self._tables.add(alias.asname or alias.name)
            elif (module, alias.name) == (PACKAGE, "names"):
                self.uses.kinds.add(ALL)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        for statement in node.orelse:
            self.visit(statement)

    def visit_Try(self, node: ast.Try) -> None:
        catches = any(_catches(handler.type) for handler in node.handlers)
        self._visit_all(node.body, catches)
        self._visit_all([*node.handlers, *node.orelse, *node.finalbody], False)

    def visit_With(self, node: ast.With) -> None:
        calls = [item.context_expr for item in node.items]
        catches = any(
            isinstance(call, ast.Call)
            and ast.unparse(call.func).endswith("suppress")
            and any(map(_catches, call.args))
            for call in calls
        )
        self._visit_all([*node.items, *node.body], catches)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called in self._tables and node.args:
            self.uses.kinds.add(_text(node.args[0]) or ALL)
            self._visit_all([*node.args, *node.keywords], False)
            return
        if called in ("import_module", "importlib.import_module", "__import__"):
            module = _text(node.args[0]) if node.args else None
            if module is None:
                raise ValueError(
                    f"{self.label} imports a module by a computed name (line {node.lineno}),"
                    " which cannot be exported: write the name as a literal"
                )
            self._add(module, (), node.lineno)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._tables:
            self.uses.kinds.add(_text(node.slice) or ALL)
            self.visit(node.slice)
            return
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._kits:
            self.uses.public.add(node.attr)
            return
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._kits:
            self.uses.public.add(ALL)
        if node.id in self._tables:
            self.uses.kinds.add(ALL)

    def _add(self, module: str, names: tuple[str, ...], line: int) -> None:
        self.uses.imports.append(Import(module, names, line, self._caught))

    def _visit_all(self, nodes: Sequence[ast.AST], catches: bool) -> None:
        before, self._caught = self._caught, self._caught or catches
        for node in nodes:
            self.visit(node)
        self._caught = before


def _catches(kind: ast.expr | None) -> bool:
    """Whether ``except kind`` catches ImportError."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or ast.unparse(each) in _CAUGHT for each in kinds)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
