"""`astkit select`: choose the rows of a pool of data that a target needs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astkit.checks import check_count
from astkit.cli import add_command, say

MORE = """\
Draws rows in proportion to how much more frequent their kind is in the target,
by default as many as can be drawn without a repeat. Where the forecast cannot
tell whether that gains, all rows are kept. Nothing is trained but classifiers
on simple features. With --weights the rows are not drawn: give the column to
your library as sample_weight. The pool and the target are both .csv, .jsonl
(objects with a text), .txt (a text a line), or folders of images, for which the
paths of the chosen images are written.

examples:
  astkit select pool.csv --target recent.csv --label price --out chosen.csv
  astkit select pool.csv --target recent.csv --label price --weights --out all.csv
  astkit select crawl.jsonl --target mine.jsonl --out chosen.jsonl
  astkit select photos/ --target mine/ --out chosen.txt
"""


def add_select(commands: Any) -> None:
    """Add the command and its options."""
    text = "choose the rows of a pool of data that a target needs"
    command = add_command(commands, "select", run_select, text, MORE)
    command.add_argument("pool", type=Path, help="file or folder to choose from")
    command.add_argument("--target", type=Path, required=True, help="rows like those that count")
    command.add_argument("--out", type=Path, required=True, help="file of the chosen rows")
    label = "column to be predicted, which a forecast needs: decimals, else classes"
    command.add_argument("--label", help=label)
    command.add_argument("--rows", type=int, help="number of rows to draw; they may repeat")
    weights = "write all rows of a table, their weights in a last column, weight, of mean 1"
    command.add_argument("--weights", action="store_true", help=weights)
    command.add_argument("--seed", type=int, default=0, help="seed of the draw (0)")


def run_select(options: argparse.Namespace) -> None:
    """Print the forecast, and write the chosen rows in the order of the pool."""
    import torch

    from astkit import rng
    from astkit.datasets.pools import read_pool
    from astkit.datasets.table_reader import PACKED
    from astkit.files import write_atomic
    from astkit.gating.policies.draws import draw_systematic

    if options.rows is not None:
        check_count("--rows", options.rows)
    if options.out.resolve() in (options.pool.resolve(), options.target.resolve()):
        raise ValueError(f"--out is {options.out}, which is read: name another file")
    if options.out.suffix.lower() in PACKED:
        raise ValueError(f"--out is {options.out}, but rows are written as they are: name a .csv")
    if options.weights and options.rows is not None:
        raise ValueError("--rows and --weights: rows are drawn or weighted, give one of them")
    pool = read_pool(options.pool, options.target, options.label)
    if options.weights and pool.weighted is None:
        raise ValueError(f"--weights writes a column, but {options.pool} is no table: leave it out")
    for note in pool.notes:
        say(note)
    count = len(pool.rows)
    choice, left_out = _weigh(pool, options.seed)
    found = choice.weights
    weights = torch.ones(count) if found is None else found
    if left_out:
        say(f"not compared, since they tell nearly every row apart: {', '.join(left_out)}")
    say(choice.forecast.sentence)
    if options.weights and pool.weighted is not None:
        write_atomic(options.out, pool.weighted(weights))
        worth = float(weights.sum() ** 2 / weights.square().sum())
        say(f"{count:,} rows in {options.out}, by their weights worth {worth:,.0f} equal ones")
        return
    most = max(1, int(count / float(weights.max())))
    drawn = draw_systematic(weights, options.rows or most, rng.generator(options.seed, "select"))
    write_atomic(options.out, pool.lines(drawn.sort().values))
    distinct = len(drawn.unique())
    again = f", {len(drawn):,} with repeats" * (len(drawn) > distinct)
    say(f"{distinct:,} distinct rows of {count:,} in {options.out}{again}")


def _weigh(pool: Any, seed: int) -> tuple[Any, Sequence[str]]:
    """Weights of the pool's rows and their forecast, and columns that were not compared."""
    from astkit.aim.forecast import MIN_ROWS
    from astkit.aim.policy import pair as pair_of
    from astkit.aim.policy import weigh, weigh_by_forecast

    if pool.labelled is None:
        pair = pair_of(pool.rows, pool.target, seed=seed, classes=True)
        choice = weigh(pair)
        shared = [True] * len(pool.names) if pair.train.columns is None else pair.train.columns
        return choice, [name for name, each in zip(pool.names, shared, strict=True) if not each]
    table, target = pool.labelled()
    if len(target) < MIN_ROWS:
        raise ValueError(
            f"the target has {len(target)} rows, too few to compare the pool with: pass {MIN_ROWS}"
        )
    for note in table.notes:
        say(note)
    choice = weigh_by_forecast(table, target, seed)
    return choice, choice.left_out
