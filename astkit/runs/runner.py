"""Run a notebook with parameters in its run folder, with papermill.

An interrupt of this process ends the kernel; a kernel exits by itself if this process is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import nbformat
import papermill
from filelock import FileLock
from filelock import Timeout as Locked
from papermill.exceptions import PapermillExecutionError
from tqdm.contrib import DummyTqdmFile

from astkit.names import assignments, literal
from astkit.runs.record import FOLDER, LONGEST, Record, digest
from astkit.stamp import source_hash, stamp

if TYPE_CHECKING:
    from nbformat import NotebookNode

PYTHON = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}
"""Metadata of a notebook that any Jupyter runs with its own Python."""

_PACKAGE = Path(__file__).parents[1]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Parameters = dict[str, Any]
Error = dict[str, Any]


@dataclass(frozen=True)
class Notebook:
    """A notebook with its parameters; created by `read_notebook`.

    Attributes:
        path: its absolute path.
        names: its parameters, as papermill finds them in the cell tagged ``parameters``.
        defaults: values of those that are literals on a line of their own.
        code: eight hexadecimal digits of a hash over its code cells.
    """

    path: Path
    names: tuple[str, ...]
    defaults: Parameters
    code: str

    def check(self, name: str, value: Any) -> Any:
        """``value``; raises ``ValueError`` if it cannot take the place of the parameter's default.

        It must have the default's type, where an integer may replace a float and anything ``None``,
        and be a value that JSON keeps as it is.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "those of a code cell tagged 'parameters'"
            raise ValueError(f"{self.path.name} has no parameter {name!r}: choose from {known}")
        default = self.defaults.get(name)
        sequence = isinstance(default, list | tuple) and isinstance(value, list)
        number = isinstance(default, float) and type(value) is int
        if not (default is None or type(value) is type(default) or sequence or number):
            kind, example = type(default).__name__, default
            if isinstance(default, list):
                example = [value]
            other = f"{name} is {value!r}, but its default in {self.path.name} is {default!r}"
            raise ValueError(f"{other}: give a {kind}, such as {example!r}")
        with suppress(TypeError, ValueError):
            if json.loads(json.dumps(value, allow_nan=False)) == value:
                return value
        plain = "finite numbers, strings, lists, or mappings with strings as keys"
        raise ValueError(f"{name} is {value!r}, which JSON cannot keep as it is: give {plain}")

    def values(self, options: Sequence[str]) -> dict[str, list[Any]]:
        """The values in ``name=values`` options: literals or words, separated by commas.

        Raises the errors of `check`, and ``ValueError`` for a part of a literal.
        """
        columns = {}
        for name, text in assignments(options).items():
            values = literal(f"[{text}]")
            if not isinstance(values, list):  # words among them
                values = [literal(part) for part in text.split(",")]
            for value in values:
                if isinstance(value, str) and value[:1] in ("[", "{", "(") and value in text:
                    remedy = "close its brackets, and quote its strings"
                    raise ValueError(f"{name} is {value!r}: {remedy}")
            columns[name] = [self.check(name, value) for value in values]
        return columns


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run; ``error`` and ``note`` have one line.

    Attributes:
        parameters: those given; ``config.json`` has all.
        status: "incomplete" if it stopped at a time limit or was interrupted, "busy" if another
            process has locked it.
        seconds: wall time of the kernel; ``None`` if unknown.
        executed: whether this call executed the run; false if it was already complete.
    """

    parameters: Parameters
    status: Literal["complete", "failed", "incomplete", "busy"]
    seconds: float | None = None
    error: str = ""
    folder: Path | None = None
    executed: bool = False
    note: str = ""


def load_notebook(path: str | os.PathLike[str]) -> NotebookNode:
    """A notebook as it was before papermill ran it: without the values and marks that it injects.

    Raises ``FileNotFoundError`` for a missing file, ``ValueError`` for one that is no notebook.
    """
    if not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"{path} is no file: give the path of a notebook")
    content = Path(path).expanduser().read_bytes()
    injected = {"injected-parameters", "papermill-error-cell-tag"}
    try:
        book = nbformat.reads(content.decode(), 4)
        book.cells = [
            cell for cell in book.cells if injected.isdisjoint(cell.metadata.get("tags", []))
        ]
        book.metadata.update(PYTHON)
        papermill.inspect_notebook(book)
    except Exception as error:  # nbformat may raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a notebook: {reason[:LONGEST]}") from error
    return book


def read_notebook(path: str | os.PathLike[str]) -> Notebook:
    """Read a notebook's parameters; raises the errors of `load_notebook`."""
    book = load_notebook(path)
    code = digest({"code": [cell.source for cell in book.cells if cell.cell_type == "code"]})
    defaults = {}
    parameters = papermill.inspect_notebook(book)
    for name, parameter in parameters.items():
        value = literal(parameter["default"])
        if value != parameter["default"]:  # else it is code, which is not run here
            defaults[name] = value
    return Notebook(Path(path).expanduser().resolve(), tuple(parameters), defaults, code)


