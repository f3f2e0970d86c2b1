"""`astkit export` and `astkit notebooks`: write a notebook as one file, copy the notebooks."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from astkit.cli import add_command, say
from astkit.cli.runs import add_parameters
from astkit.files import shipped

EXPORT = """\
Writes a notebook that needs neither an installation nor the internet, and the
kernel-metadata.json that `kaggle kernels push` requires. Files that parameters
name are taken along. Without a notebook, --competition writes a template from
train.csv to submission.csv.

examples:
  astkit export notebooks/01_baseline_vs_gated.ipynb -o out/kaggle --user me \\
      --gpu --dataset someone/cifar-10 -p dataset=cifar10 -p time_budget_h=8.5
  astkit export --competition titanic -o out/titanic --user me \\
      -p target=Survived -p row_id=PassengerId
  kaggle kernels push -p out/titanic
"""


def add_commands(commands: Any) -> None:
    """Add the commands and their options."""
    command = add_command(commands, "notebooks", notebooks, "copy the notebooks into a folder", "")
    command.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    text = "write a notebook and the package as one file that runs on Kaggle"
    command = add_command(commands, "export", export, text, EXPORT)
    command.add_argument("notebook", type=Path, nargs="?", metavar="NOTEBOOK", help=".ipynb file")
    add_parameters(command, "name=value", "a parameter; may be repeated")
    folder = "folder of the files"
    command.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help=folder)
    command.add_argument("--user", help="Kaggle user name (default: KAGGLE_USERNAME)")
    command.add_argument("--competition", default="", metavar="NAME", help="attach its data")
    attach = "attach a dataset; may be repeated"
    command.add_argument(
        "--dataset", action="append", default=[], metavar="OWNER/SLUG", help=attach
    )
    command.add_argument("--gpu", action="store_true", help="run on a T4")


def notebooks(options: argparse.Namespace) -> None:
    """Copy the notebooks."""
    if options.folder.exists():
        raise ValueError(f"{options.folder} exists and would be overwritten: name a new folder")
    left_out = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    shutil.copytree(shipped("notebooks"), options.folder, ignore=left_out)
    say(f"{len(list(options.folder.glob('*.ipynb')))} notebooks: jupyter lab {options.folder}")


def export(options: argparse.Namespace) -> None:
    """Write the file and its metadata, and print what to do with them."""
    from astkit.runs import export as kaggle

    if options.notebook is None and not options.competition:
        raise ValueError("there is nothing to export: name a notebook, or pass --competition NAME")
    plan = kaggle.read(options.notebook or kaggle.COMPETITION)
    user = options.user or os.environ.get("KAGGLE_USERNAME") or kaggle.NOBODY
    path = kaggle.write(
        plan,
        plan.changed(options.parameters),
        options.out,
        user=user,
        datasets=options.dataset,
        competition=options.competition,
        gpu=options.gpu,
    )
    say(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    if user == kaggle.NOBODY:
        say(f"replace {kaggle.NOBODY} in kernel-metadata.json by your Kaggle name, or pass --user")
    say(f"kaggle kernels push -p {options.out}")
