"""One notebook, run with given parameters into its run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from astkit.runs.execute import End, execute
from astkit.runs.parameters import Notebook, seed_of
from astkit.runs.record import FOLDER, Record
from astkit.stamp import stamp

EXECUTED = "notebook.ipynb"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What the libraries below numpy and torch, and torch itself, take their number of threads from."""

_LOCK = ".lock"


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        parameters: those given; the folder's ``config.json`` has the others, too.
        status: "complete", "failed", "incomplete" after an interrupt, or "busy" where the run is
            locked by another process.
        seconds: wall time from starting its kernel to its end; ``None`` where that is not known.
        error: why it failed, in one line.
        folder: the run's folder; ``None`` before there is one.
        executed: whether it was executed now, and not complete before.
        note: what else to know, in one line.
    """

    parameters: dict[str, Any]
    status: Literal["complete", "failed", "incomplete", "busy"]
    seconds: float | None = None
    error: str = ""
    folder: Path | None = None
    executed: bool = False
    note: str = ""


def run(
    notebook: Notebook,
    given: Mapping[str, Any],
    root: str | os.PathLike[str] = "runs",
    *,
    again: bool = False,
    threads: int | None = None,
    show: bool = False,
) -> Outcome:
    """Run ``notebook`` in a kernel of its own, unless that was done; a failure is in the outcome.

    A run that was begun resumes in its folder, which the environment variable ``ASTKIT_RUN`` names
    to the notebook's code: it may resume from checkpoints there. The folder belongs to one process
    at a time. A notebook that fails is not complete, even if it wrote a result.

    Args:
        notebook: what to run; its folder is its working directory.
        given: parameters in place of defaults.
        root: folder of the run folders.
        again: mark an earlier run stale, and run anew.
        threads: what to set the variables `THREAD_VARIABLES` to; ``None`` leaves them alone.
        show: print what the notebook prints.

    Raises:
        ValueError: for parameters that the notebook does not take.
    """
    given = {name: notebook.fit(name, value) for name, value in given.items()}
    Path(root).mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        # whoever makes, marks or takes a folder holds the root's lock, so there is one of each run
        with FileLock(Path(root) / _LOCK):
            record = find(notebook, given, root)
            try:
                if record and again:
                    with FileLock(record.folder / _LOCK, timeout=0):
                        record.mark_stale("run again on demand")
                    record = None
                begun, record = record is not None, record or _create(notebook, given, root)
                held.enter_context(FileLock(record.folder / _LOCK, timeout=0))
            except Timeout:
                return Outcome(given, "busy", folder=record.folder if record else None)
        if record.status == "complete":
            return outcome(notebook, given, record)
        if begun:
            _resume(record, notebook)
        variables = {FOLDER: str(record.folder.resolve())}
        if threads is not None:
            variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
        start = time.perf_counter()
        with record.unfinished():
            end = execute(
                notebook.path,
                record.folder.resolve() / EXECUTED,
                given,
                environment=variables,
                show=show,
            )
            return _settle(record, given, end, time.perf_counter() - start)


def find(
    notebook: Notebook, given: Mapping[str, Any], root: str | os.PathLike[str]
) -> Record | None:
    """The folder of a run that was begun, if it was."""
    parameters = notebook.parameters(given)
    return Record.find(root, _name(notebook), parameters, seed_of(parameters))


def outcome(notebook: Notebook, given: Mapping[str, Any], record: Record) -> Outcome:
    """What the folder of a complete run tells of it."""
    seconds = record.result.get("wall_seconds")
    changed = record.config.get("code") != notebook.code
    note = f"{notebook.path.name} has changed since: run it again to see" if changed else ""
    return Outcome(dict(given), "complete", seconds, folder=record.folder, note=note)


def _name(notebook: Notebook) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", notebook.path.stem).strip("_.-") or "notebook"


def _create(notebook: Notebook, given: Mapping[str, Any], root: str | os.PathLike[str]) -> Record:
    parameters = notebook.parameters(given)
    return Record.create(
        root,
        _name(notebook),
        parameters,
        seed_of(parameters),
        notebook=notebook.path.name,
        code=notebook.code,
    )


def _resume(record: Record, notebook: Notebook) -> None:
    """Remove the traces of an earlier attempt, and update the environment stamp."""
    for name in ("error.json", "result.json"):
        (record.folder / name).unlink(missing_ok=True)
    before = record.read("env.json")
    earlier = [*before.pop("earlier", []), before]
    record.write("env.json", {**stamp(), "earlier": earlier})
    record.write("config.json", {**record.config, "code": notebook.code})


def _settle(record: Record, given: dict[str, Any], end: End, seconds: float) -> Outcome:
    """Leave in the folder what its status is made of, and nothing that contradicts it."""
    if end.status == "complete":
        record.finish(**{"rows": [], **record.result, "wall_seconds": seconds})
        return Outcome(given, "complete", seconds, folder=record.folder, executed=True)
    # what the notebook finished before it failed, or as it was interrupted, is not the whole
    (record.folder / "result.json").unlink(missing_ok=True)
    if end.status == "failed":
        record.write("error.json", end.error)
        error = _one_line(end.error)
        return Outcome(given, "failed", seconds, error, record.folder, executed=True)
    (record.folder / "error.json").unlink(missing_ok=True)
    note = "its time was over: started again, it resumes" if end.status == "left" else ""
    return Outcome(given, "incomplete", seconds, folder=record.folder, executed=True, note=note)


def _one_line(error: Mapping[str, Any]) -> str:
    message = " ".join(str(error["message"]).split())
    cell = error.get("cell")
    where = f" in cell [{cell['number']}]" if cell else ""
    return f"{error['type']}: {message}{where}" if message else f"{error['type']}{where}"
