"""Tasks of a comparison: arguments of `astkit.compare`, by name; of folders: `astkit.tasks.images`.

``astkit.compare(**task("digits"), policies=["auto"])``. A task is a mapping with ``make_model``,
``train``, ``validation``, ``test`` and ``config``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astkit.names import resolve

__all__ = ["task"]


def task(name: str, root: str | Path | None = None) -> dict[str, Any]:
    """The task registered as ``name``; the data and the splits are the same in each call.

    ``root``: folder of the data, see data/README.md. Raises ``ValueError`` for another name, and
    the errors of `astkit.datasets.load`.
    """
    return resolve("task", name)(root)
