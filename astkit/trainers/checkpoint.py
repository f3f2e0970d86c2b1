"""Checkpoints: writes and finds checkpoint files. Called by ``_save`` in resume.py.

Bytes are written by state_file.py. On deterministic devices, a resumed run ends with bitwise
the same weights, thresholds, metrics and counts as an uninterrupted one.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch requires it

from astkit import distributed
from astkit.background import BackgroundWriter
from astkit.trainers import state_file
from astkit.trainers.state_file import DamagedError, Packed

_NAME = re.compile(r"\d+_step\d+_[0-9a-f]+\.safetensors(\.gz)?")
_PARTS = ("identity", "model", "optimizer", "loop")
PATIENCE = 6.0  # seconds; loader workers exit after their parent process dies


class Checkpoints:
    """Folder, interval and retention of the checkpoints of a trainer.

    ``Trainer(..., checkpoints=Checkpoints("runs/mine/ckpt", every=500), resume=True)``.

    Checkpoints are written after every ``every`` training batches, after each epoch, and when the
    run is interrupted or iteration over it is stopped. The training thread copies the state; a
    background thread writes the file after all preceding metrics. A queued copy is replaced by the
    next one. During training the folder is locked; other trainers raise ``ValueError``. Of several
    processes, all read the checkpoints, and process 0 writes them.

    Args:
        folder: used exclusively for these files; created if missing.
        every: interval in training batches; ``None`` for epochs only.
        pause: minimum interval in seconds; does not apply when a run ends or is stopped.
        keep: number of newest checkpoints to keep; use 2 or more to recover from a damaged file.
        compress: gzip the files; usually slower unless the disk is slow.

    Raises ``ValueError`` for numbers below 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        pause: float = 0.0,
        keep: int = 2,
        compress: bool = False,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give 1 or more")
        self.folder, self.every, self.pause = Path(folder), every, pause
        self.keep, self.compress = keep, compress
        self.writer = BackgroundWriter()
        self._lock = FileLock(self.folder / ".lock", thread_local=False)
        self._number = 0
        self._last = time.monotonic()

    def open(self, resume: bool) -> tuple[Path, dict[str, Any]] | None:
        """Load the newest valid checkpoint; ``None`` for a new run.

        Raises ``ValueError`` if checkpoints exist and ``resume`` is false, if all are damaged, and
        if the folder is in use.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if distributed.rank() > 0:  # process 0 alone locks the folder
            return self._found(resume)
        self._acquire()
        try:
            for torn in self.folder.glob(".*_step*"):  # left by a process killed while writing
                torn.unlink()
            return self._found(resume)
        finally:
            self._lock.release()

    def _found(self, resume: bool) -> tuple[Path, dict[str, Any]] | None:
        paths = listed(self.folder)
        self._number = 1 + max(map(_number, paths), default=0)
        if paths and not resume:
            raise ValueError(
                f"{self.folder} holds checkpoints of an earlier run: pass resume=True to continue"
                " it, or choose another folder"
            )
        return newest(self.folder) if paths else None

    def hold(self) -> None:
        """Lock the folder until `close`.

        Raises ``ValueError`` if another trainer uses the folder or has written to it since `open`.
        """
        if distributed.rank() > 0:
            return
        self._acquire()
        if max(map(_number, listed(self.folder)), default=0) >= self._number:
            self._lock.release()
            raise ValueError(
                f"another trainer has written to {self.folder} since this one was built: build it"
                " again with resume=True"
            )

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
        """Whether the pause after the latest checkpoint is over, in all processes."""
        over = time.monotonic() - self._last >= self.pause
        return distributed.least(over) == [1.0] if self.pause else over

    def write(self, state: dict[str, Any], step: int, after: Sequence[BackgroundWriter]) -> None:
        """Copy ``state`` and queue it for writing once the writers in ``after`` have flushed.

        Raises `BackgroundError` if an earlier checkpoint could not be written.
        """
        packed, stem = Packed(state), f"{self._number:06}_step{step:08}"
        self._number += 1
        self._last = time.monotonic()

        def job() -> None:
            for writer in after:
                writer.flush()
            state_file.write(self.folder, stem, packed, self.compress)
            for path in listed(self.folder)[self.keep :]:
                path.unlink(missing_ok=True)

        self.writer.put(job, f"writing a checkpoint to {self.folder}", "checkpoint")

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise ValueError(
                f"another trainer is using {self.folder}: stop it, or choose another folder"
            ) from None


def listed(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in ``folder``, newest first."""
    paths = [path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name)]
    return sorted(paths, key=_number, reverse=True)


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
            wrong = [name for name in _PARTS if not isinstance(state.get(name), dict)]
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
    return int(path.name.partition("_")[0])
