"""`astkit sweep`: run a notebook with every combination of a grid of parameters."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from astkit.cli.options import Commands
from astkit.cli.run import add_notebook, missing

if TYPE_CHECKING:
    from astkit.runs.notebook import Outcome

EXAMPLE = """\
examples:
  astkit sweep notebooks/01_baseline_vs_gated.ipynb -p target_rate=0.1,0.2 \\
      -p seeds=0..4 --jobs 2
  astkit sweep NOTEBOOK -p seed=0..99 --print | parallel -j 8
  astkit sweep NOTEBOOK -p seed=0..99 --backend dask --address tcp://node1:8786

values:
  0.05,0.1,0.2   each in turn; commas inside brackets and quotes do not count
  0..4           0, 1, 2, 3 and 4
  '[0,1],[2,3]'  two lists; a parameter that is a list takes 0,1 as [0] and [1]

Each combination is run in a process and a folder of its own. Ctrl-C ends
those that run. Started again, the sweep skips what is complete and does what
is not, failed runs included.
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
        description="Run a notebook with every combination of a grid of parameters, each into a\n"
        "run folder of its own, and print a table.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_notebook(command, "name=values", "values of a parameter, see below; may be repeated")
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time")
    command.add_argument(
        "--print",
        dest="only_print",
        action="store_true",
        help="run nothing: print a command line"
        " for each run that is not complete, for any scheduler",
    )
    command.add_argument("--backend", choices=["dask"], help="run on the workers of a cluster")
    command.add_argument("--address", help="of the cluster's scheduler, such as tcp://host:8786")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from astkit.cli import FAILED, GOOD

    try:
        from astkit.runs import grid, parameters, sweep  # need joblib and nbformat
    except ModuleNotFoundError as error:
        raise missing(error) from error
    if options.backend and not options.address:
        raise ValueError("--backend dask needs --address, such as tcp://host:8786")
    plan = parameters.read(options.notebook)
    values = grid.from_options(plan, options.parameters)
    if options.only_print:
        lines = sweep.commands(options.notebook, values, options.runs, threads=options.threads)
        print("\n".join(lines))
        return GOOD
    outcomes = sweep.run(
        options.notebook,
        values,
        options.jobs,
        options.runs,
        threads=options.threads,
        backend=options.backend,
        address=options.address,
        announce=lambda line: print(line, flush=True),
    )
    _report(outcomes)
    return FAILED if any(done.status == "failed" for done in outcomes) else GOOD


def _report(outcomes: Sequence[Outcome]) -> None:
    from astkit.runs import sweep

    frame = sweep.table(outcomes)
    frame["seconds"] = frame["seconds"].map("{:.1f}".format, na_action="ignore").fillna("")
    text = frame.to_string(index=False, justify="left", formatters={"error": str})
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("", *(line.rstrip()[:width] for line in text.splitlines()), "", sep="\n")
    for status in ("complete", "failed", "busy"):
        if of_it := [done for done in outcomes if done.status == status]:
            print(f"{len(of_it)} {status}", end="")
            print(_WHERE.get(status, "").format(folder=of_it[0].folder))
    for note in sorted({done.note for done in outcomes if done.note}):
        print(f"note: {note}")
