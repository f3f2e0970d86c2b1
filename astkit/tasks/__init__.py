"""Tasks of a comparison: arguments of `astkit.compare`, by name; from files: `astkit.tasks.files`.

``astkit.compare(**task("language"), policies=["auto"])``. A task is a mapping with ``make_model``,
``train``, ``validation``, ``test``, and where they differ from the defaults ``criterion``,
``metrics``, ``config``, ``batch_size``, ``budget`` and ``policies``.
"""

from __future__ import annotations

import inspect
from typing import Any

from astkit.names import REGISTRIES, resolve
from astkit.tasks.parts import Arguments

__all__ = ["task"]


def task(name: str, **options: Any) -> Arguments:
    """The task registered as ``name``; the data and the splits are the same in each call.

    ``options``: ``root`` of "cifar10", ``path`` of "language". Raises ``ValueError`` for another
    name or option, and the errors of the task.
    """
    known = REGISTRIES["task"]
    if name not in known:
        raise ValueError(f"dataset is {name!r}: choose one of {', '.join(known)}")
    make = resolve("task", name)
    for option in options.keys() - inspect.signature(make).parameters.keys():
        raise ValueError(f"task {name!r} has no option {option!r}: leave it out")
    found: Arguments = make(**options)
    return found
