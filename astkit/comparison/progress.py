"""What a comparison shows while it runs: its bar, and a line or a dot for each run that ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from astkit.comparison.statistics import Entry
from astkit.comparison.verdict import in_unit
from astkit.progress import Bar, in_notebook
from astkit.trainers import Trainer
from astkit.trainers.progress import state_of

if TYPE_CHECKING:
    from astkit.comparison.report import Comparison

PAUSE, LONGEST = 2.0, 10.0
"""Seconds between two pictures: at least, and at most where drawing one takes long."""


class Live:
    """The picture of a comparison in a notebook: one output, which shows the runs so far."""

    handle: Any = None
    due = 0.0  # when the next picture may be drawn

    def show(self, report: Comparison, names: Sequence[str] = ()) -> None:
        """Draw the ``report``, or, if the last picture is not too recent, the runs so far.

        ``names``: all methods, while runs are to come.
        """
        start = time.monotonic()
        if not in_notebook() or (start < self.due if names else not report.differs):
            return
        picture = report.draw(names)
        if self.handle is None:
            from IPython.display import display

            self.handle = display(picture, display_id=True)
        else:
            self.handle.update(picture)
        end = time.monotonic()
        self.due = end + min(max(PAUSE, 9 * (end - start)), LONGEST)


class RunsBar(Bar):
    """A bar whose length is time: what was spent, and what runs of the same methods took so far."""

    def __init__(self) -> None:
        form = "{desc}{percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
        super().__init__(bar_format=form, desc="compare: ")
        self.took: dict[str, list[float]] = {}  # seconds of runs by method

    def begin(self, phase: str, ended: int = 0) -> None:
        """Begin anew, with another ``phase``, of which so many runs have ``ended`` before."""
        self.phase, self.ended = phase, ended
        self.took.clear()
        self.set_description(phase, refresh=False)
        self.postfix = self.total = None
        self.reset()

    @contextmanager
    def run(
        self, method: str, seed: int, waiting: Sequence[str], fall_away: bool
    ) -> Iterator[None]:
        """A run of ``method`` takes place within.

        ``waiting``: the methods of it and of those to come, of which some may ``fall_away``.
        """
        most = f"{'up to ' * fall_away}{self.ended + len(waiting)}"
        self.ended += 1
        self.set_description(f"{self.phase} {self.ended} of {most}", False)
        self.method, self.waiting = method, list(waiting)
        self.waiting.remove(method)
        self.name, self.began = f"{method}, seed {seed}", self.seconds
        self._show(self.name, 0.0)
        yield
        self.took.setdefault(method, []).append(self.seconds - self.began)

    def say(self, entry: Entry) -> None:
        """What a run reached, as a line above the bar of a terminal."""
        if not (self.gui or self.disable):
            value = (
                entry.get("failed")
                or f"{entry['metric']} {in_unit(entry['value'], entry['metric'])}"
            )
            self.write(f"{entry['policy']}, seed {entry['seed']}: {value}", sys.stderr)

    def show(self, trainer: Trainer) -> None:
        """Show where ``trainer`` is in its run."""
        self._show(f"{self.name}: {state_of(trainer)}", trainer.progress)

    def _show(self, state: str, part: float) -> None:
        seconds, left = self.seconds, self._left(part)
        self.postfix = state
        self.total = None if left is None else seconds + left
        self.update(seconds - self.n)

    def _left(self, part: float) -> float | None:
        """Seconds that are left, with ``part`` of the current run done; ``None`` if unknown."""
        means = {method: sum(seconds) / len(seconds) for method, seconds in self.took.items()}
        if part:
            means.setdefault(self.method, (self.seconds - self.began) / part)
        if not means:
            return None
        usual = sum(means.values()) / len(means)
        own = means.get(self.method, usual)
        return (1 - part) * own + sum(means.get(method, usual) for method in self.waiting)
