"""Figures of runs, the live board, and the dashboard that controls a run. Needs matplotlib."""

from astkit.widgets.board import LiveBoard as LiveBoard
from astkit.widgets.dashboard import Dashboard as Dashboard
from astkit.widgets.run import Run as Run
