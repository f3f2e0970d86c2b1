"""`astkit demo`: run notebook 01 on the digits and print its table."""

from __future__ import annotations

import argparse
from pathlib import Path

from astkit.cli import Commands
from astkit.cli.run import start
from astkit.files import shipped

NOTEBOOK = shipped("notebooks") / "01_baseline_vs_gated.ipynb"


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("demo", help="run notebook 01 on the digits, print its table")
    command.add_argument("--out", type=Path, default=Path("out"), help="output folder")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    if not NOTEBOOK.exists():
        raise FileNotFoundError(
            f"{NOTEBOOK} is missing: install astkit from a wheel, or run the demo in a clone"
        )
    from astkit.runs import parameters
    from astkit.runs.comparison import Comparison

    done, code = start(parameters.read(NOTEBOOK), {}, options.out, again=True)
    if done.status == "complete" and done.folder is not None:
        print(f"\n{Comparison.load(done.folder / 'comparison')}")
        print(f"\npicture   {done.folder / 'fig' / 'accuracy.png'}")
    return code
