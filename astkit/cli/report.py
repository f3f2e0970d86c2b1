"""`astkit report`: a table of runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from astkit.cli import say

HELP = "a table of runs"
MORE = """\
One table of the runs in a folder: parameters, n, mean, interval, and the
difference to dense training, paired by seed. Failed runs are listed.

examples:
  astkit report                     a table of all runs in runs/
  astkit report --metric flops      another metric
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("runs", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    command.add_argument("--metric", help="numeric column (default: test_accuracy)")


def run(options: argparse.Namespace) -> None:
    """Print the number of runs of each status, those that are not complete, and the table."""
    import pandas as pd

    from astkit.runs import tables

    pd.set_option("display.width", None, "display.max_columns", None, "display.max_rows", None)
    runs = tables.collect(options.runs)
    counts = runs.folders["status"].value_counts()
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
    others = runs.folders[runs.folders["status"] != "complete"]
    if len(others):
        say(others.to_string(index=False, na_rep=""))
    say()
    table = tables.table(runs, options.metric)
    say(table.to_string(float_format="{:.4g}".format))
