"""Checkpoints: the whole state of a run, saved during training, to be resumed after a crash.

A resumed run ends with the weights, threshold, metrics and counts of one that was never
interrupted, to the bit where the device computes the same bits each time.
"""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from astkit.background import BackgroundWriter
from astkit.files import write_atomic
from astkit.trainers import state_file
from astkit.trainers.snapshot import snapshot
from astkit.trainers.state import Position

_NAME = re.compile(r"(best_)?(\d+)_step(\d+)_[0-9a-f]+\.safetensors(\.gz)?")
BEST = ("val_accuracy", "val_loss")


class Run(Protocol):
    """What is saved and resumed: a `Trainer`."""

    position: Position

    @property
    def model(self) -> nn.Module: ...
    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    @property
    def done(self) -> bool: ...
    def identity(self) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def restart(self) -> None: ...
    def sync(self) -> list[BackgroundWriter]: ...
    def latest(self) -> Mapping[str, Any]: ...
    def direction(self, metric: str) -> bool | None: ...


class Checkpoints:
    """Where a trainer keeps its checkpoints, how often it makes one, and how many it keeps.

    ``Trainer(..., checkpoints=Checkpoints("runs/mine/ckpt", every=500), resume=True)``.

    One is made after every ``every`` training batches, after each pass, and when a run is left
    between two batches. The training thread copies the state; a thread of its own writes the file,
    after the lines of metrics that came before it. A copy whose writing has not begun is
    replaced by the next one.

    Args:
        folder: for these files alone; made where it is missing.
        every: training batches between two; ``None`` for passes alone.
        pause: seconds between two, at least; the end of a run, and leaving it, wait for none.
        keep: of the newest, so many are kept; at least 2 help when the newest is damaged.
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
        self._identity: dict[str, Any] = {}
        self._record: float | None = None  # the best value of the metric so far
        self._number = 0
        self._saved: tuple[object, ...] | None = None
        self._last = time.monotonic()

    def begin(self, trainer: Run, resume: bool) -> None:
        """Take a new trainer on: continue from the newest checkpoint if ``resume`` says so.

        Raises ``ValueError`` for checkpoints of an earlier run without
        ``resume``, for ones made with other settings, when all of them are damaged, and for a
        metric without a direction.
        """
        if self.best not in (None, "auto") and trainer.direction(self.best or "") is None:
            raise ValueError(
                f"best is {self.best!r}, but nothing says whether higher is better of it: give"
                " Metric(name, function, higher_is_better=...), or choose 'val_loss'"
            )
        self._identity = trainer.identity()
        self.folder.mkdir(parents=True, exist_ok=True)
        for torn in self.folder.glob(".*_step*"):  # of a process that was killed while writing
            torn.unlink()
        found = listed(self.folder)
        self._number = 1 + max((_number(path) for path in found), default=0)
        if found and not resume:
            raise ValueError(
                f"{self.folder} holds checkpoints of an earlier run: pass resume=True to continue"
                " it, or name another folder"
            )
        if found:
            self._load(trainer, *newest(self.folder))
        elif resume:  # it was killed before its first one, maybe not before its first metrics
            trainer.restart()

    def after_batch(self, trainer: Run, pass_ended: bool) -> None:
        """Make a checkpoint if one is due."""
        position = trainer.position
        due = self.every is not None and position.phase == "train" and position.batch > 0
        due = due and position.step % (self.every or 1) == 0
        rested = trainer.done or time.monotonic() - self._last >= self.pause
        if rested and (pass_ended or due):
            self.save(trainer, pass_ended)

    def save(self, trainer: Run, pass_ended: bool = False) -> None:
        """Have a checkpoint written of the state as it is now, unless there is one.

        Raises `BackgroundError` when an earlier one could not be written.
        """
        position = trainer.position
        here = _place(position)
        if here == self._saved:
            return
        self._saved, self._last = here, time.monotonic()
        best = pass_ended and self._is_best(trainer)
        others = [writer for writer in trainer.sync() if writer is not self.writer]
        state = {
            "identity": self._identity,
            "best": self._record,
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "loop": trainer.state_dict(),
        }
        taken, stem = snapshot(state), f"{self._number:06}_step{position.step:08}"
        prefix = "best_" if best else ""
        self._number += 1

        def write() -> None:
            for writer in others:  # they may be behind
                writer.flush()
            # the best one's own name comes first: what it says of itself holds from then on
            path = state_file.write(self.folder, prefix + stem, taken.state(), self.compress)
            if best:
                _link(path, path.with_name(path.name.removeprefix(prefix)))
            self._remove_old()

        # the best one must not give way to the next
        self.writer.put(write, f"writing a checkpoint to {self.folder}", None if best else self)

    def close(self) -> None:
        """Wait until all of them are written; raises `BackgroundError` if one could not be."""
        self.writer.flush()

    def _is_best(self, trainer: Run) -> bool:
        latest = trainer.latest()
        names = BEST if self.best == "auto" else (self.best or "",)
        name = next((name for name in names if latest.get(name) is not None), None)
        if name is None or not math.isfinite(value := latest[name]):
            return False
        sign = 1 if trainer.direction(name) else -1
        if self._record is not None and sign * value <= sign * self._record:
            return False
        self._record = value
        return True

    def _load(self, trainer: Run, path: Path, state: dict[str, Any]) -> None:
        _compare(state["identity"], self._identity, path)
        try:
            trainer.model.load_state_dict(state["model"])
            trainer.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            first = str(error).splitlines()[-1].strip()
            raise ValueError(
                f"{path} is of another model or optimizer ({first}): build the one that was"
                " trained, or name another folder"
            ) from error
        trainer.load_state_dict(state["loop"])
        self._record = state["best"]
        position = trainer.position
        self._saved = _place(position)

    def _remove_old(self) -> None:
        plain = [path for path in listed(self.folder) if not path.name.startswith("best_")]
        best = sorted(self.folder.glob("best_*"), key=_number)
        for path in [*plain[self.keep :], *best[:-1]]:
            path.unlink(missing_ok=True)


def begun(
    where: Checkpoints | str | os.PathLike[str] | None, trainer: Run, resume: bool
) -> Checkpoints | None:
    """The checkpoints of a new trainer, which continues from the newest of them if requested.

    Raises ``ValueError`` for ``resume`` without a place, and what `Checkpoints.begin` raises.
    """
    if where is None:
        if resume:
            raise ValueError("resume is True, but no checkpoints are given: name their folder")
        return None
    checkpoints = where if isinstance(where, Checkpoints) else Checkpoints(where)
    checkpoints.begin(trainer, resume)
    return checkpoints


def listed(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in ``folder``, the newest first; the best one stands at its age."""
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
            return path, state_file.read(path)
        except (state_file.DamagedError, OSError) as error:
            warnings.warn(f"{error}; the checkpoint before it is used", stacklevel=3)
    raise ValueError(
        f"none of the {len(paths)} checkpoints in {folder} is whole: move the folder away and begin"
        " the run anew"
    )


def _compare(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    before, after = _flat(then), _flat(now)
    other = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    if other:
        told = ", ".join(f"{n} was {before.get(n)!r} and is {after.get(n)!r}" for n in other[:8])
        raise ValueError(
            f"{path} was made with other settings ({told}): resume with those, or name another"
            " folder for a new run"
        )


def _flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    if isinstance(settings, Mapping):
        pairs = list(settings.items())
    elif isinstance(settings, list | tuple):
        pairs = list(enumerate(settings))
    else:
        return {name: settings}
    flat: dict[str, Any] = {}
    for key, value in pairs:
        flat |= _flat(value, f"{name}.{key}" if name else str(key))
    return flat


def _place(position: Position) -> tuple[object, ...]:
    # the epoch tells its end, where the best is found, from the last of its batches
    return (position.step, position.epoch, position.phase, position.validated)


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[2]) if match else 0


def _link(source: Path, target: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(source, target)
        except OSError:  # a file system without hard links
            write_atomic(target, source.read_bytes())
