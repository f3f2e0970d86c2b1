"""Metrics as a JSONL file, one line per record, written by a background thread."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any

from astkit.background import BackgroundWriter
from astkit.files import check_target, write_atomic

PHASES = ("train", "epoch", "event")
PAUSE = 0.2  # seconds between writes; waking a thread costs more than a short line


class MetricsFile:
    """An observer that appends each record to a JSONL file; see `read`.

    A line is ``{"step": ..., "phase": "train" | "epoch" | "event", ...}``. A non-finite number is
    written as ``null`` with ``"<name>_reason"`` set to "NaN", "Infinity" or "-Infinity", so that
    every line is valid JSON (RFC 8259). Lines are buffered for up to 0.2 s, or while the disk is
    busy; a killed process loses buffered lines. ``close``, called at the end of a run, waits until
    all lines are on disk (fsync); the file can be used afterwards. An existing file is continued;
    an incomplete last line is removed. Resuming removes the lines after the checkpoint, and where a
    run has none yet, all lines: give each run its own file.

    Args:
        path: the file; missing folders are created.

    Attributes:
        lines: number of complete lines, including those of a continued file; saved in checkpoints.

    Raises ``ValueError`` for metrics that JSON cannot represent, and for links, devices and pipes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.writer = check_target(path), BackgroundWriter()
        content = self.path.read_bytes() if self.path.exists() else None
        lines = _whole_lines(content or b"")
        if content is None or len(b"".join(lines)) < len(content):
            write_atomic(self.path, b"".join(lines))
        self.lines = len(lines)
        self._what = f"writing metrics to {self.path}"
        self._waiting: deque[str] = deque()
        self._last = -math.inf

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Queue one line for writing; validation batches are ignored."""
        if phase in PHASES:
            line = encode({"step": step, "phase": phase, **metrics})
            self.lines += 1
            self._waiting.append(line)
            if (now := time.perf_counter()) - self._last >= PAUSE:
                self._last = now
                self.writer.put(self._append, self._what)

    def sync(self) -> BackgroundWriter:
        """Queue writing and fsync of all lines before a checkpoint; returns the writer."""
        self.writer.put(self._finish, self._what)
        return self.writer

    def close(self) -> None:
        """Wait until all lines are on disk."""
        try:
            self.sync()
        finally:
            self.writer.flush()

    def records(self) -> list[dict[str, Any]]:
        """The records of the file."""
        return read(self.path)

    def state_dict(self) -> dict[str, Any]:
        """The number of lines."""
        return {"lines": self.lines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remove the lines written after ``state``, atomically.

        Warns if the file has fewer lines than expected; raises ``ValueError`` for a damaged line.
        """
        self.writer.flush()
        content, wanted = self.path.read_bytes(), int(state["lines"])
        lines = _whole_lines(content)
        _records(lines, self.path)
        if len(lines) < wanted:
            warnings.warn(
                f"{self.path} holds {len(lines)} lines, but {wanted} were written: the others were"
                " lost in a crash of the machine",
                stacklevel=2,
            )
        if (kept := b"".join(lines[:wanted])) != content:
            write_atomic(self.path, kept)
        self.lines = min(wanted, len(lines))

    def _append(self) -> None:
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if lines:
            with open(self.path, "ab") as file:
                file.write("".join(lines).encode())

    def _finish(self) -> None:
        self._append()
        with open(self.path, "ab") as file:
            os.fsync(file.fileno())


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; an incomplete last line is ignored.

    Raises ``ValueError`` for a damaged line, ``FileNotFoundError`` if the file is missing.
    """
    return _records(_whole_lines(Path(path).read_bytes()), path)


def encode(record: dict[str, Any]) -> str:
    """``record`` as one line of JSON; raises ``ValueError`` for unsupported types."""
    plain: dict[str, Any] = {}
    for name, value in record.items():
        lost: list[str] = []
        plain[name] = _plain(name, value, lost)
        if lost:
            plain[f"{name}_reason"] = lost[0]
    return json.dumps(plain, allow_nan=False) + "\n"


def _plain(name: str, value: Any, lost: list[str]) -> Any:
    """``value`` for JSON; non-finite numbers become None and are added to ``lost``."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        lost.append("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")
        return None
    if isinstance(value, dict):
        return {str(key): _plain(name, part, lost) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, part, lost) for part in value]
    if hasattr(value, "tolist"):  # tensors and numpy values
        return _plain(name, value.tolist(), lost)
    raise ValueError(
        f"the metric {name!r} is a {type(value).__name__}, which a line of JSON cannot hold: log"
        " numbers, strings, or lists and mappings of them"
    )


def _whole_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")[:-1]  # after the last newline: empty or incomplete
    return [line + b"\n" for line in lines]


def _records(lines: list[bytes], path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if type(record["step"]) is not int or record["phase"] not in PHASES:
                raise ValueError("step is not an integer, or phase is unknown")
            records.append(record)
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                f"line {number} of {path} is damaged ({error}): delete that line, or the file"
            ) from error
    return records
