"""`astkit doctor`: what is installed, what is missing and how to install it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, which may be broken
    from astkit.cli.options import Commands

EXAMPLE = """\
examples:
  astkit doctor
  astkit doctor --json > doctor.json

Nothing is changed or sent. The exit code is 0 if the required packages work,
else 1; missing optional packages do not change it.
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "doctor",
        help="check the environment: what works, what is missing, how to install it",
        description="Check the environment: what works, what is missing, its purpose and how to\n"
        "install it.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print as JSON")
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
