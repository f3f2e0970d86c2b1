"""`astkit demo`: run notebook 01 on the digits and print its tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from astkit.cli import Commands
from astkit.cli.run import missing, start
from astkit.files import shipped

NOTEBOOK = shipped("notebooks") / "01_baseline_vs_gated.ipynb"


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("demo", help="run notebook 01 on the digits, print its tables")
    command.add_argument("--out", type=Path, default=Path("out"), help="output folder")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    if not NOTEBOOK.exists():
        raise FileNotFoundError(
            f"{NOTEBOOK} is missing: install astkit from a wheel, or run the demo in a clone"
        )
    try:
        import pandas as pd

        from astkit.runs import parameters, tables
        from astkit.runs.record import Record
    except ModuleNotFoundError as error:
        raise missing(error) from error
    done, code = start(parameters.read(NOTEBOOK), {}, options.out, again=True)
    if done.status == "complete" and done.folder is not None:
        rows = Record(done.folder).result["rows"]
        with pd.option_context("display.width", 200, "display.max_columns", None):
            print(f"\nWhat was done\n{tables.shown(tables.what_was_done(rows))}")
            print(f"\nHow long it took\n{tables.shown(tables.how_long_it_took(rows))}")
        print(f"\npicture   {done.folder / 'fig' / 'accuracy.png'}")
    return code
