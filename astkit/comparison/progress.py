"""The bar of a comparison: forecast, check of the baseline, runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from astkit.progress import Bar
from astkit.trainers import Trainer
from astkit.trainers.progress import state_of


class RunsBar(Bar):
    """A bar whose length is time: what was spent, and what runs of the same methods took so far."""

    def __init__(self) -> None:
        form = "{desc}{percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
        super().__init__(bar_format=form, desc="compare: ")
        self.took: dict[str, list[float]] = {}  # seconds of runs by method

    def begin(self, phase: str) -> None:
        """Begin anew, with another ``phase`` of the comparison."""
        self.phase = phase
        self.took.clear()
        self.set_description(phase, refresh=False)
        self.postfix = self.total = None
        self.reset()

    @contextmanager
    def run(
        self, method: str, seed: int, done: int, waiting: Sequence[str], fall_away: bool
    ) -> Iterator[None]:
        """A run of ``method`` takes place within, after ``done`` others.

        ``waiting``: the methods of it and of those to come, of which some may ``fall_away``.
        """
        most = "up to " if fall_away else ""
        self.set_description(f"{self.phase} {done + 1} of {most}{done + len(waiting)}", False)
        self.method, self.waiting = method, list(waiting)
        self.waiting.remove(method)
        self.name, self.began = f"{method}, seed {seed}", self.seconds
        self._show(self.name, 0.0)
        yield
        self.took.setdefault(method, []).append(self.seconds - self.began)

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
