"""Execute a notebook with papermill, in a kernel that runs this interpreter.

An interrupt of this process ends its kernels; a kernel ends by itself when this process is killed.
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
from contextlib import contextmanager, suppress
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
"""The signals sent to a kernel one after the other, and the seconds to wait after each."""
_POLL_SECONDS = 0.05
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_interrupted = threading.Event()
_running: set[type[_Kernel]] = set()


class _Kernel(AsyncKernelManager):
    """This interpreter, whatever kernels are installed; one subclass a run."""

    environment: Mapping[str, str]
    pid: int | None = None

    @property
    def kernel_spec(self) -> KernelSpec:
        # -P: while the kernel starts, a json.py beside the notebook must not replace Python's own
        command = [sys.executable, "-P", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
        # the notebook's own output comes as messages; these streams carry debugger warnings
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await super().start_kernel(**options, **quiet, env={**os.environ, **self.environment})
        type(self).pid = getattr(self.provisioner, "pid", None)


@dataclass(frozen=True)
class End:
    """How an execution ended.

    Attributes:
        status: "complete"; "failed"; "left" where a cell raised ``SystemExit(0)``, as after a time
            limit; "interrupted" where this process ended the kernel.
        error: of a failure: type, message, traceback, and the last cell that was begun.
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
        environment: further variables of the kernel.
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
            language="python",
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
    if interrupted():  # a cell may have caught the interrupt and left its work undone
        return End("interrupted")
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    left = any(output.get("ename") == "SystemExit" for output in outputs)
    return End("left" if left else "complete")


@contextmanager
def interruptible() -> Iterator[None]:
    """A block in which SIGINT, SIGTERM and SIGHUP end the kernels.

    Raises ``KeyboardInterrupt`` at its end when there was such a signal.
    """
    before = {}

    def handle(_number: int, _frame: FrameType | None) -> None:
        end_kernels()

    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
                before[number] = signal.signal(number, handle)
    try:
        yield
        if interrupted():
            raise KeyboardInterrupt
    except BaseException:
        end_kernels()
        while _running:
            time.sleep(_POLL_SECONDS)
        raise
    finally:
        _interrupted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted() -> bool:
    """Whether the kernels are being ended, so that no more are to be started."""
    return _interrupted.is_set()


def _stop_if_interrupted(**_: Any) -> None:
    if interrupted():  # a kernel between two cells ignores a signal
        raise RuntimeError("interrupted")


def end_kernels() -> None:
    """Begin to end all kernels; until the end of `interruptible`, no more are started."""
    if not interrupted():
        _interrupted.set()
        threading.Thread(target=_signal_in_turn, args=(list(_running),), daemon=True).start()


def _signal_in_turn(kernels: list[type[_Kernel]]) -> None:
    for number, seconds in _GRACE:
        for kernel in _running.intersection(kernels):
            with suppress(ProcessLookupError):
                if kernel.pid is not None:
                    os.kill(kernel.pid, number)
        end = time.monotonic() + seconds
        while time.monotonic() < end and _running.intersection(kernels):
            time.sleep(_POLL_SECONDS)


def _plain(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill fills in braces


def _failure(error: Exception, target: Path) -> dict[str, Any]:
    if isinstance(error, PapermillExecutionError):
        kind, message, lines = error.ename, error.evalue, "\n".join(error.traceback)
    else:
        kind, message = type(error).__name__, str(error)
        lines = "".join(traceback.format_exception(error))
    cell = None
    with suppress(OSError, ValueError):  # a full disk may have cut the file off
        cells = [cell for cell in nbformat.read(target, 4).cells if cell.cell_type == "code"]
        begun = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
        cell = {"number": len(begun), "source": begun[-1].source} if begun else None
    return {
        "type": kind,
        "message": _COLOURS.sub("", message),
        "traceback": _COLOURS.sub("", lines),
        "cell": cell,
    }
