"""Compares the policies at equal cost: `python -m tests.benchmarks.policies`; see `policies_plan`.

Every run of a condition may spend the FLOPs of dense training at ``--epochs``, scoring and helper
models included, with a schedule that ends where they are spent. Test data are scored once, at the
end, with the last weights. Each run is a process of its own with one thread; the same command
continues what was interrupted, and trains random controls once the rate of their policy is known.
``--table`` writes docs/policies.md. Results come from a clean commit: work in a worktree of one,
and let ``--out`` name a file outside it. ::

    python -m tests.benchmarks.policies --condition clean wrong_labels:share=0.4 \\
        --policies dense cached_loss:rate=0.3 random@cached_loss:rate=0.3 --seeds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch

from astkit import system
from astkit.files import write_atomic
from astkit.names import REGISTRIES
from tests.benchmarks import policies_plan as plans
from tests.benchmarks.gain import read, train_all
from tests.benchmarks.policies_plan import Run
from tests.benchmarks.policies_run import DATA, execute
from tests.benchmarks.policies_table import page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "policies.md"
EPOCHS = {"small": 40.0}  # of other conditions: 8


def planned(options: argparse.Namespace) -> list[Run]:
    """The runs that the options ask for, seed by seed, so that policies take turns."""
    data = DATA[options.data]
    runs = [
        Run(
            condition,
            policy,
            seed,
            options.epochs or EPOCHS.get(plans.parsed(condition)[0], 8.0),
            data.lr,
            data.batch_size,
            fraction=options.fraction,
            data=options.data,
        )
        for condition, seed, policy in product(options.condition, options.seeds, options.policies)
    ]
    return list(map(plans.tuned, runs)) if options.tuned else runs


def train(run: Run, out: Path, cache: Path) -> plans.Entry:
    """The entry of ``run``, trained in this process.

    Raises ``ValueError`` for a random control whose policy has no entry in ``out``.
    """
    torch.set_num_threads(1)
    rate = plans.rate_for(run, read(out)) if run.controlled else None
    if run.controlled and rate is None:
        raise ValueError(f"the rate of {run.controlled} is not known: train it first")
    # without it, a sixth of the seconds goes to page faults
    with system.tuned(keep_memory=True), patch.dict(REGISTRIES["condition"], plans.ALIASES):
        return execute(run, cache, rate)


def main(arguments: list[str] | None = None) -> None:
    """Train the runs without an entry, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--condition", nargs="+", default=["clean"], help="as name:option=value")
    parser.add_argument("--policies", nargs="+", default=["dense"], help="as name:option=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=float, help="of dense training; 8, on small data 40")
    parser.add_argument("--fraction", type=float, default=1.0, help="of dense's FLOPs to spend")
    parser.add_argument("--data", choices=DATA, default="cifar10")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--out", type=Path, default=plans.RESULTS, help="where the JSON goes")
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "policies")
    parser.add_argument("--tuned", action="store_true", help="with the settings of the table")
    parser.add_argument("--table", action="store_true", help="write docs/policies.md, run nothing")
    options = parser.parse_args(arguments)
    out = options.out.absolute()
    if options.table:
        write_atomic(PAGE, page(read(out)))
        return
    job = partial(train, out=out, cache=options.cache.absolute())
    train_all(planned(options), out, options.jobs, job)


if __name__ == "__main__":
    main()
