"""`astkit explain` and `astkit forecast`: what differs between tables, which to train on."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from astkit.cli import add_command, say
from astkit.cli.compare import SHARED, add_reading, reading_of
from astkit.progress import announce

EXAMPLE = "example: astkit forecast old.csv new.csv --label price --date day --plot gains.png"
COMMANDS = {
    "explain": "say what differs between two tables; a label is not needed",
    "forecast": "say which of two tables to train on: the old rows, the new ones, or both",
}


def add_forecast(commands: Any) -> None:
    """Add the commands and their options."""
    for name, text in COMMANDS.items():
        foretells = name == "forecast"
        command = add_command(commands, name, run, text, EXAMPLE)
        command.set_defaults(function=name, names=(*SHARED, *["date"] * foretells))
        add = command.add_argument
        add("old", type=Path, metavar="OLD", help="CSV or parquet")
        add("new", type=Path, metavar="NEW", help="rows like those that count")
        add("--label", metavar="COLUMN", required=foretells, help="column to be predicted")
        if foretells:
            add("--date", metavar="COLUMN", help="orders the rows: later ones are judged")
        add_reading(add)
        add("--plot", type=Path, metavar="FILE", help="write a picture, such as a .png")


def run(options: argparse.Namespace) -> None:
    """Print the answer, bold on a terminal, and the table; draw it if that is asked for."""
    function = getattr(import_module(f"astkit.aim.{options.function}"), options.function)
    found = function(options.old, options.new, **reading_of(options, options.names))
    answer, _, rest = repr(found).partition("\n")
    announce(answer, bold=True)
    if rest:
        say(rest)
    if options.plot is not None:
        found.plot().savefig(options.plot)
        say(options.plot)
