"""Command line: ``astkit COMMAND``, or ``python -m astkit COMMAND``.

Modules import what takes long in the functions of their commands, so that help starts at once. A
command returns its exit code, or ``None`` for success.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

GOOD, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success; 1: a run failed; 2: invalid arguments or files; 130: interrupted.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal's encoding lacks
    options = argparse.Namespace(resumes=False)
    try:
        _parser().parse_args(arguments, options)
        return options.command(options) or GOOD
    except (ValueError, FileNotFoundError) as error:
        code, sentence = REFUSED, str(error)
    except ModuleNotFoundError as error:
        extra = "the extra 'notebooks' of astkit (pip install -e '.[notebooks]' in a clone)"
        need = f"{error.name} is not installed: install it, or {extra}"
        code, sentence = REFUSED, need if error.name else str(error)  # no name: says it itself
    except BrokenPipeError:  # such as of `head`; Python would complain when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (FloatingPointError, OSError) as error:
        code, sentence = FAILED, str(error)
    except KeyboardInterrupt:
        more = "; started again, it resumes" if options.resumes else ""
        print(f"astkit: interrupted{more}", file=sys.stderr)
        return INTERRUPTED
    print(f"astkit: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def say(text: object = "") -> None:
    """Print ``text``, and flush."""
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    from astkit.cli import compare, export, forecast, runs

    parser = argparse.ArgumentParser(
        prog="astkit",
        description="Train on the samples that matter, and measure whether it pays.",
        epilog="astkit COMMAND --help shows a command's options, with examples.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    compare.add_compare(commands)
    forecast.add_forecast(commands)
    runs.add_runs(commands)
    export.add_export(commands)
    return parser


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str, more: str
) -> argparse.ArgumentParser:
    """Add the command ``name``; ``text``: a line of help, ``more``: the end of its ``--help``."""
    raw = argparse.RawDescriptionHelpFormatter
    options = {"help": text, "description": text, "epilog": more, "formatter_class": raw}
    parser: argparse.ArgumentParser = commands.add_parser(name, **options)
    parser.set_defaults(command=run)
    return parser
