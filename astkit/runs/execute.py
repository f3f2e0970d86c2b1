"""The one way to execute a notebook: papermill, with this interpreter as its kernel.

Kernels are ended by an interrupt of the process that started them, and end by themselves when that
process is killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from papermill.exceptions import PapermillExecutionError

_GRACE = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 0.0))
"""What a kernel is sent in turn, and the seconds that it is given to end."""
_POLL_SECONDS = 0.05
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_interrupted = threading.Event()
_running: set[type[_Kernel]] = set()


class _Kernel(AsyncKernelManager):
    """This very interpreter, whatever kernels the machine has; one subclass a run."""

    environment: Mapping[str, str]
    pid: int | None = None

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
        # what the notebook itself prints comes by messages: the rest are complaints of the debugger
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await super().start_kernel(**options, **quiet, env={**os.environ, **self.environment})
        type(self).pid = getattr(self.provisioner, "pid", None)


@dataclass(frozen=True)
class End:
    """How an execution ended.

    Attributes:
        status: "complete"; "failed"; "left" where a cell raised ``SystemExit(0)``, as after a time
            limit; "interrupted" where the kernel was ended from here.
        error: type, message, traceback, and the last cell that was begun; of a failure.
    """

    status: Literal["complete", "failed", "left", "interrupted"]
    error: dict[str, Any] = field(default_factory=dict)


def execute(
    source: Path,
    target: Path,
    parameters: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    show: bool = False,
) -> End:
    """Execute the notebook ``source`` into ``target``; a failure is returned, not raised.

    Args:
        source: path of the notebook; its folder is the kernel's working directory.
        target: path of the executed notebook; written cell by cell, and kept when one fails.
        parameters: values in place of those of its parameters cell.
        environment: variables of the kernel, beside those of this process.
        show: print what the notebook prints.
    """
    kernel = type("_OneKernel", (_Kernel,), {"environment": dict(environment or {})})
    if interrupted():
        return End("interrupted")
    _running.add(kernel)
    try:
        done = papermill.execute_notebook(
            _plain(source),
            _plain(target),
            dict(parameters),
            kernel_name="python3",
            cwd=str(source.parent),
            progress_bar=False,
            kernel_manager_class=kernel,
            on_cell_start=_stop_if_interrupted,
            **({"stdout_file": sys.stdout, "stderr_file": sys.stderr} if show else {}),
        )
    except Exception as error:
        return End("interrupted") if interrupted() else End("failed", _failure(error, target))
    finally:
        _running.discard(kernel)
    if interrupted():  # a cell may have swallowed the interrupt, and left its work undone
        return End("interrupted")
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    left = any(output.get("ename") == "SystemExit" for output in outputs)
    return End("left" if left else "complete")


@contextmanager
def interruptible(local: bool = True) -> Iterator[None]:
    """End the kernels at SIGINT, SIGTERM or SIGHUP; at its end the block raises for them.

    Args:
        local: whether kernels of this process do the work; if not, ``KeyboardInterrupt`` is raised
            at once and wherever the block is.

    Raises:
        KeyboardInterrupt: when there was such a signal.
    """
    before = {}

    def note(_number: int, _frame: FrameType | None) -> None:
        _end_kernels()
        if not local:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and the like asked for that
                before[number] = signal.signal(number, note)
    try:
        yield
        if interrupted():
            raise KeyboardInterrupt
    except BaseException:
        _end_kernels()
        while _running:
            time.sleep(_POLL_SECONDS)
        raise
    finally:
        _interrupted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted() -> bool:
    """Whether the kernels are being ended, and no more are to be started."""
    return _interrupted.is_set()


def _stop_if_interrupted(**_: Any) -> None:
    if interrupted():  # a kernel between two cells takes no notice of a signal
        raise RuntimeError("interrupted")


def _end_kernels() -> None:
    if not interrupted():
        _interrupted.set()
        threading.Thread(target=_signal_in_turn, args=(list(_running),), daemon=True).start()


def _signal_in_turn(kernels: list[type[_Kernel]]) -> None:
    for number, seconds in _GRACE:
        for kernel in kernels:
            if kernel in _running and kernel.pid is not None:
                try:
                    os.kill(kernel.pid, number)
                except ProcessLookupError:
                    continue
        end = time.monotonic() + seconds
        while time.monotonic() < end and _running.intersection(kernels):
            time.sleep(_POLL_SECONDS)


def _plain(path: Path) -> str:
    # papermill fills in braces of a path
    return str(path).replace("{", "{{").replace("}", "}}")


def _failure(error: Exception, target: Path) -> dict[str, Any]:
    if isinstance(error, PapermillExecutionError):
        kind, message, lines = error.ename, error.evalue, "\n".join(error.traceback)
    else:
        kind, message = type(error).__name__, str(error)
        lines = "".join(traceback.format_exception(error))
    return {
        "type": kind,
        "message": _COLOURS.sub("", message),
        "traceback": _COLOURS.sub("", lines),
        "cell": _last_cell(target),
    }


def _last_cell(target: Path) -> dict[str, Any] | None:
    """Number and source of the code cell that was begun last; ``None`` before the first."""
    if not target.exists():
        return None
    cells = [cell for cell in nbformat.read(target, 4).cells if cell.cell_type == "code"]
    begun = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
    return {"number": len(begun), "source": begun[-1].source} if begun else None
