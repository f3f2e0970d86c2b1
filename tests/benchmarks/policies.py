"""Compares the policies at equal cost: `python -m tests.benchmarks.policies`; see `policies_plan`.

Every run of a condition may spend the FLOPs of dense training at ``--epochs``, scoring and helper
models included, with a schedule that ends where they are spent. Test data are scored once, at the
end, with the last weights. Each run is a process of its own with one thread; the same command
continues what was interrupted. ``--table`` writes docs/policies.md. Results come from a clean
commit: work in a worktree of one, and let ``--out`` name a file outside it. ::

    python -m tests.benchmarks.policies --condition clean wrong_labels:share=0.4 \\
        --policies dense cached_loss:rate=0.3 random@cached_loss:rate=0.3 --seeds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from unittest.mock import patch

from astkit import system
from astkit.files import write_atomic
from astkit.names import REGISTRIES
from tests.benchmarks import policies_plan as plans
from tests.benchmarks.policies_plan import Run
from tests.benchmarks.policies_run import DATA, execute, images
from tests.benchmarks.policies_table import page

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "policies.md"
EPOCHS = {"small": 40.0}  # of other conditions: 8
POLL = 0.5  # seconds


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


def listing(plan: list[Run], entries: plans.Entries) -> str:
    """The plan, a line each run, and what is left of it in core-hours."""
    lines, left, done = [], 0.0, plans.done(entries)
    for run in plan:
        left += 0 if run in done else run.seconds()
        settings = f"lr {run.lr:g}, batch {run.batch_size}, {run.epochs:g} epochs"
        state = "done" if run in done else f"about {run.seconds() / 60:.1f} min"
        lines.append(f"{run.condition}, {run.policy}, seed {run.seed}, {settings}: {state}")
    return "\n".join([*lines, f"{len(plan)} runs; about {left / 3600:.2f} core-hours are left"])


def run_one(run: Run, out: Path, cache: Path, pause: float) -> None:
    """Train ``run`` in this process and add its entry to ``out``."""
    rate = plans.rate_for(run, plans.read(out)) if run.controlled else None
    # without it, a sixth of the seconds goes to page faults
    with system.tuned(keep_memory=True), patch.dict(REGISTRIES["condition"], plans.ALIASES):
        found = execute(run, cache, rate, pause=pause)
    # only the end is shown, and all parts would be most of the file, which the export takes along
    plans.add(out, run.key(), found | {"class_share": found["class_share"][-1:]})


def run_all(plan: list[Run], out: Path, cache: Path, jobs: int, pause: float) -> list[Run]:
    """Train what ``out`` lacks, ``jobs`` processes at a time; returns the runs that failed.

    A random control waits until the rate that it takes over is known, and fails without it.
    """
    entries = plans.read(out)
    waiting = [run for run in plan if run not in plans.done(entries)]
    if waiting:
        images(waiting[0].data, cache)
    active: dict[subprocess.Popen[bytes], Run] = {}
    failed: list[Run] = []
    try:
        while waiting or active:
            for run in [each for each in waiting if _ready(each, entries)][: jobs - len(active)]:
                waiting.remove(run)
                active[_start(run, out, cache, pause)] = run
            if not active:
                return failed + waiting
            time.sleep(POLL)
            for process in [each for each in active if each.poll() is not None]:
                run, entries = active.pop(process), plans.read(out)
                failed += [run] * (run not in plans.done(entries))
                print(listing([run], entries).splitlines()[0], flush=True)
    finally:
        for process in active:
            process.terminate()
            process.wait()
    return failed


def _ready(run: Run, entries: plans.Entries) -> bool:
    return run.controlled is None or plans.rate_for(run, entries) is not None


def _start(run: Run, out: Path, cache: Path, pause: float) -> subprocess.Popen[bytes]:
    places = ["--out", str(out), "--cache", str(cache), "--pause", str(pause)]
    command = [sys.executable, "-m", __spec__.name, "--one", json.dumps(asdict(run)), *places]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, cwd=HERE.parents[1])


def main(arguments: list[str] | None = None) -> None:
    """Run the plan."""
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
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "out" / "policies")
    parser.add_argument("--pause", type=float, default=30.0, help="seconds between checkpoints")
    parser.add_argument("--tuned", action="store_true", help="with the settings of the table")
    parser.add_argument("--only-list", action="store_true", help="print the plan, run nothing")
    parser.add_argument("--table", action="store_true", help="write docs/policies.md, run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    out = (options.out or plans.RESULTS).absolute()
    cache = options.cache.absolute()
    if options.one:
        return run_one(plans.run_of(json.loads(options.one)), out, cache, options.pause)
    if options.table:
        write_atomic(PAGE, page(plans.read(out)))
        return None
    try:
        plan = planned(options)
    except ValueError as error:
        parser.error(str(error))
    print(listing(plan, plans.read(out)), flush=True)
    if options.only_list:
        return None
    failed = run_all(plan, out, cache, options.jobs, options.pause)
    if failed:
        raise SystemExit(
            f"{len(failed)} runs have no result; the same command tries them again, and a random"
            " control needs the policy after its @ in --policies:\n"
            + listing(failed, plans.read(out))
        )
    return None


if __name__ == "__main__":
    main()
