"""The checkpoints of one trainer: opened once, and written at most once at each place of a run."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astkit import distributed
from astkit.trainers.checkpoint import Checkpoints
from astkit.trainers.fingerprint import check_same
from astkit.trainers.history import StepRecord

Found = tuple[Path, dict[str, Any]]
"""Path and state of a checkpoint."""


class RunCheckpoints:
    """Reads and writes the checkpoints of one run, with what describes the run.

    Attributes:
        place: where the run was at its latest checkpoint, as the trainer says it.
    """

    def __init__(self, checkpoints: Checkpoints | str | os.PathLike[str]) -> None:
        if not isinstance(checkpoints, Checkpoints):
            checkpoints = Checkpoints(checkpoints)
        self.checkpoints = copy.copy(checkpoints)  # another trainer may be given the same ones
        self.description: Mapping[str, Any] = {}
        self.place: object = None

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return self.checkpoints.folder

    def open(self, description: Mapping[str, Any], resume: bool) -> Found | None:
        """The newest checkpoint; ``None`` for a new run.

        Raises ``ValueError`` for a checkpoint of another run, or other ones in each process.
        """
        self.description = description
        found = self.checkpoints.load_newest(resume)
        name = None if found is None else found[0].name
        distributed.agree(str(name), str(description))
        if found is not None:
            check_same(found[1]["run"], description, found[0])
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder within a block."""
        self.checkpoints.lock()
        try:
            yield
        finally:
            self.checkpoints.unlock()

    def due(self, record: StepRecord, done: bool) -> bool:
        """Whether a checkpoint is due after ``record``."""
        return self.checkpoints.due(record.step, record.phase == "epoch", done)

    def write(self, state: dict[str, Any], place: Any) -> None:
        """Write ``state`` at a ``place`` that begins with the step; process 0 does."""
        if distributed.rank() == 0:
            self.checkpoints.write({"run": self.description, **state}, place[0])
        self.place = place
