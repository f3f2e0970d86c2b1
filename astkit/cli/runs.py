"""`astkit run`, `sweep` and `report`: run notebooks in run folders, and tables of them."""

from __future__ import annotations

import argparse
import logging
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astkit.cli import FAILED, GOOD, add_command, say

RUN = """\
examples:
  astkit run notebooks/01_baseline_vs_gated.ipynb -p preset=full -p seeds=0
  astkit run notebooks/02_controller_tuning.ipynb -p seeds='[0, 1]'

The run's folder, runs/<date>_<notebook>_<hash>_s<seed>/, holds parameters,
environment, the executed notebook, and result.json or error.json. The same
parameters use the same folder: a complete run is not run again, an incomplete
one resumes.
"""
SWEEP = """\
example:
  astkit sweep notebooks/01_baseline_vs_gated.ipynb -p target_rate=0.1,0.2 \\
      -p seeds=0,1,2

values:
  0.05,0.1,0.2   three values
  '[0,1],[2,3]'  two lists; for a list parameter, 0,1 means [0] and [1]

Each combination runs in its own folder. A sweep that is run again skips
complete runs. The same sweep, started again meanwhile, shares the work, also on
other machines with a shared folder of runs.
"""
REPORT = """\
Parameters, n, mean, interval, and the difference to dense training, paired by
seed. Failed runs are listed.

examples:
  astkit report                     a table of all runs in runs/
  astkit report --metric flops      another metric
"""


def add_commands(commands: Any) -> None:
    """Add the commands and their options."""
    text = "run a notebook with given parameters in a run folder"
    command = add_command(commands, "run", run, text, RUN)
    _add_notebook(command, "name=value", "a parameter; strings need no quotes; may be repeated")
    again = "delete an earlier run, and start anew"
    command.add_argument("--again", action="store_true", help=again)
    text = "run a notebook with every combination of values of its parameters"
    command = add_command(commands, "sweep", sweep, text, SWEEP)
    _add_notebook(command, "name=values", "values of a parameter (see below); may be repeated")
    command = add_command(commands, "report", report, "a table of runs", REPORT)
    command.add_argument("runs", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    command.add_argument("--metric", help="numeric column (default: test_accuracy)")


def _add_notebook(command: argparse.ArgumentParser, form: str, meaning: str) -> None:
    command.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="path of an .ipynb file")
    add_parameters(command, form, meaning)
    folder = "parent of the run folders (runs)"
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=folder)


def add_parameters(command: argparse.ArgumentParser, form: str, meaning: str) -> None:
    """Add the parameters of a notebook."""
    command.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar=form, help=meaning
    )


def run(options: argparse.Namespace) -> int:
    """Run the notebook, and print its outcome."""
    from astkit.runs import notebook

    plan = notebook.read(options.notebook)
    parameters = plan.changed(options.parameters)
    with interruptible():
        done = notebook.run(plan, parameters, options.runs, again=options.again, show=True)
    if done.status == "busy":
        raise ValueError(f"{done.folder} is locked by another process: wait until that has ended")
    if done.status == "failed":
        say(f"failed    {done.error}")
    elif done.executed:
        say(f"{done.status}  in {done.seconds:.1f} s")
    else:
        say("complete  before, so not run again (--again does)")
    if done.note:
        say(f"note      {done.note}")
    say(f"folder    {done.folder}")
    return FAILED if done.status == "failed" else GOOD


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM raises ``KeyboardInterrupt`` here, so that kernels are interrupted too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        for name in ("asyncio", "papermill"):  # they would report the kernel as dead
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def sweep(options: argparse.Namespace) -> int:
    """Run the sweep, a line for each run, and print how many have which status."""
    from astkit.runs import notebook
    from astkit.runs import sweep as sweeps

    values = sweeps.values_of(notebook.read(options.notebook), options.parameters)
    with interruptible():
        outcomes = sweeps.run(options.notebook, values, options.runs, announce=say)
    where = {"busy": ": locked by another process"}
    failed = [done.folder for done in outcomes if done.status == "failed" and done.folder]
    if failed:
        where["failed"] = f": see notebook.ipynb and error.json in {failed[0]}"
    for status, count in Counter(done.status for done in outcomes).items():
        say(f"{count} {status}{where.get(status, '')}")
    for note in sorted({done.note for done in outcomes if done.note}):
        say(f"note: {note}")
    return FAILED if any(done.status == "failed" for done in outcomes) else GOOD


def report(options: argparse.Namespace) -> None:
    """Print the number of runs of each status, those that are not complete, and the table."""
    from astkit.runs import tables

    runs = tables.collect(options.runs)
    counts = runs.folders["status"].value_counts()
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
    others = runs.folders[runs.folders["status"] != "complete"]
    if len(others):
        say(others.to_string(index=False, na_rep=""))
    say()
    table = tables.table(runs, options.metric)
    say(table.to_string(float_format="{:.4g}".format))
