"""Train the arms of a comparison, and keep each result in one JSON file as soon as it is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from astkit import files
from astkit.profiling import interleaved
from astkit.runs import arms
from astkit.runs.record import read_json, write_json
from astkit.stamp import stamp
from astkit.trainers import Budget, Progress

Result = dict[str, Any]
Report = dict[str, Any]  # "results", "settings", "stamp", and "batches" where they were timed


def load(path: Path) -> Report:
    """The report at ``path``; an empty one where there is none.

    Raises ``ValueError`` for a file that holds something else.
    """
    report = read_json(path, results=list) if path.exists() else {"results": []}
    kinds = {"arm": str, "seed": int, "flops": int | float, "seconds": int | float}
    results = report.get("results", [{}])
    named = all(isinstance(each.get(key), kinds[key]) for each in results for key in kinds)
    if not named or not isinstance(report.get("settings", {}), dict):
        raise ValueError(f"{path} holds no report of a comparison: name another file")
    return report


def find(results: Sequence[Result], arm: str, seed: int) -> Result | None:
    """The result of one arm and seed, if it is there."""
    return next((r for r in results if r["arm"] == arm and r["seed"] == seed), None)


def run_all(
    task: arms.Task,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    path: Path | None = None,
    announce: Callable[[str], None] | None = None,
    timed: int = 0,
) -> Report:
    """Train every arm for every seed, except those that the file at ``path`` holds.

    Arms take turns within a seed, so that a drift of the machine's speed affects them alike.

    Args:
        path: JSON file, written after each arm and locked meanwhile; metrics of each arm, and
            checkpoints while it trains, lie beside it in a folder of the same name, from which an
            interrupted arm resumes.
        announce: called with each arm's name as it begins; without it, each shows its progress.
        timed: rounds of `time_batches` afterwards; 0 for none.

    Raises ``ValueError`` before the first arm is trained: for an unknown arm or an impossible
    setting, an arm whose budget is not known by its turn, a report made with other settings, a file
    in use by another process. Raises `TimeIsUp` when the process's time budget is over; called
    again, it resumes.
    """
    with nullcontext() if path is None else _locked(path):
        report: Report = {"results": []} if path is None else load(path)
        _check(task, names, seeds, report)
        for seed, name in product(seeds, names):
            kept = find(report["results"], name, seed) is not None
            if announce is not None:
                announce(f"seed {seed}: {name}{', kept from before' if kept else ''}")
            if not kept:
                _run(task, name, seed, report, path, quiet=announce is not None)
        if timed:
            batches = time_batches(task, names, timed)
            report |= {"batches": batches, "batches_stamp": stamp()}
            if path is not None:
                save(report, path)
        return report


def _run(
    task: arms.Task, name: str, seed: int, report: Report, path: Path | None, quiet: bool
) -> None:
    results: list[Result] = report["results"]
    watchers = [] if quiet else [Progress(f"{name}, seed {seed}")]
    budget = arms.budget_for(name, find(results, "batched gate", seed))
    folder = None
    if path is not None:
        folder = path.with_suffix("") / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}_s{seed}"
    results.append(arms.run(task, name, seed, budget, watchers, folder))
    report |= {"settings": task.settings(), "stamp": stamp()}
    if path is not None and folder is not None:
        save(report, path)
        shutil.rmtree(folder / "ckpt", ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    files.check_target(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=0):
            yield
    except Timeout as error:
        raise ValueError(f"{path} is in use by another process: wait, or name another") from error


def _check(task: arms.Task, names: Sequence[str], seeds: Sequence[int], report: Report) -> None:
    try:
        now = json.loads(json.dumps(task.settings()))
    except TypeError as error:
        raise ValueError(
            f"the task cannot be written as JSON ({error}): give score and controller by name"
        ) from error
    then = report.get("settings", now)
    changed = sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
    if report["results"] and changed:
        raise ValueError(
            f"the file's results were made with another {', '.join(changed)}, so new ones would not"
            " compare: write to another file, or go back to those settings"
        )
    for place, name in enumerate(names):
        arms.trainer(task, name, 0, Budget(epochs=task.epochs))
        for seed in seeds if "batched gate" not in names[:place] else ():
            if find(report["results"], name, seed) is None:
                arms.budget_for(name, find(report["results"], "batched gate", seed))


def time_batches(task: arms.Task, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Seconds of one training batch of each arm, interleaved; one row per arm, first is baseline.

    The gate takes exactly the target rate of each batch, so that every round costs the same; where
    rows are decided one by one that is impossible, and the task's own controller decides.
    """
    exact = replace(task, gate={**task.gate, "controller": "top_k"})
    tasks = {name: task if name.endswith("per sample") else exact for name in names}
    steps = {name: arms.stepper(tasks[name], name) for name in names}
    return interleaved(steps, rounds=rounds).table()


def save(report: Report, path: Path) -> None:
    """Write ``report`` to ``path``, whole or not at all."""
    write_json(path, report)
