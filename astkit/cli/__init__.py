"""The command line: ``astkit COMMAND``, or ``python -m astkit COMMAND``. One module a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from astkit.background import BackgroundError

COMMANDS = ("run", "sweep", "report", "compare", "tune", "demo", "export", "doctor")
GOOD, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: done; 1: a run failed; 2: the arguments, or what they name, cannot be; 130: interrupted.
    """
    parser = _parser(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    try:
        return options.command(options) or GOOD
    except (ValueError, FileNotFoundError) as error:
        parser.exit(REFUSED, f"astkit: {error}\n")
    except (BackgroundError, OSError) as error:
        parser.exit(FAILED, f"astkit: {error}\n")
    except KeyboardInterrupt:
        print("astkit: interrupted; started again, it resumes", file=sys.stderr)
        return INTERRUPTED


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="astkit",
        description="Adaptive sparse training: train on the samples that matter, measure whether"
        " it pays.",
        epilog="astkit COMMAND --help shows a command's options, with examples.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # one command alone where it is named: doctor must start even where others cannot be imported
    named = [name for name in arguments[:1] if name in COMMANDS]
    for name in named or COMMANDS:
        import_module(f"astkit.cli.{name}").add(commands)
    return parser
