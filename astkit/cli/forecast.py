"""`astkit explain` and `astkit forecast`: what differs between tables, which to train on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from astkit.cli import add_command, say
from astkit.cli.compare import SHARED, add_reading, reading_of

EXPLAIN = """\
Columns by which a classifier tells both apart, with their AUC. No label is
needed: a competition's test data will do.

examples:
  astkit explain train.csv test.csv
  astkit explain old.csv new.csv --drop id --plot differences.png
"""
FORECAST = """\
Train on the old rows, on both, or on the new ones? Judged by boosted trees on
new rows, before anything else is trained.

examples:
  astkit forecast old.csv new.csv --label price
  astkit forecast old.csv new.csv --label price --date day --plot gains.png
"""


def add_forecast(commands: Any) -> None:
    """Add the commands and their options."""
    text = "say what differs between two tables, old rows and new ones"
    explains = add_command(commands, "explain", run_explain, text, EXPLAIN)
    text = "say which of two tables to train on: old rows, new ones, or both"
    forecasts = add_command(commands, "forecast", run_forecast, text, FORECAST)
    for command in (explains, forecasts):
        add, label = command.add_argument, "column to be predicted"
        add("old", type=Path, metavar="OLD", help="CSV or parquet")
        add("new", type=Path, metavar="NEW", help="rows like those that count")
        add("--label", metavar="COLUMN", required=command is forecasts, help=label)
        if command is forecasts:
            add("--date", metavar="COLUMN", help="orders the new rows: judge later ones")
        add_reading(add)
        add("--plot", type=Path, metavar="FILE", help="write a picture, such as a .png")


def run_explain(options: argparse.Namespace) -> None:
    """Print what differs."""
    from astkit.aim.explain import explain

    _show(explain(options.old, options.new, **reading_of(options, SHARED)), options.plot)


def run_forecast(options: argparse.Namespace) -> None:
    """Print which rows to train on."""
    from astkit.aim.forecast import forecast

    reading = reading_of(options, (*SHARED, "date"))
    _show(forecast(options.old, options.new, **reading), options.plot)


def _show(found: Any, plot: Path | None) -> None:
    """Print the answer, bold on a terminal, and the table; draw it into ``plot``."""
    answer, line, rest = repr(found).partition("\n")
    say((f"\033[1m{answer}\033[0m" if sys.stdout.isatty() else answer) + line + rest)
    if plot is not None:
        found.plot().savefig(plot)
        say(plot)
