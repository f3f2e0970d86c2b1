"""`astkit export kaggle`: a notebook and the modules it needs as one file that runs on Kaggle."""

from __future__ import annotations

import argparse
import ast
import json
import os
from pathlib import Path
from typing import Any

from astkit.cli.options import Commands

ABOUT = """\
Write a notebook and the modules of astkit that it needs as one file, with the
kernel-metadata.json that `kaggle kernels push` wants. The file checks its own
source as it starts. Imports that Kaggle's image does not have are refused here.
"""
EXAMPLE = """\
example:
  astkit export kaggle notebooks/01_baseline_vs_gated.ipynb -o out/kaggle \\
      --user me --dataset someone/cifar-10 --gpu -p dataset=cifar10 -t 8.5
  kaggle kernels push -p out/kaggle

--presets names a JSON file such as {"quick": {"epochs": 1}, "full": {"epochs": 40}};
-p adds to the chosen one. The presets stand in a cell of the exported notebook.
"""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    export = commands.add_parser("export", help="make one file of a notebook, for Kaggle")
    targets = export.add_subparsers(required=True, metavar="TARGET")
    command = targets.add_parser(
        "kaggle",
        help="a notebook, or a script, that needs no installation and no internet",
        description=ABOUT,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("notebook", type=Path)
    command.add_argument("-o", "--out", type=Path, required=True, metavar="DIR")
    command.add_argument("--script", action="store_true", help="a Python file, not a notebook")
    settings = command.add_argument_group("settings of the run")
    settings.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", type=_pair
    )
    settings.add_argument("--presets", type=Path, metavar="FILE", help="named sets of parameters")
    settings.add_argument("--preset", metavar="NAME", help="the preset that is used")
    settings.add_argument(
        "-t", "--time-budget-h", type=float, metavar="HOURS", help="after which runs are saved"
    )
    kernel = command.add_argument_group("at Kaggle")
    kernel.add_argument("--user", help="your name there (else KAGGLE_USERNAME)")
    kernel.add_argument("--title", default="", help="else made from the notebook's name")
    kernel.add_argument("--dataset", action="append", default=[], metavar="OWNER/SLUG")
    kernel.add_argument("--gpu", action="store_true", help="run on a T4")
    kernel.add_argument("--public", action="store_true", help="let others see it")
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    from astkit.export import kaggle  # needs nbformat
    from astkit.export.bundle import bundle

    made = bundle(options.notebook, _settings(options), options.script)
    kernel = kaggle.Kernel(
        user=options.user or os.environ.get("KAGGLE_USERNAME") or kaggle.NOBODY,
        title=options.title,
        datasets=options.dataset,
        gpu=options.gpu,
        public=options.public,
    )
    path = kaggle.write(made, kernel, options.out)
    print(kaggle.summary(made, kernel, path))


def _settings(options: argparse.Namespace) -> Any:
    from astkit.export.bundle import Settings
    from astkit.export.cells import names, open_notebook

    presets = _read(options.presets) if options.presets else {}
    values = dict(options.parameters)
    if options.time_budget_h is not None:
        values["time_budget_h"] = options.time_budget_h
        if "out" in names(open_notebook(options.notebook).parameters.source):
            values.setdefault("out", "run")  # what is cut off needs a place to be saved in
    chosen = options.preset or "defaults"
    if chosen not in ("defaults", *presets):
        raise ValueError(f"--preset is {chosen!r}: choose one of defaults, {', '.join(presets)}")
    if not values:
        return Settings(presets, chosen)
    return Settings({**presets, "export": {**presets.get(chosen, {}), **values}}, "export")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    presets = json.loads(path.read_text(encoding="utf-8"))  # its error is a ValueError
    if not isinstance(presets, dict) or not all(isinstance(p, dict) for p in presets.values()):
        raise ValueError(f'{path} holds no presets: write {{"NAME": {{"parameter": value}}}}')
    return presets


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word needs no quotes
