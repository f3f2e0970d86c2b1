"""`astkit demo`: run notebook 01 on the digits and print its table."""

from __future__ import annotations

import argparse
from pathlib import Path

from astkit.cli.options import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("demo", help="run notebook 01 on the digits, print its table")
    command.add_argument("--out", type=Path, default=Path("out"), help="folder for what it makes")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    from astkit.runs.demo import run  # needs papermill and pandas

    run(options.out)
