"""`astkit compare`: does selecting samples pay for a task? Prints a table below the verdicts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from astkit.checks import check_count
from astkit.cli import add_command, say
from astkit.names import REGISTRIES, spelled

EXAMPLES = """\
examples:
  astkit compare --dataset digits --policies auto infobatch
  astkit compare --csv table.csv --label price --seeds 10 -o runs/price
  astkit compare --csv sales.csv --label amount --date day --policies aim
  astkit compare --csv old.csv --target recent.csv --test newest.csv --label amount

With -o, the same command continues a comparison that was interrupted, and one
with more seeds or policies adds to it.
"""
SHARED = ("label", "task", "drop", "groups", "keep", "encoding")
READING = ("target", "test", "date", "in_order", *SHARED)
POLICIES = ["auto", "cached_loss", "infobatch"]


def add_compare(commands: Any) -> None:
    """Add the command and its options."""
    text = "compare policies with dense and random training at equal FLOPs"
    command = add_command(commands, "compare", run_compare, text, EXAMPLES)
    add, task = command.add_argument, command.add_mutually_exclusive_group().add_argument
    task("--dataset", default="digits", help=f"{', '.join(REGISTRIES['task'])} (digits)")
    task("--images", type=Path, metavar="FOLDER", help="with <class>/ or train/<class>/")
    task("--csv", type=Path, metavar="FILE", help="CSV or parquet; needs --label")
    read = command.add_argument_group("how --csv is read").add_argument
    read("--label", metavar="COLUMN", help="column to be predicted")
    counts = "table of rows like those that count, which may be trained on"
    read("--target", type=Path, metavar="FILE", help=counts)
    read("--test", type=Path, metavar="FILE", help="table of the test rows")
    read("--date", metavar="COLUMN", help="validate and test on the last days")
    read("--in-order", action="store_true", help="validate and test on the last rows")
    add_reading(read)
    add("--size", type=int, help="pixels a side of --images (32)")
    form, known = "NAME[:ARGUMENT=VALUE,...]", ", ".join(sorted(REGISTRIES["policy"]))
    choice = f"of {known}, or FILE.py:CLASS; default: {' '.join(POLICIES)}"
    add("--policies", nargs="+", default=POLICIES, metavar=form, help=choice)
    add("--epochs", type=float, help="of dense training (5, or the task's)")
    add("--seeds", type=int, default=5, help="number of seeds (5)")
    add("--json", action="store_true", help="print the report as JSON")
    add("-o", "--out", type=Path, help="folder for results and a page")


def add_reading(read: Callable[..., Any]) -> None:
    """Add the options of reading that all commands on tables have."""
    kind = "by default up to 20 different whole numbers, and words, are classes"
    read("--task", choices=["regression", "classes"], help=kind)
    read("--drop", nargs="+", default=[], metavar="COLUMN", help="left out")
    read("--groups", metavar="COLUMN", help="names rows that depend on each other")
    identifiers = "inputs although they seem to be identifiers"
    read("--keep", nargs="+", default=[], metavar="COLUMN", help=identifiers)
    kinds = "format of dates, number as it is written, number or words: day=%%d/%%m/%%Y zip=words"
    read("--dtypes", nargs="+", default=[], metavar="COLUMN=KIND", help=kinds)
    read("--encoding", metavar="NAME", help="of files that are no UTF-8, such as cp1251")


def reading_of(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The options ``names`` as arguments of functions on tables."""
    reading = {name: getattr(options, name) for name in names}
    parts = [text.rpartition("=") for text in options.dtypes]
    if odd := [kind for name, _, kind in parts if not name]:
        raise ValueError(f"--dtypes {odd[0]}: give a column and how it is read, as zip=words")
    return {**reading, "dtypes": {name: kind for name, _, kind in parts}}


def run_compare(options: argparse.Namespace) -> None:
    """Compare, which prints the verdicts, and print the table."""
    from astkit.comparison.compare import compare

    check_count("--seeds", options.seeds)
    options.resumes = options.out is not None
    task = _task(options)
    task["policies"] = [spelled(text) for text in options.policies]
    if options.epochs is not None:
        task |= {"budget": None, "epochs": options.epochs}
    # with --json, standard output is one document; what is said meanwhile goes to standard error
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        report = compare(**task, seeds=options.seeds, out=options.out)
    page = None if options.out is None else report.to_html(options.out / "comparison.html")
    if options.json:
        say(json.dumps(report.to_json()))
        return
    say(f"\n{report.table().to_string()}")
    if page is not None:
        say(f"\npage      {page}")


def _task(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `compare` that define model and data."""
    from astkit.tasks import task
    from astkit.tasks.images import folder

    if options.size is not None and options.images is None:
        raise ValueError("--size is of a folder of images: give --images too")
    reading = reading_of(options, READING)
    if options.csv is not None:
        if options.label is None:
            raise ValueError("--csv needs --label, the name of the column to be predicted")
        return {"train": options.csv, **reading}
    for name, value in reading.items():
        if value:
            raise ValueError(f"--{name.replace('_', '-')} is of a table: give --csv too")
    if options.images is not None:
        return folder(options.images, 32 if options.size is None else options.size)
    return task(options.dataset)
