"""Figures of runs, the live board, and the dashboard that controls a run. Needs matplotlib."""

from astkit.widgets.board import LiveBoard
from astkit.widgets.dashboard import Dashboard
from astkit.widgets.drive import Run

__all__ = ["Dashboard", "LiveBoard", "Run"]
