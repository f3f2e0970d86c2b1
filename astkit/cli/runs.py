"""`astkit run` and `report`: run notebooks in run folders, and tables of them."""

from __future__ import annotations

import argparse
import logging
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from astkit.cli import FAILED, GOOD, add_command, say
from astkit.progress import announce

RUN = """\
examples:
  astkit run notebooks/01_baseline_vs_gated.ipynb -p preset=full
  astkit run notebooks/01_baseline_vs_gated.ipynb -p rate=0.1,0.2 -p seeds=[0],[1]

values:
  0.05,0.1,0.2   a run with each of three values
  '[0,1],[2,3]'  two lists
  "'a,b','7'"    strings that contain a comma or look like numbers

A run's folder, runs/<date>_<notebook>_<hash>_s<seed>/, holds parameters,
environment, the executed notebook, and result.json or error.json. The same
parameters use the same folder: a complete run is not run again, an incomplete
one resumes. The same command, started again meanwhile, shares the runs.
"""
REPORT = """\
Parameters, n, mean, interval, and the difference to dense training, paired by
seed. Failed runs are listed.

examples:
  astkit report                     a table of all runs in runs/
  astkit report --metric flops      another metric
"""


def add_runs(commands: Any) -> None:
    """Add the commands and their options."""
    text = "run a notebook with given parameters, or each combination of several, in run folders"
    command = add_command(commands, "run", run_notebooks, text, RUN)
    command.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="path of an .ipynb file")
    meaning = "a parameter, or several values of it; words need no quotes; may be repeated"
    add_parameters(command, meaning)
    command.add_argument("--runs", type=Path, default=Path("runs"), help="their parent (runs)")
    command.add_argument("--again", action="store_true", help="delete earlier runs first")
    command = add_command(commands, "report", report, "a table of runs", REPORT)
    command.add_argument("runs", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    command.add_argument("--metric", help="numeric column (default: test_accuracy)")


def add_parameters(command: argparse.ArgumentParser, meaning: str) -> None:
    """Add the parameters of a notebook."""
    kind: Any = {"dest": "parameters", "action": "append", "default": [], "metavar": "name=value"}
    command.add_argument("-p", **kind, help=meaning)


def run_notebooks(options: argparse.Namespace) -> int:
    """Run the notebook, a line for each run, and print how many have which status.

    Of a single run also the notebook's answer.
    """
    from astkit.runs import runner, sweep

    options.resumes = True
    values = runner.read_notebook(options.notebook).values(options.parameters)
    # SIGTERM raises KeyboardInterrupt, too, so that kernels are interrupted
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcomes = sweep.run_sweep(
            options.notebook, values, options.runs, again=options.again, announce=say
        )
    except KeyboardInterrupt:
        for name in ("asyncio", "papermill"):  # they would report the kernel as dead
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    folder = outcomes[0].folder if len(outcomes) == 1 else options.runs
    where = {"busy": ": locked by another process", "complete": f" in {folder}"}
    failed = [done.folder for done in outcomes if done.status == "failed" and done.folder]
    if failed:
        where["failed"] = f": see notebook.ipynb and error.json in {failed[0]}"
    for status, count in Counter(done.status for done in outcomes).items():
        say(f"{count} {status}{where.get(status, '')}")
    for note in sorted({done.note for done in outcomes if done.note}):
        say(f"note: {note}")
    book = folder / "notebook.ipynb" if folder else options.runs
    if len(outcomes) == 1 and (answer := answer_of(book)):
        say()
        announce(answer, bold=True)
        say(book)
    return FAILED if any(done.status == "failed" for done in outcomes) else GOOD


def answer_of(book: Path) -> str:
    """The sentence at the top of an executed notebook; "" if it gave no answer."""
    import nbformat

    cells = nbformat.read(book, 4).cells if book.is_file() else []
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    first = next((data["text/markdown"] for data in outputs if "text/markdown" in data), "")
    return first.strip("*") if first.startswith("**") else ""


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
    say(tables.summary_table(runs, options.metric).to_string(float_format="{:.4g}".format))
