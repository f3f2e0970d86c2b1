"""One notebook, run with given parameters into its run folder."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from astkit.runs import children
from astkit.runs.children import LEFT
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
        status: "complete", "failed", "incomplete" after an interrupt, or "busy" where another
            process has the run in hand.
        seconds: wall time from starting its process to its end; ``None`` where that is not known.
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
    """Run ``notebook`` in a process of its own, unless that was done; a failure is in the outcome.

    A run that was begun goes on in its folder, which the environment variable ``ASTKIT_RUN`` names
    to the notebook's code: checkpoints in it are the notebook's to go on from. The folder belongs
    to one process at a time. A notebook that fails is not complete, even if it wrote a result.

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
    with ExitStack() as held:
        # whoever makes, marks or takes a folder holds the root's lock, so there is one of each run
        with _locked(Path(root) / _LOCK, wait=True):
            record = find(notebook, given, root)
            if record and again:
                with _locked(record.folder / _LOCK) as free:
                    if not free:
                        return Outcome(given, "busy", folder=record.folder)
                    record.mark_stale("run again on demand")
                record = None
            begun, record = record is not None, record or _create(notebook, given, root)
            lock = held.enter_context(_locked(record.folder / _LOCK))
        if not lock:
            return Outcome(given, "busy", folder=record.folder)
        if record.status == "complete":
            return outcome(notebook, given, record)
        _prepare(record, notebook, begun)
        return _execute(notebook, given, record, lock, threads, show)


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


def _prepare(record: Record, notebook: Notebook, begun: bool) -> None:
    """Take an earlier failure back, and stamp what goes on with what it goes on with."""
    (record.folder / "error.json").unlink(missing_ok=True)
    if begun:
        before = record.read("env.json")
        earlier = [*before.pop("earlier", []), before]
        record.write("env.json", {**stamp(), "data": before.get("data", {}), "earlier": earlier})
        record.write("config.json", {**record.config, "code": notebook.code})


def _execute(
    notebook: Notebook,
    given: dict[str, Any],
    record: Record,
    lock: IO[str],
    threads: int | None,
    show: bool,
) -> Outcome:
    environment = {**os.environ, FOLDER: str(record.folder.resolve())}
    if threads is not None:
        environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    command = [sys.executable, "-m", "astkit.runs.execute", str(notebook.path)]
    command += [str(record.folder.resolve() / EXECUTED), repr(given), "show" if show else "quiet"]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as complaints:
        code = children.run(
            command,
            env=environment,
            # should this process be killed, the child keeps the folder until it ends
            pass_fds=[lock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=None if show else subprocess.DEVNULL,
            stderr=complaints,
        )
        complaints.seek(0)
        said = complaints.read().decode(errors="replace").strip()
    seconds = time.perf_counter() - start
    if code == 0:
        result = record.result if record.status == "complete" else {"rows": []}
        record.finish(**{**result, "wall_seconds": seconds})
        return Outcome(given, "complete", seconds, folder=record.folder, executed=True)
    # what the notebook finished before it failed, or as it was interrupted, is not the whole
    (record.folder / "result.json").unlink(missing_ok=True)
    if code in (None, LEFT):
        (record.folder / "error.json").unlink(missing_ok=True)
        note = "its time was over: started again it goes on" if code == LEFT else ""
        return Outcome(given, "incomplete", seconds, folder=record.folder, executed=True, note=note)
    if record.status != "failed":
        last = f": {said.splitlines()[-1]}" if said else ""
        record.fail(f"the notebook's process ended with exit code {code}{last}", "ProcessError")
    error = _one_line(record.read("error.json"))
    return Outcome(given, "failed", seconds, error, record.folder, executed=True)


def _one_line(error: Mapping[str, Any]) -> str:
    message = " ".join(str(error["message"]).split())
    cell = error.get("cell")
    where = f" in cell [{cell['number']}]" if cell else ""
    return f"{error['type']}: {message}{where}" if message else f"{error['type']}{where}"


@contextmanager
def _locked(path: Path, wait: bool = False) -> Iterator[IO[str] | None]:
    """The lock of a folder, which ends with the processes that hold it; ``None`` if taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        else:
            yield file
