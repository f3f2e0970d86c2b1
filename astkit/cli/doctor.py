"""`astkit doctor`: what this machine has, what is missing and how to get it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, which may be what is broken
    from astkit.cli.options import Commands

EXAMPLE = """\
examples:
  astkit doctor
  astkit doctor --json > doctor.json

Nothing is changed or sent. The exit code is 0 when the core works and 1 when it
does not; what is missing beside the core leaves it at 0.
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "doctor",
        help="say what this machine has, what is missing and how to get it",
        description="Say what this machine has, what is missing, what that is for and how to\n"
        "get it.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print the same as JSON")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from astkit.cli import FAILED, GOOD
    from astkit.runs import doctor
    from astkit.runs.doctor import text, verdict, works

    findings = doctor.examine()
    good = works(findings)
    if options.json:
        content = {"works": good, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(content, indent=1))
        if not good:
            print(f"astkit: {verdict(findings)}", file=sys.stderr)
    else:
        print(text(findings))
    return GOOD if good else FAILED
