"""Metrics on disk as they come: one line of JSON a record, written beside the training thread."""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

from astkit.background import BackgroundWriter, Coalesced
from astkit.files import check_target, write_atomic

PHASES = ("train", "epoch", "event")


class MetricsFile:
    """An observer that appends each record to a JSONL file; ``read`` gives them back.

    A line is ``{"step": ..., "phase": "train" | "epoch" | "event", ...}``. A number that is not
    finite becomes ``null``, with ``"<name>_reason"`` saying "NaN", "Infinity" or "-Infinity", so
    that every line is valid JSON (RFC 8259). Lines that gather within a fifth of a second, or while
    the disk is busy, are written together; a process that is killed loses those. ``close``, which
    the end of a run calls, waits until all lines are on the disk (fsync); more may follow. An
    existing file is continued, without a torn last line of a crash; a run that is resumed from a
    checkpoint first drops the lines that came after it.

    Args:
        path: the file; missing folders are made.
        writer: whose thread writes.

    Attributes:
        lines: whole lines so far, those of the continued file included; belongs in a checkpoint.

    Raises ``ValueError`` for metrics that JSON cannot hold, and for a link, a device or a pipe.
    """

    def __init__(self, path: str | os.PathLike[str], writer: BackgroundWriter) -> None:
        self.path, self.writer = check_target(path), writer
        content = self.path.read_bytes() if self.path.exists() else None
        lines = _whole_lines(content or b"")
        if content is None or len(b"".join(lines)) < len(content):
            write_atomic(self.path, b"".join(lines))
        self.lines = len(lines)
        self._gathered = Coalesced(writer, self._append, f"writing metrics to {self.path}")

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Have one line written; batches of validation are left out."""
        if phase in PHASES:
            line = encode({"step": step, "phase": phase, **metrics})
            self.lines += 1
            self._gathered.put(line)

    def sync(self) -> BackgroundWriter:
        """Have all lines so far written with fsync, before a checkpoint; by whom."""
        self.writer.put(self._finish, f"writing metrics to {self.path}")
        return self.writer

    def close(self) -> None:
        """Wait until every line is on the disk."""
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
        """Drop the lines that came after ``state``, atomically.

        Warns when the file holds fewer lines than it should; raises ``ValueError`` for a damaged
        line.
        """
        self.writer.flush()
        content, wanted = self.path.read_bytes(), int(state["lines"])
        lines = _whole_lines(content)
        _records(lines, self.path)
        if len(lines) < wanted:
            warnings.warn(
                f"{self.path} holds {len(lines)} lines, but {wanted} were written: a crash of the"
                " machine has lost the others",
                stacklevel=2,
            )
        if (kept := b"".join(lines[:wanted])) != content:
            write_atomic(self.path, kept)
        self.lines = min(wanted, len(lines))

    def _append(self, lines: list[str]) -> None:
        with open(self.path, "ab") as file:
            file.write("".join(lines).encode())

    def _finish(self) -> None:
        self._gathered.drain()
        with open(self.path, "ab") as file:
            os.fsync(file.fileno())


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; a torn last line is left out.

    Raises ``ValueError`` for a damaged line, ``FileNotFoundError`` without a file.
    """
    return _records(_whole_lines(Path(path).read_bytes()), path)


def encode(record: dict[str, Any]) -> str:
    """``record`` as one line of JSON; raises ``ValueError`` for what JSON cannot hold."""
    plain: dict[str, Any] = {}
    for name, value in record.items():
        lost: list[str] = []
        plain[name] = _plain(name, value, lost)
        if lost:
            plain[f"{name}_reason"] = lost[0]
    return json.dumps(plain, allow_nan=False) + "\n"


def _plain(name: str, value: Any, lost: list[str]) -> Any:
    """``value`` for JSON; numbers that are not finite become None and are named in ``lost``."""
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
    lines = content.split(b"\n")[:-1]  # after the last newline: nothing, or a torn line
    return [line + b"\n" for line in lines]


def _records(lines: list[bytes], path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if type(record["step"]) is not int or record["phase"] not in PHASES:
                raise ValueError("no whole number as step, or no known phase")
            records.append(record)
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                f"line {number} of {path} is damaged ({error}): delete that line, or the file"
            ) from error
    return records
