"""`astkit sweep`: run a notebook with every combination of a grid of parameters."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astkit.cli import FAILED, GOOD, Commands, say
from astkit.cli.run import add_notebook, interruptible

if TYPE_CHECKING:
    from astkit.runs.notebook import Outcome

EXAMPLE = """\
examples:
  astkit sweep notebooks/01_baseline_vs_gated.ipynb -p target_rate=0.1,0.2 \\
      -p seeds=0..4 --jobs 2
  astkit sweep NOTEBOOK -p seed=0..99 --print | parallel -j 8

values:
  0.05,0.1,0.2   three values; quote words that contain commas: 'a,b',c
  0..4           0, 1, 2, 3 and 4
  '[0,1],[2,3]'  two lists; for a list parameter, 0,1 means [0] and [1]

Each combination runs in its own process and folder. Ctrl-C ends the runs. A
sweep that is run again skips complete runs and runs the rest, including
failed runs. Concurrent sweeps share the work.
"""

_WHERE = {
    "failed": ": see notebook.ipynb and error.json in {folder}",
    "busy": ": locked by another process",
}


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "sweep",
        help="run a notebook with every combination of a grid of parameters",
        description="Run a notebook with every combination of a grid of parameters, each in its\n"
        "own run folder, and print a table.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_notebook(command, "name=values", "values of a parameter (see below); may be repeated")
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="concurrent runs")
    command.add_argument(
        "--print",
        dest="only_print",
        action="store_true",
        help="run nothing; print a command line for each incomplete run, for use with a scheduler",
    )
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from astkit.runs import parameters, sweep

    values = parameters.read(options.notebook).grid(options.parameters)
    where: dict[str, Any] = {"root": options.runs, "threads": options.threads}
    if options.only_print:
        print("\n".join(sweep.commands(options.notebook, values, **where)))
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
    for status in ("complete", "failed", "busy"):
        if of_it := [done for done in outcomes if done.status == status]:
            folder = next((done.folder for done in of_it if done.folder), None)
            where = _WHERE.get(status, "") if folder or status == "busy" else ""
            say(f"{len(of_it)} {status}{where.format(folder=folder)}")
    for note in sorted({done.note for done in outcomes if done.note}):
        say(f"note: {note}")
