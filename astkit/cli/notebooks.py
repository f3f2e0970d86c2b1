"""`astkit notebooks`: copy the notebooks into a folder."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from astkit.cli import say
from astkit.files import shipped

HELP, MORE = "copy the notebooks into a folder", ""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("folder", type=Path, metavar="DIR", help="a new folder")


def run(options: argparse.Namespace) -> None:
    """Copy the notebooks."""
    if options.folder.exists():
        raise ValueError(f"{options.folder} exists and would be overwritten: name a new folder")
    left_out = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    shutil.copytree(shipped("notebooks"), options.folder, ignore=left_out)
    say(f"{len(list(options.folder.glob('*.ipynb')))} notebooks: jupyter lab {options.folder}")