def run_notebook(
    notebook: Notebook,
    parameters: Mapping[str, Any],
    root: str | os.PathLike[str] = "runs",
    *,
    again: bool = False,
    show: bool = False,
) -> Outcome:
    """Run ``notebook`` in its own kernel unless the run is complete; failures are in the outcome.

    An incomplete run resumes in its folder; the environment variable ``ASTKIT_RUN`` passes the
    folder to the notebook, which may load checkpoints from it. The folder is locked meanwhile. A
    notebook that fails is not complete, even if it wrote a result.

    Args:
        notebook: notebook to run, with its folder as working directory.
        parameters: those that replace defaults.
        root: parent folder of the run folders.
        again: delete an earlier run and start anew.
        show: print what the notebook prints.

    Raises ``ValueError`` for unknown parameters and values of another type.
    """
    given = {name: notebook.check(name, value) for name, value in parameters.items()}
    every = {**notebook.defaults, **given}
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", notebook.path.stem).strip("_.-") or "notebook"
    files = {"notebook": notebook.path.name, "code": notebook.code}
    record = Record.create(root, name, every, _seed(every), **files)
    try:
        if again:
            with FileLock(record.folder / ".lock", timeout=0):
                shutil.rmtree(record.folder)
            record = Record.create(root, name, every, _seed(every), **files)
        with FileLock(record.folder / ".lock", timeout=0):
            if record.status == "complete":
                return _outcome(notebook, given, record)
            record.write("env.json", stamp())
            record.write("config.json", {**record.config, **files})
            return _run(notebook, given, record, show)
    except Locked:
        return Outcome(given, "busy", folder=record.folder)


def execute(
    source: Path, record: Record, parameters: Mapping[str, Any], show: bool = False
) -> Error | Literal["complete", "left"]:
    """Execute the notebook ``source``, in its folder, into that of ``record``, cell by cell.

    ``parameters`` replace values of the parameters cell. Returns "left" if a cell raised
    ``SystemExit(0)``, such as at a time limit, and for a failure its type, message and traceback,
    and the last cell that was started.
    """
    folder = record.folder.resolve()
    path = str(folder / "notebook.ipynb").replace("{", "{{").replace("}", "}}")  # a template
    streams = {"stdout_file": DummyTqdmFile(sys.stdout), "stderr_file": DummyTqdmFile(sys.stderr)}
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(folder)  # the kernel inherits it
    try:
        done = papermill.execute_notebook(
            load_notebook(source),
            path,
            dict(parameters),
            cwd=str(source.parent),
            progress_bar={"desc": source.stem, "leave": False, "disable": None},  # cells
            extra_arguments=["--log-level=CRITICAL"],  # of the kernel, which prints warnings
            **(streams if show else {}),
        )
    except Exception as error:
        return _failure(error)
    finally:
        del os.environ[FOLDER]
        if before is not None:
            os.environ[FOLDER] = before
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "left" if any(each.get("ename") == "SystemExit" for each in outputs) else "complete"


def _seed(parameters: Parameters) -> int:
    """The seed of a run, for its folder's name and tables; 0 if it has several or none."""
    seed = parameters.get("seed", parameters.get("seeds"))
    if isinstance(seed, list) and len(seed) == 1:
        seed = seed[0]
    return seed if type(seed) is int else 0


def _run(notebook: Notebook, parameters: Parameters, record: Record, show: bool) -> Outcome:
    """Execute a notebook in its locked folder, and write the result or the error of the run."""
    result, failure = record.folder / "result.json", record.folder / "error.json"
    result.unlink(missing_ok=True)  # of an earlier attempt
    failure.unlink(missing_ok=True)
    start = time.perf_counter()
    end: Error | Literal["complete", "left"] = "left"
    try:
        end = execute(notebook.path, record, parameters, show)
    finally:
        if end != "complete":  # a result written before a failure or an interrupt is incomplete
            result.unlink(missing_ok=True)
    seconds = time.perf_counter() - start
    note = ""
    if end == "complete":
        record.finish(**{**record.result, "wall_seconds": seconds})
    elif end == "left":
        note = "the time limit was reached: run it again to resume"
    else:
        record.write(failure.name, end)
    done = _outcome(notebook, parameters, record)
    return replace(done, seconds=seconds, executed=True, note=note)


def _outcome(notebook: Notebook, parameters: Parameters, record: Record) -> Outcome:
    """The outcome of a run that is not being executed, read from its folder."""
    if record.status != "complete":
        return Outcome(parameters, record.status, error=record.reason, folder=record.folder)
    sources = {
        notebook.path.name: (record.config.get("code"), notebook.code),
        "astkit": (record.read("env.json").get("source"), source_hash(_PACKAGE)),
    }
    changed = [name for name, (then, now) in sources.items() if then != now]
    note = f"{' and '.join(changed)} changed since: run it with --again" if changed else ""
    seconds = record.result.get("wall_seconds")
    return Outcome(parameters, "complete", seconds, folder=record.folder, note=note)


def _failure(error: Exception) -> Error:
    if isinstance(error, PapermillExecutionError):
        kind, message, lines = error.ename, error.evalue, "\n".join(error.traceback)
        cell = {"number": error.exec_count, "source": error.source}
    else:  # such as a kernel that died
        kind, message, cell = type(error).__name__, str(error), None
        lines = "".join(traceback.format_exception(error))
    message, lines = _COLOURS.sub("", message), _COLOURS.sub("", lines)
    return {"type": kind, "message": message, "cell": cell, "traceback": lines}
