"""Modules of astkit that a notebook requires; raises for imports missing in Kaggle's image."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from astkit.export.imports import ALL, PACKAGE, TABLE, Import, Uses, read

ROOT = Path(__file__).parents[2]  # parent folder of the package
# packages of Kaggle's image; anywidget, papermill and NVML are not in all of its versions
IMAGE = {"IPython", "PIL", "filelock", "ipywidgets", "matplotlib", "numpy", "pandas", "psutil"}
IMAGE |= {"pyarrow", "safetensors", "scipy", "sklearn", "torch", "torchvision", "tqdm"}


def closure(cells: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Path below ``root`` (with "/") to source, for all modules required by ``cells``, sorted.

    ``cells`` maps a label for messages to plain Python. Imports are followed through functions,
    packages and the table of names. Raises ``ValueError`` for an import not found in Python,
    Kaggle's image or the package, unless it is optional or only required by an optional one.
    """
    return _Closure(root, cells).sources()


def has(module: str) -> bool:
    """Whether ``module`` (dotted) is part of Python or of Kaggle's image."""
    top = module.partition(".")[0]
    return top in IMAGE or top in sys.stdlib_module_names


class _Closure:
    def __init__(self, root: Path, cells: Mapping[str, str]) -> None:
        self.root = root
        self.tables = _tables(root)
        self.found: dict[str, Path] = {}
        self.required: set[str] = set()  # reached without an optional import
        self.waiting: list[tuple[str, str, bool]] = []
        for label, source in cells.items():
            self._follow(read(source, label), label, True)
        while self.waiting:
            self._visit(*self.waiting.pop())

    def sources(self) -> dict[str, str]:
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(self.found.values())}
        return {path.relative_to(self.root).as_posix(): text for path, text in texts.items()}

    def _visit(self, module: str, why: str, required: bool) -> None:
        if module in self.required or (module in self.found and not required):
            return
        path = self._path(module)
        if path is None and not required:
            return
        if path is None:
            raise ValueError(f"{why} imports {module}, which {self.root / PACKAGE} does not have")
        self.found[module] = path
        if required:
            self.required.add(module)
        if module in (PACKAGE, TABLE):  # they import by table; used entries are followed
            self._want([TABLE], module, required)
            return
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        self._follow(read(path.read_text(encoding="utf-8"), module, package), module, required)

    def _follow(self, uses: Uses, label: str, required: bool) -> None:
        for each in uses.imports:
            if each.module.partition(".")[0] == PACKAGE:
                self._want(self._modules(each), label, required and not each.optional)
            elif required and not each.optional and not has(each.module):
                raise ValueError(
                    f"{label} imports {each.module} (line {each.line}), which Kaggle's image does"
                    " not have: remove what needs it, or import it within try ... except"
                    " ImportError"
                )
        public, registries = self.tables
        for name, module in public.items():
            if uses.public & {name, ALL}:
                self._want([module], label, required)
        for kind, table in registries.items():
            if uses.kinds & {kind, ALL}:
                self._want([entry.partition(":")[0] for entry in table.values()], label, required)
        if uses.kinds:
            self._want([TABLE], label, required)

    def _modules(self, each: Import) -> Iterable[str]:
        yield each.module
        # a name may be a module, or an attribute of a module
        inner = (f"{each.module}.{name}" for name in each.names)
        yield from (module for module in inner if self._path(module) is not None)

    def _want(self, modules: Iterable[str], why: str, required: bool) -> None:
        for module in modules:
            parts = module.split(".")
            parents = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
            self.waiting += [(parent, why, required) for parent in parents]

    def _path(self, module: str) -> Path | None:
        base = self.root.joinpath(*module.split("."))
        places = (base / "__init__.py", base.with_name(f"{base.name}.py"))
        return next((path for path in places if path.is_file()), None)


def _tables(root: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """PUBLIC and REGISTRIES of astkit.names, parsed as literals."""
    values: dict[str, Any] = {}
    for node in ast.parse((root / PACKAGE / "names.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            values[node.target.id] = ast.literal_eval(node.value)
    return values["PUBLIC"], values["REGISTRIES"]
