"""Run a notebook with given parameters in its run folder, with papermill.

An interrupt of this process ends the kernel; a kernel exits by itself if this process is killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import nbformat
import papermill
from filelock import FileLock, Timeout
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from papermill.exceptions import PapermillExecutionError

from astkit.runs.parameters import Notebook, seed_of
from astkit.runs.record import FOLDER, Record
from astkit.stamp import stamp

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that set the number of threads of torch and its libraries."""

LONGEST = 300  # characters of a one-line error message; error.json holds the full text
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Error = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run; ``error`` and ``note`` have one line.

    Attributes:
        parameters: those given; ``config.json`` in the folder contains all parameters.
        status: "incomplete" if it stopped at a time limit or was interrupted, "busy" if another
            process has locked it.
        seconds: wall time of the kernel; ``None`` if unknown.
        executed: whether this call executed the run; false if it was already complete.
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

    Raises ``ValueError`` for unknown parameters, and for links in the run's folder.
    """
    given = {name: notebook.fit(name, value) for name, value in given.items()}
    Path(root).mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        # folders are created, marked and locked under the root's lock, so each run has one folder
        with _lock(Path(root), timeout=-1):
            begun = find(notebook, given, root)
            try:
                if begun and again:
                    with _lock(begun.folder):
                        begun.mark_stale("run again on demand")
                    begun = None
                record = begun or _create(notebook, given, root)
                held.enter_context(_lock(record.folder))
            except Timeout:
                return Outcome(given, "busy", folder=begun.folder if begun else None)
        if record.status == "complete":
            return outcome(notebook, given, record)
        if begun:
            _resume(record, notebook)
        variables = {FOLDER: str(record.folder.resolve())}
        if threads is not None:
            variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
        target, start = record.folder.resolve() / "notebook.ipynb", time.perf_counter()
        with record.unfinished():
            end = execute(notebook.path, target, given, environment=variables, show=show)
            seconds = time.perf_counter() - start
            _settle(record, end, seconds)
        note = "the time limit was reached: run it again to resume" if end == "left" else ""
        done = outcome(notebook, given, record)
        return replace(done, seconds=seconds, executed=True, note=note)


def find(
    notebook: Notebook, given: Mapping[str, Any], root: str | os.PathLike[str]
) -> Record | None:
    """The folder of a run that was started, or ``None``."""
    return Record.find(root, *_identity(notebook, given))


def outcome(notebook: Notebook, given: Mapping[str, Any], record: Record) -> Outcome:
    """The outcome of a run that is not being executed, read from its folder."""
    known: dict[str, Any] = {"parameters": dict(given), "folder": record.folder}
    if record.status == "failed":
        return Outcome(**known, status="failed", error=_one_line(record.read("error.json")))
    if record.status != "complete":
        return Outcome(**known, status="incomplete")
    changed = record.config.get("code") != notebook.code
    note = f"{notebook.path.name} has changed since: run it again" if changed else ""
    return Outcome(**known, status="complete", seconds=record.result.get("wall_seconds"), note=note)


def _create(notebook: Notebook, given: Mapping[str, Any], root: str | os.PathLike[str]) -> Record:
    names = _identity(notebook, given)
    return Record.create(root, *names, notebook=notebook.path.name, code=notebook.code)


def _identity(notebook: Notebook, given: Mapping[str, Any]) -> tuple[str, dict[str, Any], int]:
    """Name, parameters and seed of a run; the name can be a part of a folder's."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", notebook.path.stem).strip("_.-") or "notebook"
    parameters = notebook.parameters(given)
    return name, parameters, seed_of(parameters)


class _Kernel(AsyncKernelManager):
    """A kernel that runs this interpreter, whatever kernels are installed; one subclass per run."""

    environment: Mapping[str, str]

    @property
    def kernel_spec(self) -> KernelSpec:
        # -P: while the kernel starts, a json.py beside the notebook must not replace Python's own
        command = [sys.executable, "-P", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
        # notebook output arrives as messages; these streams carry only debugger warnings
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await super().start_kernel(**options, **quiet, env={**os.environ, **self.environment})


def execute(
    source: Path,
    target: Path,
    parameters: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    show: bool = False,
) -> Error | Literal["complete", "left"]:
    """Execute the notebook ``source``, in its folder, into ``target``, written after each cell.

    ``parameters`` replace values of the parameters cell; ``environment`` adds to the variables of
    this process. Returns "left" if a cell raised ``SystemExit(0)``, such as at a time limit, and
    for a failure its type, message and traceback, and the last cell that was started.
    """
    try:
        done = papermill.execute_notebook(
            _plain(source),
            _plain(target),
            dict(parameters),
            kernel_name="python3",
            language="python",
            cwd=str(source.parent),
            progress_bar=False,
            kernel_manager_class=type("_OneKernel", (_Kernel,), {"environment": environment}),
            **({"stdout_file": sys.stdout, "stderr_file": sys.stderr} if show else {}),
        )
    except Exception as error:
        return _failure(error, target)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "left" if any(each.get("ename") == "SystemExit" for each in outputs) else "complete"


def _failure(error: Exception, target: Path) -> Error:
    if isinstance(error, PapermillExecutionError):
        kind, message, lines = error.ename, error.evalue, "\n".join(error.traceback)
    else:
        kind, message = type(error).__name__, str(error)
        lines = "".join(traceback.format_exception(error))
    found = {"type": kind, "message": _COLOURS.sub("", message), "cell": None}
    with suppress(OSError, ValueError):  # the file may be truncated if the disk is full
        cells = [cell for cell in nbformat.read(target, 4).cells if cell.cell_type == "code"]
        begun = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
        found["cell"] = {"number": len(begun), "source": begun[-1].source} if begun else None
    return {**found, "traceback": _COLOURS.sub("", lines)}


def _plain(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats paths


def _lock(folder: Path, timeout: float = 0) -> FileLock:
    """The lock of a folder; rejects links, since writing through them changes files elsewhere."""
    inside = (folder, *folder.rglob("*")) if timeout == 0 else (folder / ".lock",)
    if link := next((path for path in inside if path.is_symlink()), None):
        raise ValueError(f"{link} is a link, and a run would write through it: remove the link")
    return FileLock(folder / ".lock", timeout=timeout)


def _resume(record: Record, notebook: Notebook) -> None:
    """Remove files of an earlier attempt, and update the environment stamp."""
    before = record.read("env.json", earlier=list)
    earlier = [*before.pop("earlier", []), before]
    config = {**record.config, "code": notebook.code}
    for name in ("error.json", "result.json"):
        (record.folder / name).unlink(missing_ok=True)
    record.write("env.json", {**stamp(), "earlier": earlier})
    record.write("config.json", config)


def _settle(record: Record, end: Error | str, seconds: float) -> None:
    """Write the status files of the run, and remove files that contradict them."""
    if end == "complete":
        record.finish(**{**record.result, "wall_seconds": seconds})
        return
    # a result written before a failure or the time limit is incomplete
    (record.folder / "result.json").unlink(missing_ok=True)
    if isinstance(end, dict):
        record.write("error.json", end)


def _one_line(error: Mapping[str, Any]) -> str:
    message = " ".join(f"{error['type']}: {error['message']}".split()).removesuffix(":")
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} ..."
    return f"{message} in cell [{error['cell']['number']}]" if error.get("cell") else message
