"""Command line: ``astkit COMMAND``, or ``python -m astkit COMMAND``.

One module per command, with ``HELP`` (a line), ``MORE`` (the end of its ``--help``),
``add_options(parser)`` and ``run(options)``, which returns the exit code or ``None``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

COMMANDS = ("demo", "notebooks", "compare", "run", "sweep", "report", "export")
GOOD, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success; 1: a run failed; 2: invalid arguments or files; 130: interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # paths may not be encodable in the C locale
            stream.reconfigure(errors="backslashreplace")
    try:
        options = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
        return options.command(options) or GOOD
    except (ValueError, FileNotFoundError) as error:
        code, sentence = REFUSED, str(error)
    except ModuleNotFoundError as error:
        extra = "the extra 'notebooks' of astkit (pip install -e '.[notebooks]' in a clone)"
        need = f"{error.name} is not installed: install it, or {extra}"
        code, sentence = REFUSED, need if error.name else str(error)  # no name: says it itself
    except (FloatingPointError, OSError) as error:
        code, sentence = FAILED, str(error)
    except KeyboardInterrupt:
        print("astkit: interrupted; started again, it resumes", file=sys.stderr)
        return INTERRUPTED
    sys.stderr.write(printable(f"astkit: {sentence}\n"))
    raise SystemExit(code)


def say(text: object = "") -> None:
    """Print ``text`` as `printable`, and flush."""
    print(printable(str(text)), flush=True)


def printable(text: str) -> str:
    """``text`` with control characters escaped: text from files must not control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="astkit",
        description="Adaptive sparse training: train on the samples that matter, measure whether"
        " it pays.",
        epilog="astkit COMMAND --help shows a command's options, with examples.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # import only the named command, so that help starts at once
    named = [name for name in arguments[:1] if name in COMMANDS]
    for name in named or COMMANDS:
        module = import_module(f"astkit.cli.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.MORE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
        command.set_defaults(command=module.run)
    return parser
