"""`astkit demo`: run notebook 01 on the digits and print its table."""

from __future__ import annotations

import argparse
from pathlib import Path

from astkit.cli import say
from astkit.cli.run import start
from astkit.files import shipped

NOTEBOOK = shipped("notebooks") / "01_baseline_vs_gated.ipynb"
HELP, MORE = "run notebook 01 on the digits, print its table", ""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--out", type=Path, default=Path("out"), help="output folder")


def run(options: argparse.Namespace) -> int:
    """Run the notebook from its beginning, and print the comparison in its folder."""
    if not NOTEBOOK.exists():
        raise FileNotFoundError(
            f"{NOTEBOOK} is missing: install astkit from a wheel, or run the demo in a clone"
        )
    from astkit.comparison.compare import Comparison
    from astkit.runs import notebook

    done, code = start(notebook.read(NOTEBOOK), {}, options.out, again=True)
    if done.status == "complete" and done.folder is not None:
        say(f"\n{Comparison.load(done.folder / 'comparison')}")
        say(f"\npicture   {done.folder / 'fig' / 'accuracy.png'}")
    return code
