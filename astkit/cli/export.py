"""`astkit export` and `astkit notebooks`: write a notebook as one file, copy the notebooks."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from astkit.cli import FAILED, GOOD, add_command, say
from astkit.cli.runs import add_parameters
from astkit.files import shipped

EXPORT = """\
Writes a notebook that needs neither an installation nor the internet, to be
uploaded to Kaggle. Files that parameters or code name are taken along. Without
a notebook, it is a template for a competition, from train.csv to submission.csv.

examples:
  astkit export notebooks/01_baseline_vs_gated.ipynb -o out/kaggle \\
      -p dataset=cifar10 -p preset=full
  astkit export -o out/titanic -p label=Survived -p row_id=PassengerId
"""


def add_export(commands: Any) -> None:
    """Add the commands and their options."""
    command = add_command(commands, "notebooks", notebooks, "copy the notebooks into a folder", "")
    command.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    text = "write a notebook and the package as one file that runs on Kaggle"
    command = add_command(commands, "export", export, text, EXPORT)
    command.add_argument("notebook", type=Path, nargs="?", metavar="NOTEBOOK", help=".ipynb file")
    add_parameters(command, "a parameter; may be repeated")
    command.add_argument("-o", "--out", type=Path, required=True, help="folder of the file")


def notebooks(options: argparse.Namespace) -> None:
    """Copy the notebooks."""
    if options.folder.exists():
        raise ValueError(f"{options.folder} exists and would be overwritten: name a new folder")
    left_out = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    shutil.copytree(shipped("notebooks"), options.folder, ignore=left_out)
    say(f"{len(list(options.folder.glob('*.ipynb')))} notebooks: jupyter lab {options.folder}")


def export(options: argparse.Namespace) -> int:
    """Write the file, and print its size and what it lacks."""
    from astkit.runs import export as kaggle
    from astkit.runs import runner

    plan = runner.read_notebook(options.notebook or kaggle.COMPETITION)
    parameters = {}
    for name, values in plan.values(options.parameters).items():
        if len(values) != 1:
            raise ValueError(f"{name} has {len(values)} values: give one, a list as [0,1]")
        parameters[name] = values[0]
    path = kaggle.write_notebook(plan, parameters, options.out)
    size = path.stat().st_size
    needs = kaggle.find_needs(plan, parameters)
    say(f"{path}: {size / 1e3:.0f} kB, with {', '.join(['astkit', *needs.data])}")
    if size > kaggle.LARGEST:
        say(f"Kaggle takes notebooks of up to {kaggle.LARGEST / 1e6:g} MB: export fewer files")
    for missing in needs.lacking:
        say(f"not taken along: {missing} (attach it to the notebook, and name its place there)")
    return FAILED if needs.lacking else GOOD
