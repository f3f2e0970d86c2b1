"""`astkit notebooks`: copy the notebooks into a folder."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from astkit.cli import Commands, say
from astkit.files import shipped


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("notebooks", help="copy the notebooks into a folder")
    command.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    if options.folder.exists():
        raise ValueError(f"{options.folder} exists and would be overwritten: name a new folder")
    left_out = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    shutil.copytree(shipped("notebooks"), options.folder, ignore=left_out)
    say(f"{len(list(options.folder.glob('*.ipynb')))} notebooks: jupyter lab {options.folder}")
