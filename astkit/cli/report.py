"""`astkit report`: tables of runs, in the terminal or as an HTML page with figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from astkit import files
from astkit.cli import Commands, say

EXAMPLES = """examples:
  astkit report                                  tables of all runs in runs/
  astkit report --metric flops --by arm          another metric, other groups
  astkit report --format html -o report.html     a page with figures
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "report",
        help="tables and figures of runs",
        description="One table of the runs in a folder: parameters, n, mean, interval, and the"
        " difference to the control, paired by seed. Failed runs are listed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("runs", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    command.add_argument("--name", help="only runs with this name (of one notebook)")
    command.add_argument("--metric", help="numeric column (default: test_accuracy)")
    command.add_argument("--by", metavar="COLUMNS", help="columns to group by, comma-separated")
    command.add_argument("--control", help="group to compare with (default: dense)")
    command.add_argument("--format", choices=["html"], help="write a page with figures")
    command.add_argument("-o", "--out", type=Path, help="output file (default: report.html)")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    import pandas as pd

    from astkit.runs import report, tables

    by = options.by.split(",") if options.by else None
    groups = {"metric": options.metric, "by": by, "control": options.control}
    if options.format or options.out:
        body = report.page(options.runs, name=options.name, **groups)
        _write(options.out or Path("report.html"), body)
        return
    pd.set_option("display.width", None, "display.max_columns", None, "display.max_rows", None)
    found = tables.collect(options.runs, options.name)
    counts = found.runs["status"].value_counts()
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
    others = found.runs[found.runs["status"] != "complete"]
    if len(others):
        say(others.to_string(index=False, na_rep=""))
    say()
    say(tables.table(found, **groups).to_string(float_format="{:.4g}".format))


def _write(out: Path, body: str) -> None:
    if str(out) in ("-", "/dev/stdout"):
        print(body)
    elif out.is_fifo() or out.is_char_device():  # such as >(...) in a shell
        out.write_text(body, encoding="utf-8")
    else:
        say(files.write_atomic(out, body))
