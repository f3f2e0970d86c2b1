"""Execute a notebook with papermill, in a kernel that uses this interpreter.

Interrupting this process ends its kernels; a kernel exits by itself if this process is killed.
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
    """A kernel that runs this interpreter, whatever kernels are installed; one subclass per run."""

    environment: Mapping[str, str]
    pid: int | None = None

    @property
    def kernel_spec(self) -> KernelSpec:
        # -P: while the kernel starts, a json.py beside the notebook must not replace Python's own
        command = [sys.executable, "-P", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
        # notebook output arrives as messages; these streams carry only debugger warnings
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await super().start_kernel(**options, **quiet, env={**os.environ, **self.environment})
        type(self).pid = getattr(self.provisioner, "pid", None)


@dataclass(frozen=True)
class End:
    """How an execution ended.

    Attributes:
        status: "complete"; "failed"; "left" if a cell raised ``SystemExit(0)``, for example at a
            time limit; "interrupted" if this process ended the kernel.
        error: type, message and traceback of a failure, and the last cell that was started.
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
    """Execute the notebook ``source`` into ``target``; failures are returned, not raised.

    Args:
        source: path of the notebook; its folder is the kernel's working directory.
        target: path of the executed notebook; written after each cell, and kept after a failure.
        parameters: values that replace those of the parameters cell.
        environment: additional environment variables of the kernel.
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
    if interrupted():  # a cell may have caught the interrupt and stopped early
        return End("interrupted")
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    left = any(output.get("ename") == "SystemExit" for output in outputs)
    return End("left" if left else "complete")


@contextmanager
def interruptible() -> Iterator[None]:
    """Within this context, SIGINT, SIGTERM and SIGHUP end the kernels.

    Raises ``KeyboardInterrupt`` on exit if such a signal was received.
    """
    before = {}

    def handle(_number: int, _frame: FrameType | None) -> None:
        end_kernels()

    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
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
    """Whether the kernels are being ended, so that no new ones may start."""
    return _interrupted.is_set()


def _stop_if_interrupted(**_: Any) -> None:
    if interrupted():  # a kernel between two cells ignores signals
        raise RuntimeError("interrupted")


def end_kernels() -> None:
    """Start ending all kernels; no new ones start until `interruptible` exits."""
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
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats paths


def _failure(error: Exception, target: Path) -> dict[str, Any]:
    if isinstance(error, PapermillExecutionError):
        kind, message, lines = error.ename, error.evalue, "\n".join(error.traceback)
    else:
        kind, message = type(error).__name__, str(error)
        lines = "".join(traceback.format_exception(error))
    cell = None
    with suppress(OSError, ValueError):  # the file may be truncated if the disk is full
        cells = [cell for cell in nbformat.read(target, 4).cells if cell.cell_type == "code"]
        begun = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
        cell = {"number": len(begun), "source": begun[-1].source} if begun else None
    return {
        "type": kind,
        "message": _COLOURS.sub("", message),
        "traceback": _COLOURS.sub("", lines),
        "cell": cell,
    }
