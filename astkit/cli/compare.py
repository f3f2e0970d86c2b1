"""`astkit compare`: does selecting samples pay for a task? Prints the verdicts and a table."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from astkit.checks import check_count
from astkit.cli import add_command, say
from astkit.names import REGISTRIES

EXAMPLES = """\
examples:
  astkit compare --dataset digits --policies auto infobatch
  astkit compare --csv table.csv --target price --seeds 10 -o runs/price
  astkit compare --csv sales.csv --target amount --in-order --policies aim

With -o, the same command continues a comparison that was interrupted, and one
with more seeds or policies adds to it.
"""
POLICIES = ["auto", "cached_loss", "infobatch"]


def add_commands(commands: Any) -> None:
    """Add the command and its options."""
    text = "compare policies with dense and random training at equal FLOPs"
    command = add_command(commands, "compare", run, text, EXAMPLES)
    task = command.add_mutually_exclusive_group()
    names = ", ".join(REGISTRIES["task"])
    task.add_argument("--dataset", default="digits", help=f"{names} (digits)")
    images = "train|val|test/<class>/, or <class>/"
    task.add_argument("--images", type=Path, metavar="FOLDER", help=images)
    task.add_argument("--csv", type=Path, metavar="FILE", help="a table; needs --target")
    task.add_argument("--text", type=Path, metavar="FILE", help="predict the next character")
    target = "column of the table: decimals for a regression, else classes"
    command.add_argument("--target", help=target)
    newest = "rows of --csv are in order of time: validate and test on the last"
    command.add_argument("--in-order", action="store_true", help=newest)
    command.add_argument("--size", type=int, default=32, help="pixels a side of --images (32)")
    command.add_argument(
        "--policies",
        nargs="+",
        default=POLICIES,
        metavar="NAME[:ARGUMENT=VALUE,...]",
        help=f"of {', '.join(sorted(REGISTRIES['policy']))}; default: {' '.join(POLICIES)}",
    )
    command.add_argument("--epochs", type=float, help="of dense training (5, or the task's)")
    command.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    out = "folder for results, checkpoints and a page"
    command.add_argument("-o", "--out", type=Path, help=out)


def run(options: argparse.Namespace) -> None:
    """Compare, and print the verdicts and the table."""
    from astkit.comparison.compare import compare

    check_count("--seeds", options.seeds)
    options.resumes = options.out is not None
    task = _task(options)
    task["policies"] = [_policy(text) for text in options.policies]
    if options.epochs is not None:
        task |= {"budget": None, "epochs": options.epochs}
    # with --json, standard output is one document; what is said meanwhile goes to standard error
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        report = compare(**task, seeds=options.seeds, out=options.out)
    page = None if options.out is None else report.to_html(options.out / "comparison.html")
    if options.json:
        say(json.dumps(report.to_json()))
        return
    say(f"\n{report!r}")
    if page is not None:
        say(f"\npage      {page}")


def _task(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `compare` that define model and data."""
    from astkit.tasks import files, task

    if (options.csv is None) != (options.target is None):
        raise ValueError("--csv needs --target, the name of a column, and --target needs --csv")
    if options.in_order and options.csv is None:
        raise ValueError("--in-order says how the rows of --csv lie: give both, or neither")
    if options.csv is not None:
        return files.table(options.csv, options.target, options.in_order)
    if options.images is not None:
        return files.folder(options.images, options.size)
    if options.text is not None:
        return task("language", path=options.text)
    return task(options.dataset)


def _policy(text: str) -> dict[str, Any]:
    """The policy in "name:argument=value,argument=value"."""
    from astkit.runs.notebook import assignments, literal

    name, _, rest = text.partition(":")
    parts = re.split(r",(?=\s*\w+=)", rest.rstrip(",")) if rest else []  # a list may contain commas
    arguments = assignments([f"name={name}", *parts], f"--policies {text}")
    return {key: value if key == "name" else literal(value) for key, value in arguments.items()}
