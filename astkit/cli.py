"""The command line: ``python -m astkit``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from astkit.gating import named_score
from astkit.names import REGISTRIES
from astkit.runs import arms, compare
from astkit.runs.arms import PRESETS
from astkit.stamp import stamp
from astkit.trainers.config import PRECISIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2 for bad arguments, 1 for a failed run)."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except (ValueError, FileNotFoundError) as error:
        parser.exit(2, f"astkit: {error}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="astkit", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "compare",
        help="train several arms and keep their results in a JSON file",
        description="Train arms of a comparison; started again, it goes on with the arms that the"
        f" file does not hold yet. Arms: {'; '.join(arms.ARMS)}.",
    )
    command.add_argument("arms", help="separated by ';', e.g. 'batched gate; dense'")
    command.add_argument("--out", type=Path, required=True, help="JSON file to write or go on with")
    command.add_argument("--dataset", default="cifar10", choices=sorted(PRESETS))
    command.add_argument("--root", help="folder of the data set (else ASTKIT_DATA, else data/)")
    command.add_argument("--target-rate", type=float, default=0.1)
    command.add_argument("--seeds", default="0", help="comma-separated")
    command.add_argument(
        "--time", type=int, default=0, metavar="ROUNDS", help="then time one batch of each in turn"
    )
    command.add_argument("--threads", type=int, help="torch threads (else torch's choice)")
    preset = command.add_argument_group("instead of the data set's preset")
    preset.add_argument("--model", choices=sorted(REGISTRIES["model"]))
    preset.add_argument("--epochs", type=float)
    preset.add_argument(
        "--score",
        type=_score,
        help="a weighted sum such as '0.7*loss + 0.3*contrast', or one of"
        f" {', '.join(sorted(REGISTRIES['score']))}",
    )
    preset.add_argument("--controller", choices=sorted(REGISTRIES["controller"]))
    preset.add_argument("--lr", type=float)
    preset.add_argument("--precision", choices=PRECISIONS)
    preset.add_argument("--channels-last", action="store_true", default=None)
    command.set_defaults(command=_compare)
    command = commands.add_parser(
        "tune",
        help="search target rate, schedule and gain of a gate with Optuna",
        description="Search by validation accuracy at the FLOPs that dense training spends over"
        " the epochs; several processes may share one storage file, and started again it goes on.",
    )
    command.add_argument("--dataset", default="digits", choices=sorted(PRESETS))
    command.add_argument("--trials", type=int, default=20, help="of all processes together")
    command.add_argument("--storage", type=Path, required=True, help="file to make or go on with")
    command.add_argument("--tune-lr", action="store_true", help="search the learning rate, too")
    command.add_argument("--confirm", type=int, default=3, help="new seeds for the best settings")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--root", help="folder of the data set (else ASTKIT_DATA, else data/)")
    command.add_argument("--model", choices=sorted(REGISTRIES["model"]))
    command.add_argument("--epochs", type=float, help="of dense training, whose FLOPs are spent")
    command.add_argument("--threads", type=int, help="torch threads (else torch's choice)")
    command.set_defaults(command=_tune)
    command = commands.add_parser("demo", help="run notebook 01 on the digits, print its table")
    command.add_argument("--out", type=Path, default=Path("out"), help="folder for what it makes")
    command.set_defaults(command=_demo)
    return parser


def _score(text: str) -> str:
    try:
        named_score(text)
    except ValueError as error:  # argparse would leave out what a ValueError says
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _demo(options: argparse.Namespace) -> None:
    from astkit.runs.demo import run  # needs papermill and pandas

    run(options.out)


def _use_threads(options: argparse.Namespace) -> None:
    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"--threads is {options.threads}: give 1 or more")
        torch.set_num_threads(options.threads)


def _tune(options: argparse.Namespace) -> None:
    try:
        from astkit.runs import tuning  # needs optuna and pandas
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    _use_threads(options)
    if options.confirm < 1:
        raise ValueError(f"--confirm is {options.confirm}: give 1 seed or more")
    tuning.quiet()
    changes = {name: getattr(options, name) for name in ("model", "epochs")}
    task = arms.task(
        options.dataset,
        root=options.root,
        **{name: value for name, value in changes.items() if value is not None},
    )
    search = tuning.Tuning(task, options.storage, options.tune_lr, options.seed)
    search.run(options.trials)
    print(search.best(options.confirm).to_string(float_format="{:.4g}".format))


def _compare(options: argparse.Namespace) -> None:
    _use_threads(options)

    def given(*names: str) -> dict[str, Any]:
        values = {name: getattr(options, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    task = arms.task(
        options.dataset,
        options.target_rate,
        root=options.root,
        gate=given("score", "controller"),
        config=given("lr", "precision", "channels_last"),
        **given("model", "epochs"),
    )
    names = [name.strip() for name in options.arms.split(";")]
    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        raise ValueError(
            f"--seeds is {options.seeds!r}: give whole numbers, such as 0,1,2"
        ) from None
    report = compare.run_all(task, names, seeds, path=options.out)
    if options.time:
        report["batches"] = compare.time_batches(task, names, options.time)
        report["batches_stamp"] = stamp()
        compare.save(report, options.out)
