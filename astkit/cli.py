"""The command line: ``python -m astkit``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from astkit.names import REGISTRIES


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
    compare = commands.add_parser(
        "compare",
        help="train several arms and keep their results in a JSON file",
        description="Train arms of a comparison with the origin's settings; started again, it goes"
        " on with the arms that the file does not hold yet.",
    )
    compare.add_argument("arms", help="separated by ';', e.g. 'batched gate; dense'")
    compare.add_argument("--out", type=Path, required=True, help="JSON file to write or go on with")
    compare.add_argument("--dataset", default="cifar10", choices=sorted(REGISTRIES["dataset"]))
    compare.add_argument("--root", help="folder of the data set (else ASTKIT_DATA, else data/)")
    compare.add_argument("--model", default="simple_cnn", choices=sorted(REGISTRIES["model"]))
    compare.add_argument("--epochs", type=float, default=40)
    compare.add_argument("--seeds", default="0", help="comma-separated")
    compare.add_argument("--target-rate", type=float, default=0.1)
    compare.add_argument("--score", default="loss_and_contrast")
    compare.add_argument("--controller", default="origin_pi")
    compare.add_argument("--lr", type=float, default=1e-4)
    compare.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    compare.add_argument("--channels-last", action="store_true")
    compare.add_argument("--threads", type=int, help="torch threads (else torch's choice)")
    compare.set_defaults(command=_compare)
    return parser


def _compare(options: argparse.Namespace) -> None:
    from astkit.datasets import split
    from astkit.runs import arms, compare
    from astkit.trainers import TrainConfig

    if options.threads:
        torch.set_num_threads(options.threads)
    settings = {
        key: value
        for key, value in vars(options).items()
        if key not in ("command", "out", "root", "arms", "seeds")
    }
    task = arms.Task(
        splits=split(options.dataset, options.root),
        model=options.model,
        epochs=options.epochs,
        augment=("crop", "flip"),
        gate={
            "target_rate": options.target_rate,
            "score": options.score,
            "controller": options.controller,
        },
        config=TrainConfig(
            lr=options.lr, precision=options.precision, channels_last=options.channels_last
        ),
    )
    names = [name.strip() for name in options.arms.split(";")]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    compare.run_all(task, names, seeds, options.out, settings)
