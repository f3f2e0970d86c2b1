"""Contents of the export: cells, modules, and a hash that is verified at the start."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from astkit import __version__
from astkit.export import cells
from astkit.export.closure import PACKAGE, ROOT, closure
from astkit.source import git, hash_of

_GIT_SECONDS = 60.0
# names that the export defines
TAKEN = {"Path", "base64", "begin", "hashlib", "importlib", "io", "install", "make_folder", "os"}
TAKEN |= {"shutil", "subprocess", "sys", "tarfile", "unpack", "use"}
LARGEST = 1e6  # bytes of the files that parameters name
# follows the check
START = f"from astkit.export.start import begin\n\nbegin({cells.BUDGET})"
VERIFY = (Path(__file__).parent / "verify.py").read_text(encoding="utf-8").partition('"""\n\n')[2]


@dataclass(frozen=True)
class Bundle:
    """A notebook and everything it needs, in the order of writing.

    ``parameters`` is a cell's source, with ``values`` in it; ``modules`` maps paths below the
    package's parent to sources; ``files`` are those that parameters name, by name in the current
    folder; ``source`` is the SHA-256 of the modules as in ``astkit.stamp.source_hash``; ``commit``
    the last commit that changed any of them, ``None`` outside a checkout or if files differ from
    it.
    """

    name: str
    head: list[NotebookNode]
    parameters: str
    values: dict[str, Any]
    modules: dict[str, str]
    files: dict[str, bytes]
    source: str
    commit: str | None
    body: list[NotebookNode]

    @property
    def stamp(self) -> str:
        """Version, source and commit in one line."""
        commit = f", commit {self.commit[:8]}" if self.commit else ""
        return f"astkit {__version__} (source {self.source[:8]}{commit})"


def bundle(path: Path, values: dict[str, Any] | None = None) -> Bundle:
    """The notebook at ``path`` with all required modules.

    ``values``: parameters to replace. Equal sources, values and commit give an equal bundle.
    Raises ``FileNotFoundError`` for a missing notebook, ``ValueError`` for one that cannot be
    exported and for invalid values.
    """
    values = values or {}
    parts = cells.open_notebook(path)
    known = cells.literals(parts.parameters.source)
    cells.check_values(values, known)
    files = _files(known | values, path)
    values = values | {name: each.name for name, each in files.items()}
    modules = closure({"the start": START, **cells.plain(parts.body, parts.first)})
    if taken := known.keys() & TAKEN:
        raise ValueError(f"the parameter {min(taken)!r} has a name that the export uses: rename it")
    return Bundle(
        name=path.stem,
        head=parts.head,
        parameters=cells.replaced(parts.parameters.source, values),
        values=values,
        modules=modules,
        files={each.name: each.read_bytes() for each in files.values()},
        source=hash_of(
            {name.removeprefix(f"{PACKAGE}/"): text.encode() for name, text in modules.items()}
        ),
        commit=_commit(modules),
        body=parts.body,
    )


def _files(parameters: dict[str, Any], path: Path) -> dict[str, Path]:
    """Files named by parameters, relative to the notebook at ``path``, which are taken along."""
    words = {name: each for name, each in parameters.items() if isinstance(each, str)}
    found = {name: path.parent / each for name, each in words.items()}
    found = {name: each for name, each in found.items() if os.path.isfile(each)}
    taken: dict[str, Path] = {}  # the export writes them into one folder
    for name, each in found.items():
        if not taken.setdefault(each.name, each).samefile(each):
            raise ValueError(
                f"{name} names {each}, but another file called {each.name} is taken along too:"
                " rename one of them"
            )
        if each.stat().st_size > LARGEST:
            raise ValueError(
                f"{name} names {each}, which has more than {LARGEST / 1e6:g} MB: upload it to"
                " Kaggle as a dataset, and pass its path there"
            )
    return found


def _commit(modules: Iterable[str]) -> str | None:
    # the last commit of these files, not HEAD: unrelated changes do not change the export
    changed = git(ROOT, "status", "--porcelain", "--", *modules, seconds=_GIT_SECONDS)
    if changed != "":
        return None
    return git(ROOT, "log", "-1", "--format=%H", "--", *modules, seconds=_GIT_SECONDS) or None
