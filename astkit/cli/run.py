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
    from astkit.runs.notebook import Outcome
    from astkit.runs.parameters import Notebook

HELP = "run a notebook with given parameters in a run folder"
MORE = """\
examples:
  astkit run notebooks/01_baseline_vs_gated.ipynb -p epochs=2 -p seeds=0
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
    add_place(command)
    command.add_argument(
        "--again", action="store_true", help="mark an earlier run stale, and start a new one"
    )


def add_notebook(command: argparse.ArgumentParser, form: str, what: str) -> None:
    """Add a notebook and its parameters, as for `astkit sweep` and `astkit export`."""
    command.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="path of an .ipynb file")
    command.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar=form, help=what
    )


def add_place(command: argparse.ArgumentParser) -> None:
    """Add where and with how many threads runs take place, as for `astkit sweep`."""
    folder, threads = "parent of the run folders (runs)", "CPU threads of each run"
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=folder)
    command.add_argument("--threads", type=int, metavar="N", help=threads)


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
    plan: Notebook, given: Mapping[str, Any], root: Path, **options: Any
) -> tuple[Outcome, int]:
    """Run a notebook and print its outcome; returns the outcome and the exit code."""
    from astkit.runs import notebook

    with interruptible():
        done = notebook.run(plan, given, root, show=True, **options)
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
    from astkit.runs import parameters

    if options.threads is not None and options.threads < 1:
        raise ValueError(f"--threads is {options.threads}: give 1 or more")
    plan = parameters.read(options.notebook)
    given = plan.given(options.parameters)
    _, code = start(plan, given, options.runs, again=options.again, threads=options.threads)
    return code
