"""`astkit sweep`: run a notebook with every combination of values of its parameters."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter

from astkit.cli import FAILED, GOOD, say
from astkit.cli.run import add_notebook, interruptible

HELP = "run a notebook with every combination of values of its parameters"
MORE = """\
example:
  astkit sweep notebooks/01_baseline_vs_gated.ipynb -p target_rate=0.1,0.2 \\
      -p seeds=0..4 --jobs 2

values:
  0.05,0.1,0.2   three values
  0..4           0, 1, 2, 3 and 4
  '[0,1],[2,3]'  two lists; for a list parameter, 0,1 means [0] and [1]

Each combination runs in its own folder; a table of all is printed at the end.
Ctrl-C ends the runs. A sweep that is run again skips complete runs and runs
the rest, including failed runs. Concurrent sweeps share the work, also on
several machines with a shared folder of runs.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_notebook(command, "name=values", "values of a parameter (see below); may be repeated")
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="concurrent runs (1)")


def run(options: argparse.Namespace) -> int:
    """Run the sweep and print its table."""
    from astkit.runs import notebook, sweep

    values = sweep.values_of(notebook.read(options.notebook), options.parameters)
    with interruptible():
        outcomes = sweep.run(options.notebook, values, options.jobs, options.runs, announce=say)
    frame = sweep.table(outcomes)
    frame["seconds"] = frame["seconds"].map("{:.1f}".format, na_action="ignore").fillna("")
    text = frame.to_string(index=False, justify="left", formatters={"error": str})
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    say("\n".join(["", *(line.rstrip()[:width] for line in text.splitlines()), ""]))
    where = {"busy": ": locked by another process"}
    failed = [done.folder for done in outcomes if done.status == "failed" and done.folder]
    if failed:
        where["failed"] = f": see notebook.ipynb and error.json in {failed[0]}"
    for status, count in Counter(done.status for done in outcomes).items():
        say(f"{count} {status}{where.get(status, '')}")
    for note in sorted({done.note for done in outcomes if done.note}):
        say(f"note: {note}")
    return FAILED if any(done.status == "failed" for done in outcomes) else GOOD
