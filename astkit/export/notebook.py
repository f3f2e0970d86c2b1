"""Export as one notebook."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from astkit import __version__
from astkit.export import cells
from astkit.export.bundle import START, VERIFY, Bundle
from astkit.export.closure import PACKAGE

# folded cells, for JupyterLab and for Kaggle; of the start, the output is shown
FOLDED = {
    "jupyter": {"source_hidden": True, "outputs_hidden": True},
    "_kg_hide-input": True,
    "_kg_hide-output": True,
}
STARTED = {
    "jupyter": {"source_hidden": True},
    "_kg_hide-input": True,
    "tags": ["nbval-ignore-output"],
}
CHARACTERS = 1000  # of a line of the archive

_SETTINGS = """## Settings

Kaggle passes no parameters: change values in the next cell. The folded cell below it holds the
{count} modules that the notebook needs of {stamp}, so that neither an
installation nor the internet is required. They are verified before they are imported."""

_SETTINGS_WHEEL = """## Settings

Kaggle passes no parameters: change values in the next cell. astkit is installed from {name} in an
attached dataset; the internet is not required."""

_CHECKS = f"# verify {PACKAGE} by its SHA-256, then check torch and the GPU"


def build(made: Bundle, readable: bool = False, wheel: Path | None = None) -> NotebookNode:
    """The exported notebook: settings, the package, start, and the original cells.

    The modules are a compressed archive in one cell; with ``readable`` each is a cell of its own;
    with ``wheel`` there are none, and the wheel is installed from a dataset.
    """
    settings = _SETTINGS.format(stamp=made.stamp, count=len(made.modules))
    start = f'use(Path("{PACKAGE}"), "{made.source}")'
    if wheel is not None:
        settings = _SETTINGS_WHEEL.format(name=wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        start = f'install("{wheel.name}", "{digest}")'
    written = [
        *map(_stripped, made.head),
        new_markdown_cell(settings),
        new_code_cell(made.parameters, metadata={"tags": [cells.PARAMETERS]}),
        *_package(made, readable, wheel is not None),
        new_code_cell(f"{_CHECKS}\n{start}\n{START}", metadata=STARTED),
        *map(_stripped, made.body),
    ]
    metadata: dict[str, Any] = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        PACKAGE: {"version": __version__, "source": made.source, "commit": made.commit},
    }
    for number, cell in enumerate(written):  # random ids would change the file's bytes
        cell.id = f"cell-{number}"
    book = new_notebook(cells=written, metadata=metadata)
    nbformat.validate(book)
    return book


def text(made: Bundle, readable: bool = False, wheel: Path | None = None) -> str:
    """The notebook as the text of its file."""
    return nbformat.writes(build(made, readable, wheel)) + "\n"


def _package(made: Bundle, readable: bool, installed: bool) -> Iterator[NotebookNode]:
    """The cells that write the modules, and the files that parameters name."""
    modules = {} if installed else made.modules
    shown = modules if readable else {}
    inner = {name.removeprefix(f"{PACKAGE}/").rpartition("/")[0] for name in shown}
    folders = "".join(f', "{name}"' for name in sorted(inner - {""}))
    calls = f'make_folder(Path("{PACKAGE}"){folders})' if modules else ""
    archived = {} if readable else {name: each.encode() for name, each in modules.items()}
    if files := archived | made.files:
        lines = "".join(
            f'    "{line}"\n' for line in re.findall(f".{{1,{CHARACTERS}}}", packed(files))
        )
        calls += f"\nunpack(\n{lines})"
    source = f"# {made.stamp}\n{VERIFY.rstrip()}\n\n\n{calls}".rstrip()
    yield new_code_cell(source, metadata=FOLDED)
    for name, source in shown.items():
        yield _module(name, source)


def packed(files: Mapping[str, bytes]) -> str:
    """An archive of ``files`` (contents by name) as `astkit.export.verify.unpack` reads it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:bz2") as archive:
        for name, each in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(each)
            archive.addfile(entry, io.BytesIO(each))
    return base64.b85encode(content.getvalue()).decode()


def _module(name: str, source: str) -> NotebookNode:
    # IPython appends a newline to the file, so the cell has none; the start verifies what it wrote
    return new_code_cell(f"%%writefile {name}\n{source}".rstrip("\n"), metadata=FOLDED)


def _stripped(cell: NotebookNode) -> NotebookNode:
    """The cell without outputs and without metadata except tags."""
    make = {"code": new_code_cell, "raw": new_raw_cell}.get(cell.cell_type, new_markdown_cell)
    tags = cell.metadata.get("tags")
    return make(cell.source, metadata={"tags": tags} if tags else {})
