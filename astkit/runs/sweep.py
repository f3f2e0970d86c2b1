"""Sweeps: a notebook run with every combination of values of its parameters.

Each run has its own folder and kernel. A sweep that is run again skips complete runs and runs the
rest. Concurrent sweeps share the work, also on several machines with a shared file system: a run is
locked by the process that executes it::

    outcomes = sweep.run("01.ipynb", {"target_rate": [0.05, 0.1], "seed": range(5)}, jobs=2)
    sweep.table(outcomes)
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np

from astkit.runs import notebook
from astkit.runs.notebook import Notebook, Outcome, Parameters
from astkit.system import allowed_cpus

if TYPE_CHECKING:
    import pandas as pd

MOST = 100_000  # numbers of a range: more are probably a typing error
_RANGE = re.compile(r"(?<![\w.])([+-]?\d{1,9})\.\.([+-]?\d{1,9})(?![\w.])")


def run(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    jobs: int = 1,
    root: str | os.PathLike[str] = "runs",
    *,
    announce: Callable[[str], object] = print,
) -> list[Outcome]:
    """Run a notebook with every combination of ``values``; a failed run does not affect the others.

    Args:
        path: the notebook.
        values: per parameter, a list (tuple, range, array) of values, or one value for all runs.
        jobs: number of processes, each with one run at a time; the CPU threads are divided among
            them, unless ``OMP_NUM_THREADS`` is set.
        root: parent folder of the run folders.
        announce: called with a message after each run.

    Returns one outcome per combination, the last name varying fastest. Before anything runs, raises
    ``ValueError`` for unknown parameters and invalid numbers, ``FileNotFoundError`` without the
    notebook. An interrupt ends the runs; call it again to resume.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}: give 1 or more")
    plan = notebook.read(path)
    rows = combinations(plan, values)
    divided = max(1, allowed_cpus() // min(jobs, len(rows)))
    threads = None if "OMP_NUM_THREADS" in os.environ else divided
    calls = (joblib.delayed(_one)(i, plan, row, root, threads) for i, row in enumerate(rows))
    finished = joblib.Parallel(jobs, return_as="generator_unordered")(calls)
    outcomes: dict[int, Outcome] = {}
    for index, outcome in finished:
        outcomes[index] = outcome
        parts = [f"{len(outcomes)}/{len(rows)}", outcome.status]
        parts += [f"{name}={outcome.parameters[name]}" for name in varying(rows)]
        if outcome.executed and outcome.seconds is not None:
            parts.append(f"{outcome.seconds:.1f} s")
        announce("  ".join(parts))
    return [outcomes[index] for index in range(len(rows))]


def combinations(plan: Notebook, values: Mapping[str, Any]) -> list[Parameters]:
    """Every combination of ``values``, see `run`, the last name varying fastest.

    Raises ``ValueError`` for an unknown name, a value of another type, and no values.
    """
    columns: dict[str, list[Any]] = {}
    for name, several in values.items():
        if not isinstance(several, list | tuple | range | np.ndarray):
            several = [several]
        column = columns[name] = [plan.fit(name, value) for value in several]
        if not column:
            raise ValueError(f"{name} has no values: give one or more")
    rows = itertools.product(*columns.values())
    return [dict(zip(columns, row, strict=True)) for row in rows]


def values_of(plan: Notebook, options: Sequence[str]) -> dict[str, list[Any]]:
    """The values in ``name=values`` options, in the types of the defaults.

    Values are separated by commas; ``a..b`` is the range of integers from ``a`` to ``b``, both
    included. Strings are taken verbatim, other values are literals. Raises ``ValueError`` for
    unknown names and values of another type.
    """
    return {name: _values(plan, name, t) for name, t in notebook.assignments(options).items()}


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values differ between rows."""
    names = rows[0] if rows else {}
    return [name for name in names if any(row[name] != rows[0][name] for row in rows)]


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per run: parameters that vary, status, seconds and error."""
    import pandas as pd

    names = varying([outcome.parameters for outcome in outcomes])
    rows = [
        {name: outcome.parameters[name] for name in names}
        | {"status": outcome.status, "seconds": outcome.seconds, "error": outcome.error}
        for outcome in outcomes
    ]
    return pd.DataFrame(rows, columns=[*names, "status", "seconds", "error"])


def _values(plan: Notebook, name: str, text: str) -> list[Any]:
    if not isinstance(plan.default(name), str):
        parsed = notebook.literal(f"[{_RANGE.sub(_range, text)}]")
        if isinstance(parsed, list):
            return [plan.fit(name, value) for value in parsed]
    return [plan.from_text(name, part.strip()) for part in text.split(",")]


def _range(match: re.Match[str]) -> str:
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MOST:
        raise ValueError(f"{match[0]} is not a range of 1 to {MOST:,} numbers: write 0..4")
    return ",".join(map(str, range(first, last + 1)))


def _one(
    index: int,
    plan: Notebook,
    parameters: Parameters,
    root: str | os.PathLike[str],
    threads: int | None,
) -> tuple[int, Outcome]:
    try:
        return index, notebook.run(plan, parameters, Path(root), threads=threads)
    except Exception as error:  # a damaged folder or a full disk affects only this run
        return index, Outcome(parameters, "failed", error=f"{type(error).__name__}: {error}")
