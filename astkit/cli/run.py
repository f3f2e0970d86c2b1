"""`astkit run`: run a notebook with given parameters in a run folder."""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astkit.cli import FAILED, GOOD, say

if TYPE_CHECKING:
    from astkit.runs.notebook import Notebook, Outcome

HELP = "run a notebook with given parameters in a run folder"
MORE = """\
examples:
  astkit run notebooks/01_baseline_vs_gated.ipynb -p preset=full -p seeds=0
  astkit run notebooks/02_controller_tuning.ipynb -p seeds='[0, 1]'

The run's folder, runs/<date>_<notebook>_<hash>_s<seed>/, holds the parameters
(config.json), the environment (env.json), the executed notebook
(notebook.ipynb), and result.json once the run is complete or error.json if it
failed. The same parameters use the same folder: a complete run is not run
again, an incomplete one resumes.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_notebook(command, "name=value", "a parameter; strings need no quotes; may be repeated")
    again = "mark an earlier run stale, and start a new one"
    command.add_argument("--again", action="store_true", help=again)


def add_notebook(command: argparse.ArgumentParser, form: str, meaning: str) -> None:
    """Add a notebook, its parameters and the folder of runs, as for `astkit sweep`."""
    command.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="path of an .ipynb file")
    add_parameters(command, form, meaning)
    folder = "parent of the run folders (runs)"
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=folder)


def add_parameters(command: argparse.ArgumentParser, form: str, meaning: str) -> None:
    """Add the parameters of a notebook, as for `astkit export`."""
    command.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar=form, help=meaning
    )


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``KeyboardInterrupt`` here, so that kernels are interrupted too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        for name in ("asyncio", "papermill"):  # they would report the kernel as dead
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(
    plan: Notebook, parameters: Mapping[str, Any], root: Path, again: bool
) -> tuple[Outcome, int]:
    """Run a notebook and print its outcome; returns the outcome and the exit code."""
    from astkit.runs import notebook

    with interruptible():
        done = notebook.run(plan, parameters, root, again=again, show=True)
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
    return done, FAILED if done.status == "failed" else GOOD


def run(options: argparse.Namespace) -> int:
    """Run the notebook, and print its outcome."""
    from astkit.runs import notebook

    plan = notebook.read(options.notebook)
    _, code = start(plan, plan.changed(options.parameters), options.runs, options.again)
    return code
