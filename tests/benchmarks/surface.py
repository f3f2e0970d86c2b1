"""The public names on one page: `python -m tests.benchmarks.surface` writes docs/surface.md."""

from __future__ import annotations

import ast
import importlib
import json
import re
from inspect import ismodule
from itertools import pairwise
from pathlib import Path
from typing import Any

from astkit.files import write_atomic
from astkit.names import PUBLIC, REGISTRIES, resolve

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "surface.md"
PACKAGES = (
    "gating",
    "trainers",
    "profiling",
    "datasets",
    "widgets",
    "systems.lattice",
    "systems.automaton",
    "runs",
)


def sources() -> dict[str, set[str]]:
    """Names of astkit's in code: notebooks by number, README and docs, folders, benchmarks."""
    texts = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        texts[f"notebook {path.name[:2]}"] = imported("\n".join(code))
    pages = [ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path != PAGE)]
    shown = "\n".join(path.read_text(encoding="utf-8") for path in sorted(pages))
    blocks = re.findall(r"```python\n(.*?)```", shown, re.DOTALL)
    inline = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", shown, flags=re.DOTALL)))
    words = re.findall(r"[A-Z]\w+|\w+_\w+|(?<=astkit\.)\w+", inline)  # plain "load" may be no name
    texts["README, docs"] = {f"astkit.{word}" for word in words}.union(*map(imported, blocks))
    folders = sorted(path.parent for path in (ROOT / "astkit").glob("*/__init__.py"))
    for folder in [*folders, ROOT / "tests" / "benchmarks"]:
        files = (path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py")
        found = (imported(path.read_text(encoding="utf-8")) for path in files)
        texts[folder.name] = set().union(*found)
    return texts


def imported(code: str) -> set[str]:
    """What Python code imports from astkit, or takes from a module of it, by its full name."""
    tree = compile(code, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    bound, found = {"astkit": "astkit"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            bound |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            found.add(f"{bound.get(first)}.{rest}")
    return {name for name in found | {*bound.values()} if name.startswith("astkit.")}


def summary(value: Any) -> str:
    """The first sentence of a docstring, on one line."""
    return _line(getattr(value, "__doc__", ""))


def _line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split()).replace("|", "\\|")


def alias(package: str, name: str) -> str:
    """The text below an assignment to ``name`` in a module of ``package``, on one line."""
    for path in (ROOT / "astkit" / package).glob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, below in pairwise(body):
            named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
            if named and isinstance(below, ast.Expr):
                return _line(ast.literal_eval(below.value))
    return ""


def used(name: str, value: Any, texts: dict[str, set[str]], own: str) -> list[str]:
    """The places that use ``name``, its own folder left out; what has a name is found by it."""
    module = getattr(value, "__module__", "").replace(".", r"\.")
    full = re.compile(rf"(astkit|astkit\.{own}|astkit\.{own}\.\w+|{module})\.{name}")
    places = [
        place for place, names in texts.items() if place != own and any(map(full.fullmatch, names))
    ]
    known = {target.split(":")[1] for table in REGISTRIES.values() for target in table.values()}
    return [*places, *(["by name"] if name in known else [])]


def exported(package: str) -> list[str]:
    """The names that a part of astkit exports: those of its ``__init__``, without modules."""
    held = vars(importlib.import_module(f"astkit.{package}"))
    return sorted(name for name, each in held.items() if name[0] != "_" and not ismodule(each))


def rows() -> dict[str, list[tuple[str, str, list[str]]]]:
    """Sections of the page: name, one line, where it is used."""
    texts, sections = sources(), {}
    owners = {name: module.split(".")[1] for name, module in PUBLIC.items()}
    for package in ("", *PACKAGES):
        section = f"astkit.{package}".strip(".")
        names = sorted({*exported(package)} - PUBLIC.keys()) if package else sorted(PUBLIC)
        values = {name: getattr(importlib.import_module(section), name) for name in names}
        found = [
            (
                name,
                summary(value) or alias(package, name),
                used(name, value, texts, owners.get(name, package)),
            )
            for name, value in values.items()
        ]
        if found:
            sections[section] = found
    for kind, table in REGISTRIES.items():
        sections[f"by name: {kind}"] = [
            (f'"{name}"', summary(resolve(kind, name)), [table[name].replace(":", ".")])
            for name in sorted(table)
        ]
    return sections


def page() -> str:
    """The page as Markdown."""
    lines = ["# The public names", "", "Written by `python -m tests.benchmarks.surface`."]
    for title, entries in rows().items():
        lines += ["", f"## {title}", "", "| name | what it is | used in |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {line} | {', '.join(at)} |" for name, line, at in entries]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    write_atomic(PAGE, page())
