"""Run a notebook with given parameters in its run folder."""

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
"""Environment variables that set the number of threads of torch and its libraries."""

LONGEST = 300  # characters of a one-line error message; error.json holds the full text


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        parameters: those given; ``config.json`` in the folder contains all parameters.
        status: "complete", "failed", "incomplete" after an interrupt, or "busy" if another
            process has locked the run.
        seconds: wall time of the kernel; ``None`` if unknown.
        error: reason of the failure, in one line.
        folder: the run's folder; ``None`` if not yet created.
        executed: whether this call executed the run; false if it was already complete.
        note: a remark, in one line.
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
    """Run ``notebook`` in its own kernel unless the run is complete; failures are in the outcome.

    An incomplete run resumes in its folder; the environment variable ``ASTKIT_RUN`` passes the
    folder to the notebook, which may load checkpoints from it. The folder is locked meanwhile. A
    notebook that fails is not complete, even if it wrote a result.

    Args:
        notebook: notebook to run, with its folder as working directory.
        given: parameters that replace defaults.
        root: parent folder of the run folders.
        again: mark an earlier run stale and start a new one.
        threads: value of the variables `THREAD_VARIABLES`; ``None`` leaves them unchanged.
        show: print what the notebook prints.

    Raises:
        ValueError: for unknown parameters, and for links in the run's folder.
    """
    given = {name: notebook.fit(name, value) for name, value in given.items()}
    for path in (notebook.path, Path(root).resolve()):
        if any("\ud800" <= character <= "\udfff" for character in str(path)):
            raise ValueError(f"{path} is not UTF-8 here: unset PYTHONUTF8, or set LC_ALL=C.UTF-8")
    Path(root).mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        # folders are created, marked and locked under the root's lock, so each run has one folder
        with _lock(Path(root), timeout=-1):
            record = find(notebook, given, root)
            try:
                if record and again:
                    with _lock(record.folder):
                        record.mark_stale("run again on demand")
                    record = None
                begun, record = record is not None, record or _create(notebook, given, root)
                held.enter_context(_lock(record.folder))
            except Timeout:
                return Outcome(given, "busy", folder=record.folder if record else None)
        if record.status == "complete":
            return outcome(notebook, given, record)
        if begun:
            _resume(record, notebook)
        variables = {FOLDER: str(record.folder.resolve())}
        if threads is not None:
            variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
        target, start = record.folder.resolve() / EXECUTED, time.perf_counter()
        with record.unfinished():
            end = execute(notebook.path, target, given, environment=variables, show=show)
            return _settle(record, given, end, time.perf_counter() - start)


def find(
    notebook: Notebook, given: Mapping[str, Any], root: str | os.PathLike[str]
) -> Record | None:
    """The folder of a run that was started, or ``None``."""
    parameters = notebook.parameters(given)
    return Record.find(root, _name(notebook), parameters, seed_of(parameters))


def outcome(notebook: Notebook, given: Mapping[str, Any], record: Record) -> Outcome:
    """The outcome of a complete run, read from its folder."""
    seconds = record.result.get("wall_seconds")
    seconds = seconds if isinstance(seconds, int | float) else None
    changed = record.config.get("code") != notebook.code
    note = f"{notebook.path.name} has changed since: run it again" if changed else ""
    return Outcome(dict(given), "complete", seconds, folder=record.folder, note=note)


def _lock(folder: Path, timeout: float = 0) -> FileLock:
    """The lock of a folder; rejects links, since writing through them changes files elsewhere."""
    inside = (folder, *folder.rglob("*")) if timeout == 0 else (folder / ".lock",)
    if link := next((path for path in inside if path.is_symlink()), None):
        raise ValueError(f"{link} is a link, and a run would write through it: remove the link")
    return FileLock(folder / ".lock", timeout=timeout)


def _name(notebook: Notebook) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", notebook.path.stem).strip("_.-") or "notebook"


def _create(notebook: Notebook, given: Mapping[str, Any], root: str | os.PathLike[str]) -> Record:
    parameters = notebook.parameters(given)
    also = {"notebook": notebook.path.name, "code": notebook.code}
    return Record.create(root, _name(notebook), parameters, seed_of(parameters), **also)


def _resume(record: Record, notebook: Notebook) -> None:
    """Remove files of an earlier attempt, and update the environment stamp."""
    before = record.read("env.json", earlier=list)
    earlier = [*before.pop("earlier", []), before]
    config = {**record.config, "code": notebook.code}
    for name in ("error.json", "result.json"):
        (record.folder / name).unlink(missing_ok=True)
    record.write("env.json", {**stamp(), "earlier": earlier})
    record.write("config.json", config)


def _settle(record: Record, given: dict[str, Any], end: End, seconds: float) -> Outcome:
    """Write the status files of the run, and remove files that contradict them."""
    if end.status == "complete":
        record.finish(**{**record.result, "wall_seconds": seconds})
        return Outcome(given, "complete", seconds, folder=record.folder, executed=True)
    # a result written before a failure or interrupt is incomplete
    (record.folder / "result.json").unlink(missing_ok=True)
    if end.status == "failed":
        record.write("error.json", end.error)
        error = _one_line(end.error)
        return Outcome(given, "failed", seconds, error, record.folder, executed=True)
    (record.folder / "error.json").unlink(missing_ok=True)
    note = "the time limit was reached: run it again to resume" if end.status == "left" else ""
    return Outcome(given, "incomplete", seconds, folder=record.folder, executed=True, note=note)


def _one_line(error: Mapping[str, Any]) -> str:
    message = " ".join(f"{error['type']}: {error['message']}".split()).removesuffix(":")
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} ..."
    return f"{message} in cell [{error['cell']['number']}]" if error.get("cell") else message
