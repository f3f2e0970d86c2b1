"""Sweeps: a notebook run with every combination of a grid of parameters.

Each run is a process, `astkit run`, with its own folder. A sweep that is run again skips complete
runs and runs the rest. Concurrent sweeps share the work, also on several machines with a shared
file system: a run is locked by the process that executes it::

    outcomes = sweep.run("01.ipynb", {"target_rate": [0.05, 0.1], "seed": range(5)}, jobs=2)
    sweep.table(outcomes)
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astkit.runs import notebook
from astkit.runs.notebook import Outcome
from astkit.runs.parameters import Notebook, read, varying
from astkit.system import allowed_cpus

if TYPE_CHECKING:
    import pandas as pd

Given = dict[str, Any]
Processes = set["subprocess.Popen[str]"]


def run(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    jobs: int = 1,
    root: str | os.PathLike[str] = "runs",
    *,
    threads: int | None = None,
    announce: Callable[[str], object] = print,
) -> list[Outcome]:
    """Run a notebook with every combination of ``values``; a failed run does not affect the others.

    Args:
        path: the notebook.
        values: per parameter, a list (tuple, range, array) of values, or one value for all runs.
        jobs: number of runs at a time.
        root: parent folder of the run folders.
        threads: CPU threads of each run. By default the available ones are divided among the jobs,
            unless ``OMP_NUM_THREADS`` is set.
        announce: called with a message with the number of runs, and one after each run.

    Returns one outcome per combination, the last name varying fastest. Before anything runs, raises
    ``ValueError`` for unknown parameters and invalid numbers, ``FileNotFoundError`` without the
    notebook. An interrupt is passed on once the runs have ended; call it again to resume.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}: give 1 or more")
    plan, rows, outcomes = _planned(path, values, root, threads)
    todo = [index for index in range(len(rows)) if index not in outcomes]
    announce(f"{len(rows)} runs, {len(outcomes)} of them already complete")
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, allowed_cpus() // min(jobs, len(todo) or 1))
    start, names, running = time.perf_counter(), varying(rows), Processes()
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_one, plan, rows[i], Path(root), threads, running): i for i in todo}
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                done = outcomes[waiting[future]] = future.result()
                left = (time.perf_counter() - start) / number * (len(todo) - number)
                announce(_line(f"{number}/{len(todo)}", names, done, left))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.send_signal(signal.SIGINT)
            raise
    return [outcomes[index] for index in range(len(rows))]


def commands(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    root: str | os.PathLike[str] = "runs",
    *,
    threads: int | None = None,
) -> list[str]:
    """One command line per incomplete run, quoted for a shell.

    Raises the errors that `run` raises before anything runs.
    """
    plan, rows, done = _planned(path, values, root, threads)
    left = [row for index, row in enumerate(rows) if index not in done]
    return [shlex.join(["astkit", *_words(plan, str(path), row, root, threads)]) for row in left]


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per run: parameters that vary, status, seconds and error."""
    import pandas as pd

    names = varying([done.parameters for done in outcomes])
    rows = [
        {name: done.parameters[name] for name in names}
        | {"status": done.status, "seconds": done.seconds, "error": done.error}
        for done in outcomes
    ]
    return pd.DataFrame(rows, columns=[*names, "status", "seconds", "error"])


def _planned(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    root: str | os.PathLike[str],
    threads: int | None,
) -> tuple[Notebook, list[Given], dict[int, Outcome]]:
    """The notebook, the parameters of all runs, and the outcomes of the complete ones."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}: give 1 or more")
    plan = read(path)
    rows, done = plan.combinations(values), {}
    for index, row in enumerate(rows):
        record = notebook.find(plan, row, root)
        if record and record.status == "complete":
            with suppress(ValueError):  # a damaged folder affects only its run, which reports it
                done[index] = notebook.outcome(plan, row, record)
    return plan, rows, done


def _words(
    plan: Notebook, path: str, row: Given, root: str | os.PathLike[str], threads: int | None
) -> list[str]:
    words = ["run", path]
    for name, value in row.items():
        words += ["-p", f"{name}={plan.to_text(name, value)}"]
    words += ["--runs", str(root)]
    return words + ([] if threads is None else ["--threads", str(threads)])


def _one(
    plan: Notebook, row: Given, root: Path, threads: int | None, running: Processes
) -> Outcome:
    """Run one combination in its own process."""
    try:
        code, said = _process(_words(plan, str(plan.path), row, root, threads), running)
        if code == 2 and "locked by another process" in said:
            return Outcome(row, "busy")
        if code == 2 or (record := notebook.find(plan, row, root)) is None:
            raise RuntimeError(said.strip().partition("astkit: ")[2] or said.strip()[-300:])
        return notebook.outcome(plan, row, record)
    except Exception as error:  # a damaged folder or a full disk affects only this run
        return Outcome(row, "failed", error=f"{type(error).__name__}: {error}")


def _process(words: list[str], running: Processes) -> tuple[int, str]:
    """Exit code and standard error of ``astkit`` with the arguments ``words``."""
    # in its own session, so that an interrupt from the terminal reaches it once, through this one
    process = subprocess.Popen(
        [sys.executable, "-m", "astkit", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running.add(process)
    said = process.communicate()[1]
    running.discard(process)
    return process.returncode, said


def _line(count: str, names: Sequence[str], done: Outcome, left: float) -> str:
    parts = [count, done.status, *(f"{name}={done.parameters[name]}" for name in names)]
    if done.seconds is not None:
        parts.append(f"{done.seconds:.1f} s")
    return "  ".join(parts) + (f"  (about {timedelta(seconds=round(left))} left)" if left else "")
