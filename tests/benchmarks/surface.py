"""The public names on one page: `python -m tests.benchmarks.surface` writes docs/surface.md."""

from __future__ import annotations

import importlib
import json
import re
from inspect import ismodule
from pathlib import Path
from typing import Any

from astkit.files import write_atomic
from astkit.names import PUBLIC, REGISTRIES, resolve

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "surface.md"
PACKAGES = ("gating", "trainers", "profiling", "datasets", "widgets", "lattice", "logic_ca", "runs")


def sources() -> dict[str, str]:
    """Texts that may use a name: notebooks by number, README and docs, folders, benchmarks."""
    texts = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        texts[f"notebook {path.name[:2]}"] = "\n".join(code)
    pages = [ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path != PAGE)]
    texts["README, docs"] = "\n".join(path.read_text(encoding="utf-8") for path in sorted(pages))
    folders = sorted(path.parent for path in (ROOT / "astkit").glob("*/__init__.py"))
    for folder in [*folders, ROOT / "tests" / "benchmarks"]:
        files = (path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py")
        texts[folder.name] = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return texts


def summary(value: Any) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((getattr(value, "__doc__", "") or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


def used(name: str, texts: dict[str, str], own: str) -> list[str]:
    """The places that name ``name``, its own folder left out; what has a name is found by it."""
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    places = [place for place, text in texts.items() if place != own and pattern.search(text)]
    known = {target.split(":")[1] for table in REGISTRIES.values() for target in table.values()}
    return [*places, *(["by name"] if name in known else [])]


def exported(package: str) -> list[str]:
    """The names that a part of astkit exports: those of its ``__init__``, without modules."""
    held = vars(importlib.import_module(f"astkit.{package}"))
    return sorted(name for name, each in held.items() if name[0] != "_" and not ismodule(each))


def rows() -> dict[str, list[tuple[str, str, list[str]]]]:
    """Sections of the page: name, one line, where it is used."""
    texts = sources()
    root = importlib.import_module("astkit")
    sections = {
        "astkit": [
            (name, summary(getattr(root, name)), used(name, texts, PUBLIC[name].split(".")[1]))
            for name in sorted(PUBLIC)
        ]
    }
    for package in PACKAGES:
        module = importlib.import_module(f"astkit.{package}")
        names = [name for name in exported(package) if name not in PUBLIC]
        if names:
            sections[f"astkit.{package}"] = [
                (name, summary(getattr(module, name)), used(name, texts, package)) for name in names
            ]
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
