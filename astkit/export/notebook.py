"""Export as one notebook."""

from __future__ import annotations

import hashlib
import textwrap
from collections import Counter
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from astkit import __version__
from astkit.export import cells
from astkit.export.bundle import START, VERIFY, Bundle
from astkit.export.imports import PACKAGE

# a folded cell, for JupyterLab and for Kaggle
FOLDED = {
    "jupyter": {"source_hidden": True, "outputs_hidden": True},
    "_kg_hide-input": True,
    "_kg_hide-output": True,
}
IGNORED = {"tags": ["nbval-ignore-output"]}

_SETTINGS = """## Settings

All settings of this notebook are in the next two cells: their meanings and defaults, and the values
that replace some of them. Exported from {stamp}; it contains the part of the package that it needs
({count} modules) and needs neither an installation nor the internet."""

_VALUES = """\
# Kaggle passes no parameters: what is written here replaces the values above.
# papermill replaces this cell by its own parameters."""

_PACKAGE = """## The package

Each cell writes a module of astkit into the folder `astkit` beside this notebook. Nothing is
imported before the check below them has passed."""

_FOLDERS = """\
import shutil
from pathlib import Path

PACKAGE = Path("{package}")
if PACKAGE.exists() and not (PACKAGE / ".exported").exists():
    raise RuntimeError("{package}/ exists and would be overwritten: use an empty folder")
shutil.rmtree(PACKAGE, ignore_errors=True)  # an earlier export
for FOLDER in {folders}:
    (PACKAGE / FOLDER).mkdir(parents=True, exist_ok=True)
(PACKAGE / ".exported").touch()"""

_START = """## Start

Checks that the modules are unchanged, that torch is new enough and that it can compute on the GPU,
if there is one; sets the time budget."""


def build(made: Bundle) -> NotebookNode:
    """The exported notebook: settings, modules, start, and the original cells."""
    values = f"{_VALUES}\n{cells.override(made.values)}"
    count = len(made.modules)
    guard = f'SOURCE = "{made.source}"  # SHA-256 over the modules\n# {made.stamp}'
    written = [
        *map(_stripped, made.head),
        new_markdown_cell(_SETTINGS.format(stamp=made.stamp, count=count)),
        new_code_cell(made.parameters, metadata={"tags": [cells.PARAMETERS]}),
        new_code_cell(values, metadata={"tags": [cells.INJECTED]}),
        new_markdown_cell(_PACKAGE, metadata={"jp-MarkdownHeadingCollapsed": True}),
        new_code_cell(_folders(made)),
        *(_module(name, source) for name, source in made.modules.items()),
        new_markdown_cell(_START),
        new_code_cell(f"{guard}\n\n{VERIFY.rstrip()}", metadata=FOLDED),
        new_code_cell(f'use(Path("{PACKAGE}"), SOURCE)\n\n{START}', metadata=IGNORED),
        new_markdown_cell("## The notebook"),
        *map(_stripped, made.body),
    ]
    metadata: dict[str, Any] = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        PACKAGE: {"version": __version__, "source": made.source, "commit": made.commit},
    }
    for cell, each in zip(written, _ids(written), strict=True):
        cell.id = each
    book = new_notebook(cells=written, metadata=metadata)
    nbformat.validate(book)
    return book


def text(made: Bundle) -> str:
    """The notebook as the text of its file."""
    return nbformat.writes(build(made)) + "\n"


def _folders(made: Bundle) -> str:
    inner = {name.removeprefix(f"{PACKAGE}/").rpartition("/")[0] for name in made.modules}
    listed = textwrap.fill(", ".join(f'"{name}"' for name in sorted(inner)), 95)
    folders = textwrap.indent(f"\n{listed},\n", "    ")
    return _FOLDERS.format(package=PACKAGE, folders=f"({folders})")


def _module(name: str, source: str) -> NotebookNode:
    # IPython appends a newline to the file, so the cell has none
    return new_code_cell(f"%%writefile {name}\n{source}".rstrip("\n"), metadata=FOLDED)


def _stripped(cell: NotebookNode) -> NotebookNode:
    """The cell without outputs and without metadata except tags."""
    make = {"code": new_code_cell, "raw": new_raw_cell}.get(cell.cell_type, new_markdown_cell)
    tags = cell.metadata.get("tags")
    return make(cell.source, metadata={"tags": tags} if tags else {})


def _ids(written: list[NotebookNode]) -> list[str]:
    """Ids derived from the content, so that equal sources give equal bytes."""
    seen: Counter[str] = Counter()
    ids = []
    for cell in written:
        digest = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        ids.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
    return ids
