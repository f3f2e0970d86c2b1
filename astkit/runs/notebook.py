"""Run a notebook with parameters in its run folder, with papermill.

An interrupt of this process ends the kernel; a kernel exits by itself if this process is killed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nbformat
import numpy as np
import papermill
from filelock import FileLock
from filelock import Timeout as Locked
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from papermill.exceptions import PapermillExecutionError

from astkit.files import CHECKOUT
from astkit.runs.record import FOLDER, LONGEST, Record, digest
from astkit.stamp import source_hash, stamp

_PACKAGE = Path(__file__).parents[1]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Parameters = dict[str, Any]
Error = dict[str, Any]


@dataclass(frozen=True)
class Notebook:
    """A notebook with its parameters; created by `read`.

    Attributes:
        path: its absolute path.
        defaults: parameters and default values, from the cell tagged ``parameters``.
        code: eight hexadecimal digits of a hash over its code cells.
    """

    path: Path
    defaults: Parameters
    code: str

    def default(self, name: str) -> Any:
        """The default of a parameter; ``ValueError`` for an unknown one."""
        if name not in self.defaults:
            known = ", ".join(self.defaults) or "those of a first code cell tagged 'parameters'"
            raise ValueError(f"{self.path.name} has no parameter {name!r}: choose from {known}")
        return self.defaults[name]

    def fit(self, name: str, value: Any) -> Any:
        """``value`` converted to the type of the parameter's default.

        Integers are converted to float if the default is a float, a single value becomes a list if
        it is a list, and a default of ``None`` accepts anything. Raises ``ValueError`` for
        other types, unknown names, and values that JSON would change, such as a tuple in a list.
        """
        default = self.default(name)
        try:
            fitted = _fit(value, default)
        except TypeError:
            raise ValueError(
                f"{name} is {value!r}, but its default in {self.path.name} is {default!r}: give a"
                f" value of that type ({type(default).__name__})"
            ) from None
        if not _kept_by_json(fitted):
            raise ValueError(
                f"{name} is {value!r}, which JSON cannot keep as it is: give finite numbers,"
                " strings, lists, or mappings with strings as keys"
            )
        return fitted

    def values(self, options: Sequence[str]) -> dict[str, list[Any]]:
        """The values in ``name=values`` options, separated by commas, in the types of the defaults.

        A string is taken verbatim, or in quotes where it contains a comma; other values are
        literals. Raises ``ValueError`` for unknown names and values of another type.
        """
        columns = {}
        for name, text in assignments(options).items():
            parts = [part.strip() for part in text.split(",")]
            values = literal(f"[{text}]")
            if isinstance(self.default(name), str):
                quoted = isinstance(values, list) and {type(value) for value in values} == {str}
                values = values if quoted else parts
            elif not isinstance(values, list):
                values = [_closed(name, part) for part in parts]
            columns[name] = [self.fit(name, value) for value in values]
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


def read(path: str | os.PathLike[str]) -> Notebook:
    """Read a notebook's parameters: the names that its first tagged cell assigns literals to.

    Raises ``FileNotFoundError`` for a missing file, ``ValueError`` for a file that is not a
    notebook or a parameter that is not a literal.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}")
    try:
        cells = nbformat.read(path, 4).cells
        code = digest({"code": ["".join(c.source) for c in cells if c.cell_type == "code"]})
        tagged = [c.source for c in cells if "parameters" in c.metadata.get("tags", [])]
    except Exception as error:  # nbformat may raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a notebook: {reason[:LONGEST]}") from error
    defaults = {}
    for name, value in _assigned(path.name, "".join(tagged[:1])):
        try:
            defaults[name] = ast.literal_eval(value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            raise ValueError(
                f"parameter {name} of {path.name} is {ast.unparse(value)[:LONGEST]!r}: give it a"
                " literal, and compute in the next cell"
            ) from None
    return Notebook(path.resolve(), defaults, code)


def run(
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

    Raises ``ValueError`` for unknown parameters, links in the run's folder, and a folder that
    another notebook of the same name uses.
    """
    parameters = {name: notebook.fit(name, value) for name, value in parameters.items()}
    name, every, seed = _identity(notebook, parameters)
    root = Path(root).expanduser()
    place = os.path.relpath(notebook.path, root.resolve())  # both may move together
    files = {"notebook": notebook.path.name, "place": place, "code": notebook.code}
    record = Record.create(root, name, every, seed, **files)
    before = {**files, **record.config}
    there = (root / before["place"]).exists()  # else it was moved here
    if there and before["place"] != place and before["code"] != notebook.code:
        raise ValueError(
            f"{record.folder} belongs to another notebook, {before['place']}: rename one of the"
            " two, or name another folder of runs"
        )
    try:
        if again:
            with _locked(record.folder):
                shutil.rmtree(record.folder)
            record = Record.create(root, name, every, seed, **files)
        with _locked(record.folder):
            if record.status == "complete":
                return _outcome(notebook, parameters, record)
            for file in ("error.json", "result.json"):  # of an earlier attempt
                (record.folder / file).unlink(missing_ok=True)
            record.write("env.json", stamp())
            record.write("config.json", {**record.config, **files})
            return _run(notebook, parameters, record, show)
    except Locked:
        return Outcome(parameters, "busy", folder=record.folder)


def _outcome(notebook: Notebook, parameters: Parameters, record: Record) -> Outcome:
    """The outcome of a run that is not being executed, read from its folder."""
    if record.status == "failed":
        return Outcome(parameters, "failed", error=record.reason, folder=record.folder)
    if record.status != "complete":
        return Outcome(parameters, "incomplete", folder=record.folder)
    sources = {
        notebook.path.name: (record.config.get("code"), notebook.code),
        "astkit": (record.read("env.json").get("source"), source_hash(_PACKAGE)),
    }
    changed = [name for name, (then, now) in sources.items() if then != now]
    note = f"{' and '.join(changed)} changed since: run it with --again" if changed else ""
    seconds = record.result.get("wall_seconds")
    return Outcome(parameters, "complete", seconds, folder=record.folder, note=note)


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
            _unformatted(source),
            _unformatted(target),
            dict(parameters),
            kernel_name="python3",
            language="python",
            cwd=str(source.parent),
            progress_bar=False,
            kernel_manager_class=type("_OneKernel", (_Kernel,), {"environment": environment}),
            **({"stdout_file": sys.stdout, "stderr_file": sys.stderr} if show else {}),
        )
    except Exception as error:
        return _failure(error)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "left" if any(each.get("ename") == "SystemExit" for each in outputs) else "complete"


def literal(text: str) -> Any:
    """The value of a JSON or Python literal, or ``text`` itself if it is none."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text.strip())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return text


def assignments(options: Sequence[str], flag: str = "-p") -> dict[str, str]:
    """``name=value`` options as a mapping; raises ``ValueError`` for invalid or repeated ones."""
    values: dict[str, str] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ValueError(f"{flag} is {option!r}: give name=value")
        if name.strip() in values:
            raise ValueError(f"{flag} gives {name.strip()} twice: give it once")
        values[name.strip()] = text
    return values


def _assigned(notebook: str, source: str) -> Iterator[tuple[str, ast.expr]]:
    """The names that the parameters cell of ``notebook`` assigns, and what it assigns to them."""
    try:
        statements = ast.parse(TransformerManager().transform_cell(source)).body  # with magics
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"the parameters cell of {notebook} is not Python ({error}): give it assignments alone"
        ) from None
    for statement in statements:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value


def _closed(name: str, text: str) -> Any:
    """The value of a literal, or ``text``; raises ``ValueError`` for a part of a literal."""
    value = literal(text)
    if isinstance(value, str) and text[:1] in ("[", "{", "("):
        raise ValueError(f"{name} is {text!r}: close its brackets, and quote its strings")
    return value


def _kept_by_json(value: Any) -> bool:
    try:
        value = list(value) if isinstance(value, tuple) else value
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _fit(value: Any, default: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if default is None:
        return value
    if isinstance(default, list):
        entries = value if isinstance(value, list | tuple) else [value]
        # entries of several types do not determine the type of a new entry
        several = len({type(entry) for entry in default}) != 1
        return [_fit(entry, None if several else default[0]) for entry in entries]
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        value = tuple(value)
    if type(value) is not type(default):
        raise TypeError
    return value


def _identity(notebook: Notebook, parameters: Mapping[str, Any]) -> tuple[str, Parameters, int]:
    """Name, all parameters and seed of a run; the name can be a part of a folder's."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", notebook.path.stem).strip("_.-") or "notebook"
    every = {**notebook.defaults, **parameters}
    seed = every.get("seed", every.get("seeds", 0))
    if isinstance(seed, list) and len(seed) == 1:
        seed = seed[0]
    return name, every, seed if type(seed) is int else 0


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; rejects links in it, since writing through them changes files elsewhere."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            raise ValueError(f"{path} is a link, and a run would write through it: remove the link")
    with FileLock(folder / ".lock", timeout=0):
        yield


def _run(notebook: Notebook, parameters: Parameters, record: Record, show: bool) -> Outcome:
    """Execute a notebook in its locked folder, and write the status files of the run."""
    environment = {FOLDER: str(record.folder.resolve())}
    target = record.folder.resolve() / "notebook.ipynb"
    start = time.perf_counter()
    with record.unfinished():
        end = execute(notebook.path, target, parameters, environment=environment, show=show)
        seconds = time.perf_counter() - start
        if end == "complete":
            record.finish(**{**record.result, "wall_seconds": seconds})
        else:  # a result written before a failure or the time limit is incomplete
            (record.folder / "result.json").unlink(missing_ok=True)
        if isinstance(end, dict):
            record.write("error.json", end)
    done = _outcome(notebook, parameters, record)
    note = "the time limit was reached: run it again to resume" if end == "left" else ""
    return Outcome(parameters, done.status, seconds, done.error, record.folder, True, note)


class _Kernel(AsyncKernelManager):
    """A kernel that runs this interpreter, whatever kernels are installed; one subclass per run."""

    environment: Mapping[str, str]

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
        # notebook output arrives as messages; these streams carry only debugger warnings
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # the astkit of this process, which env.json describes
        paths = [*([str(CHECKOUT)] if CHECKOUT else []), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **self.environment}
        await super().start_kernel(**options, **quiet, env={**os.environ, **variables})


def _failure(error: Exception) -> Error:
    if isinstance(error, PapermillExecutionError):
        kind, message, lines = error.ename, error.evalue, "\n".join(error.traceback)
        cell = {"number": error.exec_count, "source": error.source}
    else:  # such as a kernel that died
        kind, message, cell = type(error).__name__, str(error), None
        lines = "".join(traceback.format_exception(error))
    message, lines = _COLOURS.sub("", message), _COLOURS.sub("", lines)
    return {"type": kind, "message": message, "cell": cell, "traceback": lines}


def _unformatted(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats paths
