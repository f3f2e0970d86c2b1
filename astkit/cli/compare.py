"""`astkit compare`: train several arms and save their results in a JSON file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from astkit.cli.options import Commands, use_threads
from astkit.gating import named_score
from astkit.names import REGISTRIES
from astkit.runs import arms, compare
from astkit.runs.arms import PRESETS
from astkit.stamp import stamp
from astkit.trainers.config import AUTO, PRECISIONS


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "compare",
        help="train several arms and save their results in a JSON file",
        description="Train arms of a comparison; run again, it trains the arms that the"
        f" file does not contain yet. Arms: {'; '.join(arms.ARMS)}.",
    )
    command.add_argument("arms", help="separated by ';', e.g. 'batched gate; dense'")
    command.add_argument("--out", type=Path, required=True, help="JSON file to write, or to resume")
    command.add_argument("--dataset", default="cifar10", choices=sorted(PRESETS))
    command.add_argument("--root", help="folder of the dataset (default: ASTKIT_DATA, then data/)")
    command.add_argument("--target-rate", type=float, default=0.1)
    command.add_argument("--seeds", type=_seeds, default=[0], help="comma-separated")
    command.add_argument(
        "--time", type=int, default=0, metavar="ROUNDS", help="then time a batch of each arm"
    )
    command.add_argument("--threads", type=int, help="torch threads (default: chosen by torch)")
    preset = command.add_argument_group("instead of the dataset's preset")
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
    preset.add_argument(
        "--fast",
        action="store_true",
        help=f"choose {', '.join(AUTO)} by a short probe, unless set here",
    )
    command.set_defaults(command=_run)


def _score(text: str) -> str:
    try:
        named_score(text)
    except ValueError as error:  # argparse would drop the message of a ValueError
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers, such as 0,1,2") from None


def _run(options: argparse.Namespace) -> None:
    use_threads(options)

    def given(*names: str) -> dict[str, Any]:
        values = {name: getattr(options, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    fast = dict.fromkeys(AUTO, "auto") if options.fast else {}
    task = arms.task(
        options.dataset,
        options.target_rate,
        root=options.root,
        gate=given("score", "controller"),
        config=fast | given("lr", "precision"),
        **given("model", "epochs"),
    )
    names = [name.strip() for name in options.arms.split(";")]
    report = compare.run_all(task, names, options.seeds, path=options.out)
    if options.time:
        report["batches"] = compare.time_batches(task, names, options.time)
        report["batches_stamp"] = stamp()
        compare.save(report, options.out)
