"""Sweeps: a notebook run with every combination of values of its parameters.

Each run has its own folder and kernel. A sweep that is run again skips complete runs and runs the
rest. Started several times on one machine, it shares the work: a run is locked by the process that
executes it::

    outcomes = sweep.run_sweep("01.ipynb", {"rate": [0.05, 0.1], "seed": range(5)})
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from astkit.runs import runner
from astkit.runs.runner import Notebook, Outcome, Parameters


def run_sweep(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    root: str | os.PathLike[str] = "runs",
    *,
    again: bool = False,
    announce: Callable[[str], object] = print,
) -> list[Outcome]:
    """Run a notebook with every combination of ``values``; a failed run does not affect the others.

    Args:
        path: the notebook.
        values: per parameter, a list (tuple, range, array) of values, or one value for all runs.
        root: parent folder of the run folders.
        again: delete earlier runs, and start anew.
        announce: called with a message after each run. What the notebook prints is shown if there
            is a single one.

    Returns one outcome per combination, the last name varying fastest. Before anything runs, raises
    ``ValueError`` for unknown parameters, invalid numbers and a folder that papermill cannot name,
    ``FileNotFoundError`` without the notebook. An interrupt ends the runs; call it again to resume.
    """
    plan = runner.read_notebook(path)
    rows = combinations(plan, values)
    place = os.path.abspath(root)
    if place.encode("utf-8", "ignore").decode() != place:
        raise ValueError(f"runs is {place!a}, whose name is no UTF-8: name another folder")
    outcomes: list[Outcome] = []
    for parameters in rows:
        try:
            outcome = runner.run_notebook(plan, parameters, root, again=again, show=len(rows) == 1)
        except Exception as error:  # a damaged folder or a full disk affects only this run
            outcome = Outcome(parameters, "failed", error=f"{type(error).__name__}: {error}")
        outcomes.append(outcome)
        parts = [f"{len(outcomes)}/{len(rows)}", outcome.status]
        parts += [f"{name}={outcome.parameters[name]}" for name in varying(rows)]
        if outcome.executed and outcome.seconds is not None:
            parts.append(f"{outcome.seconds:.1f} s")
        elif outcome.status == "complete":
            parts.append("before, so not run again")
        announce("  ".join([*parts, outcome.error]).rstrip())
    return outcomes


def combinations(plan: Notebook, values: Mapping[str, Any]) -> list[Parameters]:
    """Every combination of ``values``, see `run_sweep`, the last name varying fastest.

    Raises ``ValueError`` for an unknown name, a value of another type, and no values.
    """
    columns: dict[str, list[Any]] = {}
    for name, several in values.items():
        if isinstance(several, np.ndarray):
            several = several.tolist()  # one number, if it has no dimension
        if not isinstance(several, list | tuple | range):
            several = [several]
        column = columns[name] = [plan.check(name, value) for value in several]
        if not column:
            raise ValueError(f"{name} has no values: give one or more")
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values differ between rows."""
    names = rows[0] if rows else {}
    return [name for name in names if any(row[name] != rows[0][name] for row in rows)]
