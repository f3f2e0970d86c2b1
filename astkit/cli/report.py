"""`astkit report`: tables and pictures over runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from astkit.cli.options import Commands

EXAMPLES = """examples:
  astkit report                                  tables of all runs in runs/
  astkit report --metric flops --by arm          another number, other groups
  astkit report --format html -o report.html     a page with pictures
  astkit report --compare RUN RUN                what tells two runs apart
  astkit report --stale RUN --why "wrong data"   leave a run out from now on
"""
ENDINGS = {"markdown": "md", "html": "html", "notebook": "ipynb"}


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "report",
        help="tables and pictures over runs",
        description="One table over the runs of a folder: parameters, n, mean, interval, and the"
        " difference to the control, paired by seed. Failed runs are shown.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("runs", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    command.add_argument("--name", help="only runs of this name (of one notebook)")
    command.add_argument("--metric", help="column of numbers (default: test_accuracy)")
    command.add_argument("--by", metavar="COLUMNS", help="what makes the groups, comma-separated")
    command.add_argument("--control", help="group that others are compared with (default: dense)")
    command.add_argument("--format", choices=sorted(ENDINGS), help="of a page to write")
    command.add_argument("-o", "--out", type=Path, help="file of the page (default: report.*)")
    command.add_argument("--compare", nargs=2, metavar="RUN", help="what tells two runs apart")
    command.add_argument("--stale", metavar="RUN", help="mark a run stale")
    command.add_argument("--why", default="", help="reason, for --stale")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    import pandas as pd

    from astkit.runs import tables

    pd.set_option("display.width", None, "display.max_columns", None, "display.max_rows", None)
    if options.compare:
        first, second = (_record(options.runs, name) for name in options.compare)
        print(tables.differing(first, second).to_string())
    elif options.stale:
        _record(options.runs, options.stale).mark_stale(options.why)
    elif options.format is None and options.out is None:
        _text(options)
    else:
        _page(options)


def _groups(options: argparse.Namespace) -> dict[str, Any]:
    by = options.by.split(",") if options.by else None
    return {"metric": options.metric, "by": by, "control": options.control}


def _text(options: argparse.Namespace) -> None:
    from astkit.runs import tables

    found = tables.collect(options.runs, options.name)
    counts = found.runs["status"].value_counts()
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    others = found.runs[found.runs["status"] != "complete"]
    if len(others):
        print(others.drop(columns="name").to_string(index=False))
    print()
    print(tables.table(found, **_groups(options)).to_string(float_format="{:.4g}".format))


def _page(options: argparse.Namespace) -> None:
    from astkit.runs import report, tables

    form = options.format or "notebook"
    tables.table(tables.collect(options.runs, options.name), **_groups(options))  # or refuse now
    out = options.out or Path(f"report.{ENDINGS[form]}")
    print(report.write(options.runs, out, form, name=options.name, **_groups(options)))


def _record(root: Path, name: str) -> Any:
    from astkit.runs import tables

    found = tables.records(root, lambda run: run.folder.name == Path(name).name)
    if not found:
        raise FileNotFoundError(f"{root} holds no run {name}: astkit report lists them")
    return found[0]
