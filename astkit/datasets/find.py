"""Find CIFAR-10 below a folder of unknown layout, as hosted notebooks mount their inputs.

Kaggle mounts a data set at ``<slug>/``, ``<owner>/<slug>/`` or ``datasets/<owner>/<slug>/`` below
``/kaggle/input``; what the owner packed into it comes on top.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from astkit.datasets.cifar10_files import LAYOUTS, looked_for

INPUT = "ASTKIT_INPUT"  # environment variable: another place than /kaggle/input
DATA = "ASTKIT_DATA"
DEPTH = 6  # datasets/<owner>/<slug>/ and three folders of the owner's
MOST_FOLDERS = 5000
MOST_LISTED = 30


def point_to(dataset: str, data_root: str = "") -> None:
    """Set ``ASTKIT_DATA`` to the folder that holds ``dataset``, and print which one it is.

    Nothing is searched for a data set that needs no files or is given by ``data_root`` or
    ``ASTKIT_DATA``. Searched are the input folder (``ASTKIT_INPUT``, else ``/kaggle/input``) and
    ``data/``. Raises ``FileNotFoundError`` with a listing of the input folder when neither has it.
    """
    if dataset != "cifar10" or data_root or os.environ.get(DATA):
        return
    root = Path(os.environ.get(INPUT) or "/kaggle/input")
    for place in (root, Path("data")):
        found = find_cifar10(place)
        if found is not None:
            os.environ[DATA] = str(found.resolve())
            print(f"data: {found}")
            return
    raise FileNotFoundError(
        f"CIFAR-10 is not below {root}: add it to the notebook's input, set {DATA}, or choose"
        f" another data set. Looked for {looked_for()}; found {listing(root)}"
    )


def find_cifar10(root: Path) -> Path | None:
    """The folder at or below ``root`` that holds CIFAR-10 in one of its layouts, if there is one.

    Of several the one in the most telling layout (in the order of ``LAYOUTS``: any data set may
    come as train-*.parquet), then one with "cifar" in its path, then the one least deep.
    """
    ranks = [
        (place, "cifar" not in str(folder.relative_to(root)).lower(), depth, str(folder))
        for folder, depth in _folders(root)
        for place, layout in enumerate(LAYOUTS.values())
        if layout.present(folder)
    ]
    return Path(min(ranks)[-1]) if ranks else None


def listing(root: Path) -> str:
    """What lies below ``root``: folders, each with its number of files; for messages."""
    if not root.is_dir():
        return "no such folder"
    lines = []
    for folder, _ in _folders(root):
        names = [path.name for path in _entries(folder) if not path.is_dir()]
        some = f": {', '.join([*names[:3], '...'][: len(names)])}" if names else ""
        lines.append(f"\n  {folder} ({len(names)} files{some})")
        if len(lines) == MOST_LISTED:
            return "".join([*lines, "\n  ..."])
    return "".join(lines)


def _folders(root: Path) -> Iterator[tuple[Path, int]]:
    """``root`` and the folders below it with their depths, the least deep first."""
    queue = [(root, 0)] if root.is_dir() else []
    for folder, depth in queue:
        yield folder, depth
        if depth < DEPTH:
            queue += [(path, depth + 1) for path in _entries(folder) if path.is_dir()]
            del queue[MOST_FOLDERS:]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:  # a folder that may not be read holds nothing for us
        return []
