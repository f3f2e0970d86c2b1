"""Checkpoints: the whole state of a run, saved during training, to be resumed after a crash.

A resumed run ends with the weights, threshold, metrics and counts of one that was never
interrupted, to the bit where the device computes the same bits each time.
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
PATIENCE = 6.0  # seconds in which the loader's workers notice that their process was killed

Direction = Callable[[str], bool | None]


class Checkpoints:
    """Where a trainer keeps its checkpoints, how often it makes one, and how many it keeps.

    ``Trainer(..., checkpoints=Checkpoints("runs/mine/ckpt", every=500), resume=True)``.

    One is made after every ``every`` training batches, after each epoch, and when a run is left
    between two batches. The training thread copies the state; a thread of its own writes the file,
    after the lines of metrics that came before it. A copy whose writing has not begun is
    replaced by the next one. While a run trains, other trainers are refused the folder.

    Args:
        folder: for these files alone; made where it is missing.
        every: training batches between two; ``None`` for epochs alone.
        pause: seconds between two, at least; does not apply when a run ends or is left.
        keep: number of newest checkpoints to keep; at least 2 help when the newest is damaged.
        best: metric of an epoch whose best checkpoint is kept beside them, of those that are
            made; it must say whether higher is better. "auto" takes "val_accuracy" where there is
            one, else "val_loss"; ``None`` for none. A value that is not finite is never the best.
        compress: gzip the files, which takes longer than it saves unless the disk is slow.
        writer: whose thread writes; of its own by default. Give a `MetricsFile` the same one.

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
        self.record: float | None = None  # the best value of the metric so far
        self._lock = FileLock(self.folder / ".lock", thread_local=False)
        self._run, self._number = "", 0
        self._last = time.monotonic()

    def open(self, resume: bool, direction: Direction) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is whole, to resume from; ``None`` for a new run.

        Raises ``ValueError`` for checkpoints of an earlier run without ``resume``, when all of them
        are damaged or the newest is another run's, for a folder in use, and for a metric without a
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
            for torn in self.folder.glob(".*_step*"):  # of a process that was killed while writing
                torn.unlink()
            paths = listed(self.folder)
            self._number = 1 + max(map(_number, paths), default=0)
            if paths and not resume:
                raise ValueError(
                    f"{self.folder} holds checkpoints of an earlier run: pass resume=True to"
                    " continue it, or name another folder"
                )
            found = newest(self.folder) if paths else None
            self._run = uuid.uuid4().hex if found is None else self._own(*found)
            return found
        finally:
            self._lock.release()

    def hold(self) -> None:
        """Keep other trainers out of the folder until `close`, and write the run's id there.

        Raises ``ValueError`` where one trains, or has trained since this one was built.
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
        """Wait until all are written, then give the folder free.

        Raises `BackgroundError` if one could not be written.
        """
        try:
            self.writer.flush()
        finally:
            self._lock.release()

    def due(self, step: int) -> bool:
        """Whether one is made after training batch ``step``."""
        return self.every is not None and step % self.every == 0

    def rested(self) -> bool:
        """Whether the pause after the latest one is over."""
        return time.monotonic() - self._last >= self.pause

    def is_best(self, metrics: Mapping[str, Any], direction: Direction) -> bool:
        """Whether an epoch with these metrics is the best so far; it is remembered then."""
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
        """Copy ``state`` now and have it written, ``after`` what those writers have to write.

        Raises `BackgroundError` when an earlier one could not be written.
        """
        packed = Packed({**state, "run": self._run, "best": self.record})
        prefix, stem = "best_" if best else "", f"{self._number:06}_step{step:08}"
        self._number += 1
        self._last = time.monotonic()
        others = [writer for writer in after if writer is not self.writer]

        def job() -> None:
            for writer in others:
                writer.flush()
            # the best one's own name comes first: a process that ends in between loses neither
            path = state_file.write(self.folder, prefix + stem, packed, self.compress)
            if best:
                _link(path, path.with_name(path.name.removeprefix(prefix)))
            self._remove_old()

        # the best one must not be replaced by the next
        self.writer.put(job, f"writing a checkpoint to {self.folder}", None if best else self)

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise ValueError(
                f"another trainer is using {self.folder}: end it first, or name another folder"
            ) from None

    def _own(self, path: Path, state: dict[str, Any]) -> str:
        """The id of the run; ``ValueError`` for a checkpoint of another one than the folder's."""
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
    """The checkpoints in ``folder``, the newest first; the best one is listed by its age."""
    paths = [path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name)]
    # of the two names of one checkpoint the plain one comes first
    return sorted(paths, key=lambda path: (_number(path), path.name[0].isdigit()), reverse=True)


def newest(folder: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint that is whole, and its state; a warning names each damaged one.

    Raises ``ValueError`` when none is whole, ``FileNotFoundError`` when there is none.
    """
    paths = listed(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} holds no checkpoint: begin the run without resume")
    for path in paths:
        try:
            state = state_file.read(path)
            wrong = [name for name, kind in _PARTS.items() if not isinstance(state.get(name), kind)]
            if wrong:
                raise DamagedError(f"{path} is not a checkpoint: {', '.join(wrong)} is missing")
            return path, state
        except (DamagedError, OSError) as error:
            warnings.warn(f"{error}; the checkpoint before it is used", stacklevel=3)
    raise ValueError(
        f"none of the {len(paths)} checkpoints in {folder} is whole: move the folder away and begin"
        " the run anew"
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
