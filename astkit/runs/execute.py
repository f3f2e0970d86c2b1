"""The process that a notebook is run from: ``python -m astkit.runs.execute``.

It imports no torch, so that it is soon there; the notebook's kernel is a child of it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
from ipykernel.kernelspec import write_kernel_spec
from papermill.exceptions import PapermillExecutionError

from astkit import files
from astkit.runs.children import LEFT

FAILED, INTERRUPTED = 1, 130
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def main(notebook: str, target: str, parameters: str, show: str) -> int:
    """Execute ``notebook`` into ``target`` and return an exit code.

    Args:
        notebook: path of the notebook, absolute; its folder is the kernel's working directory.
        target: path of the executed notebook; written cell by cell, and kept when one fails, whose
            error is then beside it in ``error.json``.
        parameters: a Python literal, by name.
        show: "show" to print what the notebook prints.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # whatever this process was started with
        signal.signal(number, signal.default_int_handler)
    shown = {"stdout_file": sys.stdout, "stderr_file": sys.stderr} if show == "show" else {}
    try:
        with _this_interpreter() as kernel:
            papermill.execute_notebook(
                _plain(notebook),
                _plain(target),
                ast.literal_eval(parameters),
                kernel_name=kernel,
                cwd=str(Path(notebook).parent),
                progress_bar=False,
                **shown,
            )
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        content = json.dumps(_failure(error, Path(target)), indent=1)
        files.write_atomic(Path(target).with_name("error.json"), content + "\n")
        return FAILED
    return LEFT if _left_early(Path(target)) else 0


@contextmanager
def _this_interpreter() -> Iterator[str]:
    """Name of a kernel that is this very interpreter, whatever kernels the machine has."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernels").mkdir()
        write_kernel_spec(Path(folder) / "kernels" / "python3")
        others = os.environ.get("JUPYTER_PATH")  # searched in turn, before all other places
        os.environ["JUPYTER_PATH"] = os.pathsep.join([folder, *([others] if others else [])])
        yield "python3"


def _plain(path: str) -> str:
    # papermill fills in braces of a path
    return path.replace("{", "{{").replace("}", "}}")


def _failure(error: Exception, target: Path) -> dict[str, Any]:
    if isinstance(error, PapermillExecutionError):
        kind, message = error.ename, error.evalue
        lines = "\n".join(error.traceback)
    else:
        kind, message = type(error).__name__, str(error)
        lines = "".join(traceback.format_exception(error))
    return {
        "type": kind,
        "message": _COLOURS.sub("", message),
        "traceback": _COLOURS.sub("", lines),
        "cell": _last_cell(target),
    }


def _left_early(target: Path) -> bool:
    """Whether a cell raised ``SystemExit(0)``, which papermill takes for a good end."""
    cells = nbformat.read(target, 4).cells
    return any(
        output.get("ename") == "SystemExit" for cell in cells for output in cell.get("outputs", [])
    )


def _last_cell(target: Path) -> dict[str, Any] | None:
    """Number and source of the code cell that was begun last; ``None`` before the first."""
    if not target.exists():
        return None
    cells = [cell for cell in nbformat.read(target, 4).cells if cell.cell_type == "code"]
    begun = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
    return {"number": len(begun), "source": begun[-1].source} if begun else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
