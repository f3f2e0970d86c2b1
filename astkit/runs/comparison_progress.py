"""Progress of `astkit.compare`: all arms together."""

from __future__ import annotations

import time
from typing import Any

from astkit.runs.comparison_arm import Entry
from astkit.trainers import Progress
from astkit.trainers.progress import duration


class Turns(Progress):
    """Progress of all arms together: a bar, or a line per arm."""

    def __init__(self) -> None:
        super().__init__("compare")
        self.arms, self.done, self.kept = 1, 0, 0

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Update the bar during an arm."""
        share = round(min(1.0, (self.done + metrics["progress"]) / self.arms), 2)
        if self.bar is not None and share != self.bar.n:
            self._put((share, self.text))

    def keep(self, arms: int) -> None:
        """Count arms of an earlier call."""
        self.done, self.kept = self.done + arms, self.kept + arms
        if self.bar is not None:
            self.bar.initial = self.kept / self.arms  # the ETA counts the arms of this call

    def finished(self, entry: Entry) -> None:
        """Count and report an arm that was trained."""
        self.done += 1
        value = "failed" if entry["value"] is None else f"{entry['metric']} {entry['value']:.4g}"
        self.text = f"{entry['policy']}, seed {entry['seed']}: {value}"
        if self.bar is not None:
            self._put((min(1.0, self.done / self.arms), self.text))
            return
        elapsed = time.perf_counter() - self.start
        left = elapsed * max(0, self.arms - self.done) / max(1, self.done - self.kept)
        self._put(f"arm {self.done} of {self.arms}: {self.text}; {duration(left)} left")

    def close(self) -> None:
        """Called at the end of each arm; does nothing."""

    def end(self) -> None:
        """Close the bar."""
        super().close()
