"""Tasks of a comparison: arguments of `astkit.compare`, by name; from files: `astkit.tasks.files`.

``astkit.compare(**task("language"), policies=["auto"])``. A task is a mapping with ``make_model``,
``train``, ``validation``, ``test``, and where they differ from the defaults ``criterion``,
``metrics``, ``config``, ``batch_size``, ``budget`` and ``policies``.
"""

from __future__ import annotations

from typing import Any

from astkit.names import resolve
from astkit.tasks.parts import Arguments

__all__ = ["task"]


def task(name: str, **options: Any) -> Arguments:
    """The task registered as ``name``; the data and the splits are the same in each call.

    ``options``: ``root`` of "cifar10", ``path`` of "language". Raises ``ValueError`` for another
    name, and the errors of the task.
    """
    make = resolve("task", name)
    arguments: Arguments = make(**options)
    return arguments
