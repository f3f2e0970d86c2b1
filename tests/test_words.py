"""Words that do not come back: pages, notebooks and messages are written in the field's terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = {
    r"\bdoes not pay\b|\b(?:policy|gate|auto) (?:pays|costs)\b|\b(?:that|it) pays\b": "the number",
    r"\bdense's\b": "of dense training",
    r"\bbooks\b|\bis booked\b": "records",
    r"\bflow and step\b": "per flow and step",
    r"\bto be had\b": "supported",
    r"\bgone on with\b": "resumed",
    r"\bmore worth\b": "more important",
    r"\b[Aa]n own\b": "your own, custom",
    r"\b(?:of|in) torch's\b": "torch or PyTorch",
    r"\barms?\b": "method, run",
    r"% of points": "points",
    r"\bin the hands of\b": "locked by",
    r"\bundecided\b": "cannot tell yet",
}
ARGUMENTS = {r"\barms?\b"}
"""Names of arguments, which messages say as they are."""
TABLES = re.compile(r"^\s*\|.*\|\s*$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|^ {4}.*$", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """A page without its code and tables."""
    return TABLES.sub("", CODE.sub("", text))


def messages(source: str) -> Iterator[str]:
    """Strings of a module that people read: those of errors, warnings and logs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) or (
            isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("warn", "warning"))
        ):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def texts() -> Iterator[tuple[str, str]]:
    """What people read, by its place."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        if path.name != "CHANGELOG.md":
            yield path.name, prose(path.read_text("utf-8"))
    for path in ROOT.glob("notebooks/*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "markdown":
                yield path.name, prose(cell.source)
    for path in ROOT.glob("astkit/**/*.py"):
        for message in messages(path.read_text("utf-8")):
            yield str(path.relative_to(ROOT)), message


PLACES = list(texts())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_nobody_has_to_read_twice(pattern: str) -> None:
    found = [
        f"{place}: {text[max(0, hit.start() - 40) : hit.end() + 40]!r}"
        for place, text in PLACES
        if pattern not in ARGUMENTS or not place.endswith(".py")
        for hit in re.finditer(pattern, text)
    ]
    assert not found, f"better: {PATTERNS[pattern]}\n" + "\n".join(found)
