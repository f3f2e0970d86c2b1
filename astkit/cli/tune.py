"""`astkit tune`: search target rate, schedule and gain of a gate with Optuna."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from astkit.cli import Commands
from astkit.names import REGISTRIES, resolve


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "tune",
        help="search target rate, schedule and gain of a gate with Optuna",
        description="Maximise validation accuracy at the FLOPs of dense training over"
        " the epochs; several processes may share one storage file; run it again to resume.",
    )
    command.add_argument("--dataset", default="digits", choices=("digits", "cifar10"))
    command.add_argument("--trials", type=int, default=20, help="total over all processes")
    command.add_argument("--storage", type=Path, required=True, help="file to create or resume")
    command.add_argument("--tune-lr", action="store_true", help="also tune the learning rate")
    command.add_argument("--confirm", type=int, default=3, help="new seeds for the best settings")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--model", choices=sorted(REGISTRIES["model"]))
    command.add_argument(
        "--epochs", type=float, default=15, help="of dense training, which sets the FLOPs"
    )
    command.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    try:
        import optuna

        from astkit.runs import tuning
        from astkit.runs.comparison_task import Task
        from astkit.tasks import task
    except ModuleNotFoundError as error:
        raise ValueError(
            "tuning needs optuna, which is not installed: pip install 'astkit[tune]'"
        ) from error
    if options.confirm < 1:
        raise ValueError(f"--confirm is {options.confirm}: give 1 seed or more")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = task(options.dataset)
    if options.model is not None:
        found["make_model"] = partial(resolve("model", options.model), *found["make_model"].args)
    search = tuning.Tuning(
        Task(**found), options.epochs, options.storage, options.tune_lr, options.seed
    )
    search.run(options.trials)
    print(search.best(options.confirm).to_string(float_format="{:.4g}".format))
