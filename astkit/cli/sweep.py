"""`astkit sweep`: run a notebook with every combination of a grid of parameters."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astkit.cli import FAILED, GOOD, say
from astkit.cli.run import add_notebook, add_place, interruptible

if TYPE_CHECKING:
    from astkit.runs.notebook import Outcome

HELP = "run a notebook with every combination of a grid of parameters"
MORE = """\
examples:
  astkit sweep notebooks/01_baseline_vs_gated.ipynb -p target_rate=0.1,0.2 \\
      -p seeds=0..4 --jobs 2
  astkit sweep NOTEBOOK -p seed=0..99 --print | parallel -j 8

values:
  0.05,0.1,0.2   three values; quote words that contain commas: 'a,b',c
  0..4           0, 1, 2, 3 and 4
  '[0,1],[2,3]'  two lists; for a list parameter, 0,1 means [0] and [1]

Each combination runs in its own process and folder; a table of all is printed
at the end. Ctrl-C ends the runs. A sweep that is run again skips complete runs
and runs the rest, including failed runs. Concurrent sweeps share the work.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_notebook(command, "name=values", "values of a parameter (see below); may be repeated")
    add_place(command)
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="concurrent runs")
    command.add_argument(
        "--print", action="store_true", help="only print a command for each incomplete run"
    )


def run(options: argparse.Namespace) -> int:
    """Run the sweep and print its table, or print its commands."""
    from astkit.runs import parameters, sweep

    values = parameters.read(options.notebook).grid(options.parameters)
    where: dict[str, Any] = {"root": options.runs, "threads": options.threads}
    if options.print:
        for line in sweep.commands(options.notebook, values, **where):
            print(line)
        return GOOD
    with interruptible():
        outcomes = sweep.run(options.notebook, values, options.jobs, announce=say, **where)
    _report(outcomes)
    return FAILED if any(done.status == "failed" for done in outcomes) else GOOD


def _report(outcomes: Sequence[Outcome]) -> None:
    from astkit.runs import sweep

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
