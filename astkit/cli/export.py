"""`astkit export kaggle`: a notebook and the modules it needs as one file that runs on Kaggle."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from astkit.cli.run import add_notebook

HELP = "write a notebook as one file that runs on Kaggle without installation or internet"
MORE = """\
Writes a notebook and the modules of astkit that it needs as one file, with the
kernel-metadata.json that `kaggle kernels push` requires. The file verifies its
source when it starts. Imports that Kaggle's image does not provide are errors.
Files that parameters name are taken along. --dataset sets the parameter
dataset to "cifar10" unless -p sets it.

example:
  astkit export kaggle notebooks/01_baseline_vs_gated.ipynb -o out/kaggle \\
      --user me --dataset someone/cifar-10 --gpu -t 8.5
  kaggle kernels push -p out/kaggle
"""


def add_options(export: argparse.ArgumentParser) -> None:
    """Add the options of the one target, ``kaggle``."""
    targets = export.add_subparsers(required=True, metavar="TARGET")
    raw = argparse.RawDescriptionHelpFormatter
    command = targets.add_parser("kaggle", help=HELP, epilog=MORE, formatter_class=raw)
    add_notebook(command, "name=value", "a parameter; may be repeated")
    command.add_argument(
        "-o", "--out", type=Path, required=True, metavar="DIR", help="folder of the files"
    )
    command.add_argument(
        "-t", "--time-budget-h", type=float, metavar="HOURS", help="save and exit after HOURS"
    )
    kernel = command.add_argument_group("at Kaggle")
    kernel.add_argument("--user", help="Kaggle user name (default: KAGGLE_USERNAME)")
    kernel.add_argument("--title", default="", help="default: from the notebook's name")
    kernel.add_argument(
        "--dataset", action="append", default=[], metavar="OWNER/SLUG", help="attach a dataset"
    )
    kernel.add_argument("--gpu", action="store_true", help="run on a T4")
    package = kernel.add_mutually_exclusive_group()
    package.add_argument("--readable", action="store_true", help="one cell per module")
    package.add_argument("--wheel", type=Path, help="install this wheel from a dataset instead")
    kernel.add_argument("--public", action="store_true", help="make it public")


def run(options: argparse.Namespace) -> None:
    """Write the file and its metadata, and print what to do with them."""
    from astkit.export import kaggle  # needs nbformat
    from astkit.export.bundle import bundle

    if options.wheel is not None and not options.wheel.is_file():
        raise FileNotFoundError(f"there is no wheel {options.wheel}: make one with python -m build")
    made = bundle(options.notebook, _values(options))
    kernel = kaggle.Kernel(
        user=options.user or os.environ.get("KAGGLE_USERNAME") or kaggle.NOBODY,
        title=options.title,
        datasets=options.dataset,
        gpu=options.gpu,
        public=options.public,
        readable=options.readable,
        wheel=options.wheel,
    )
    path = kaggle.write(made, kernel, options.out)
    print(kaggle.summary(made, kernel, path))


def _values(options: argparse.Namespace) -> dict[str, Any]:
    from astkit.runs import parameters

    plan = parameters.read(options.notebook)
    values = plan.given(options.parameters)
    if options.dataset and "dataset" in plan.defaults:
        values.setdefault("dataset", "cifar10")
        if values["dataset"] == "digits":
            raise ValueError("dataset=digits needs no attached dataset: leave out --dataset or -p")
    if options.time_budget_h is not None:
        values["time_budget_h"] = options.time_budget_h
        if "out" in plan.defaults:
            values.setdefault("out", "run")  # a run that stops early needs a folder for checkpoints
    return values
