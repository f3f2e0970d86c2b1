"""Checkpoints: writes and finds checkpoint files. Called by ``_save`` in resume.py.

Bytes are written by state_file.py. On deterministic devices, a resumed run ends with bitwise
the same weights, thresholds, metrics and counts as an uninterrupted one.
"""

from __future__ import annotations

import math
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch requires it

from astkit.background import BackgroundWriter
from astkit.files import write_atomic
from astkit.trainers import state_file
from astkit.trainers.state_file import DamagedError, Packed

_NAME = re.compile(r"(best_)?(\d+)_step(\d+)_[0-9a-f]+\.safetensors(\.gz)?")
_PARTS: dict[str, Any] = {
    "identity": dict,
    "best": float | int | None,
    "model": dict,
    "optimizer": dict,
    "loop": dict,
}
BEST = ("val_accuracy", "val_loss")
PATIENCE = 6.0  # seconds; loader workers exit after their parent process dies

Direction = Callable[[str], bool | None]


class Checkpoints:
    """Folder, interval and retention of the checkpoints of a trainer.

    ``Trainer(..., checkpoints=Checkpoints("runs/mine/ckpt", every=500), resume=True)``.

    Checkpoints are written after every ``every`` training batches, after each epoch, and when
    iteration over the run is stopped. The training thread copies the state; a background thread
    writes the file after all preceding metrics. A queued copy is replaced by the next one. During
    training the folder is locked; other trainers raise ``ValueError``.

    Args:
        folder: used exclusively for these files; created if missing.
        every: interval in training batches; ``None`` for epochs only.
        pause: minimum interval in seconds; does not apply when a run ends or is stopped.
        keep: number of newest checkpoints to keep; use 2 or more to recover from a damaged file.
        best: epoch metric whose best checkpoint is kept in addition; its direction must be known.
            "auto" uses "val_accuracy" if available, else "val_loss"; ``None`` disables it.
            Non-finite values are never the best.
        compress: gzip the files; usually slower unless the disk is slow.
        writer: background writer; a new one by default. Use the same one for a `MetricsFile`.

    Raises ``ValueError`` for numbers below 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        pause: float = 0.0,
        keep: int = 2,
        best: str | None = "auto",
        compress: bool = False,
        writer: BackgroundWriter | None = None,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give 1 or more")
        self.folder, self.every, self.pause = Path(folder), every, pause
        self.keep, self.best = keep, best
        self.compress, self.writer = compress, writer or BackgroundWriter()
        self.record: float | None = None  # best value of the metric so far
        self._lock = FileLock(self.folder / ".lock", thread_local=False)
        self._run, self._number = "", 0
        self._last = time.monotonic()

    def open(self, resume: bool, direction: Direction) -> tuple[Path, dict[str, Any]] | None:
        """Load the newest valid checkpoint; ``None`` for a new run.

        Raises ``ValueError`` if checkpoints exist and ``resume`` is false, if all are damaged, if
        the newest belongs to another run, if the folder is in use, and for a metric of unknown
        direction.
        """
        if self.best not in (None, "auto") and direction(self.best or "") is None:
            raise ValueError(
                f"best is {self.best!r}, but whether higher is better is unknown: give"
                " Metric(name, function, higher_is_better=...), or choose 'val_loss'"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._acquire()
        try:
            for torn in self.folder.glob(".*_step*"):  # left by a process killed while writing
                torn.unlink()
            paths = listed(self.folder)
            self._number = 1 + max(map(_number, paths), default=0)
            if paths and not resume:
                raise ValueError(
                    f"{self.folder} holds checkpoints of an earlier run: pass resume=True to"
                    " continue it, or choose another folder"
                )
            found = newest(self.folder) if paths else None
            self._run = uuid.uuid4().hex if found is None else self._own(*found)
            return found
        finally:
            self._lock.release()

    def hold(self) -> None:
        """Lock the folder until `close` and write the id of the run.

        Raises ``ValueError`` if another trainer uses the folder or has written to it since `open`.
        """
        self._acquire()
        if max(map(_number, listed(self.folder)), default=0) >= self._number:
            self._lock.release()
            raise ValueError(
                f"another trainer has written to {self.folder} since this one was built: build it"
                " again with resume=True"
            )
        write_atomic(self.folder / "run", self._run)

    def close(self) -> None:
        """Wait until all checkpoints are written, then release the folder lock.

        Raises `BackgroundError` if a checkpoint could not be written.
        """
        try:
            self.writer.flush()
        finally:
            self._lock.release()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after training batch ``step``."""
        return self.every is not None and step % self.every == 0

    def rested(self) -> bool:
        """Whether the pause after the latest checkpoint is over."""
        return time.monotonic() - self._last >= self.pause

    def is_best(self, metrics: Mapping[str, Any], direction: Direction) -> bool:
        """Whether an epoch with these metrics is the best so far; if so, stores it as the best."""
        names = BEST if self.best == "auto" else (self.best or "",)
        name = next((name for name in names if metrics.get(name) is not None), None)
        if name is None or not math.isfinite(value := metrics[name]):
            return False
        sign = 1 if direction(name) else -1
        if self.record is not None and sign * value <= sign * self.record:
            return False
        self.record = value
        return True

    def write(
        self, state: dict[str, Any], step: int, best: bool, after: Sequence[BackgroundWriter]
    ) -> None:
        """Copy ``state`` and queue it for writing once the writers in ``after`` have flushed.

        Raises `BackgroundError` if an earlier checkpoint could not be written.
        """
        packed = Packed({**state, "run": self._run, "best": self.record})
        prefix, stem = "best_" if best else "", f"{self._number:06}_step{step:08}"
        self._number += 1
        self._last = time.monotonic()
        others = [writer for writer in after if writer is not self.writer]

        def job() -> None:
            for writer in others:
                writer.flush()
            # the best_ name is written first: if the process dies in between, neither file is lost
            path = state_file.write(self.folder, prefix + stem, packed, self.compress)
            if best:
                _link(path, path.with_name(path.name.removeprefix(prefix)))
            self._remove_old()

        # a queued best checkpoint must not be replaced
        self.writer.put(job, f"writing a checkpoint to {self.folder}", None if best else self)

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise ValueError(
                f"another trainer is using {self.folder}: stop it, or choose another folder"
            ) from None

    def _own(self, path: Path, state: dict[str, Any]) -> str:
        """The id of the run; raises ``ValueError`` if the folder belongs to another run."""
        file, run = self.folder / "run", str(state.get("run"))
        if file.exists() and file.read_text() != run:
            raise ValueError(
                f"{path} belongs to another run than this folder: remove it, or resume that run"
                " in its own folder"
            )
        return run

    def _remove_old(self) -> None:
        plain = [path for path in listed(self.folder) if not path.name.startswith("best_")]
        best = sorted(self.folder.glob("best_*"), key=_number)
        for path in [*plain[self.keep :], *best[:-1]]:
            path.unlink(missing_ok=True)


def listed(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in ``folder``, including the best one, newest first."""
    paths = [path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name)]
    # the plain name sorts before the best_ name of the same checkpoint
    return sorted(paths, key=lambda path: (_number(path), path.name[0].isdigit()), reverse=True)


def newest(folder: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The newest valid checkpoint and its state; warns about each damaged one.

    Raises ``ValueError`` if none is valid, ``FileNotFoundError`` if there is none.
    """
    paths = listed(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} contains no checkpoint: start the run without resume")
    for path in paths:
        try:
            state = state_file.read(path)
            wrong = [name for name, kind in _PARTS.items() if not isinstance(state.get(name), kind)]
            if wrong:
                raise DamagedError(f"{path} is not a checkpoint: {', '.join(wrong)} is missing")
            return path, state
        except (DamagedError, OSError) as error:
            warnings.warn(f"{error}; the previous checkpoint is used", stacklevel=3)
    raise ValueError(
        f"none of the {len(paths)} checkpoints in {folder} is valid: move the folder away and start"
        " a new run"
    )


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[2]) if match else 0


def _link(source: Path, target: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(source, target)
        except OSError:  # a file system without hard links
            write_atomic(target, source.read_bytes())
