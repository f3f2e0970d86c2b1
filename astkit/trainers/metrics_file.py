"""A file of records: one JSON object a line, on disk before each checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from astkit.files import plain_values, write_atomic

PHASES = ("train", "epoch", "event")


class MetricsFile:
    """An observer that appends each record to a JSONL file; see `read_metrics`.

    A line is ``{"step": ..., "phase": "train" | "epoch" | "event", ...}``. A non-finite number is
    written as ``null``, so that every line is valid JSON (RFC 8259). Lines are on disk (fsync)
    before a checkpoint is written and at the end of a run. An existing file is continued; an
    incomplete last line is removed. Resuming removes the lines after the checkpoint, and where a
    run has none yet, all lines: give each run its own file.

    Args:
        path: the file; missing folders are created.

    Attributes:
        lines: number of complete lines, including those of a continued file; saved in checkpoints.

    Raises ``ValueError`` for metrics that JSON cannot represent.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        content = self.path.read_bytes() if self.path.exists() else None
        lines = _whole_lines(content or b"")
        if content is None or len(b"".join(lines)) < len(content):
            write_atomic(self.path, b"".join(lines))
        self.lines = len(lines)
        self._waiting: list[str] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep one line, which is written with the next ones."""
        record = plain_values({"step": step, "phase": phase, **metrics})
        self._waiting.append(json.dumps(record, allow_nan=False) + "\n")
        self.lines += 1
        if phase != "train" or len(self._waiting) >= 50:
            self._write(safe=False)

    def _write(self, safe: bool) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with open(self.path, "ab") as file:
                file.write("".join(self._waiting).encode())
                if safe:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            os.truncate(self.path, size)  # the rest would follow half a line
            raise
        self._waiting = []

    def sync(self) -> None:
        """Write all lines and wait until they are on disk."""
        self._write(safe=True)

    close = sync

    def state_dict(self) -> dict[str, Any]:
        """Name of the file, and the number of its lines."""
        return {"file": self.path.name, "lines": self.lines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remove the lines written after ``state``, atomically.

        Raises ``ValueError`` for a damaged line, missing lines, and the state of another file.
        """
        self._write(safe=False)
        content, wanted = self.path.read_bytes(), int(state["lines"])
        lines = _whole_lines(content)
        _records(lines, self.path)
        if state["file"] != self.path.name or len(lines) < wanted:
            raise ValueError(
                f"{self.path} has {len(lines)} lines, but this run had written {wanted} to"
                f" {state['file']}: pass that file, or no MetricsFile"
            )
        if (kept := b"".join(lines[:wanted])) != content:
            write_atomic(self.path, kept)
        self.lines = wanted


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; an incomplete last line is ignored.

    Raises ``ValueError`` for a damaged line, ``FileNotFoundError`` if the file is missing.
    """
    return _records(_whole_lines(Path(path).expanduser().read_bytes()), path)


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
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"line {number} of {path} is damaged ({error}): delete that line, or the file"
            ) from error
    return records
