"""Showing and steering a run: static figures, the live board, the dashboard. Needs matplotlib."""

from astkit.widgets.board import LiveBoard
from astkit.widgets.dashboard import Dashboard
from astkit.widgets.drive import Run

__all__ = ["Dashboard", "LiveBoard", "Run"]
