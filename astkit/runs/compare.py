"""Train the arms of a comparison, and save each result in one JSON file as soon as available."""

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
Report = dict[str, Any]  # "results", "settings", "stamp", and "batches" if timed


def load(path: Path) -> Report:
    """The report at ``path``, or an empty report if the file does not exist.

    Raises ``ValueError`` if the file is not a report.
    """
    report = read_json(path, results=list) if path.exists() else {"results": []}
    kinds = {"arm": str, "seed": int, "flops": int | float, "seconds": int | float}
    results = report.get("results", [{}])
    named = all(isinstance(each.get(key), kinds[key]) for each in results for key in kinds)
    if not named or not isinstance(report.get("settings", {}), dict):
        raise ValueError(f"{path} is not a report of a comparison: choose another file")
    return report


def find(results: Sequence[Result], arm: str, seed: int) -> Result | None:
    """The result of one arm and seed, or `None`."""
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
    """Train every arm for every seed, except those already in the file at ``path``.

    Arms alternate within a seed, so that changes in the machine's speed affect them equally.

    Args:
        path: JSON file, written after each arm and locked while running; metrics and checkpoints of
            each arm are stored next to it, in a folder of the same name, and an interrupted arm
            resumes from them.
        announce: called with each arm's name when it starts; by default arms show progress bars.
        timed: number of rounds of `time_batches` at the end; 0 disables it.

    Raises ``ValueError`` before training: for an unknown arm, an invalid setting, an arm whose
    budget depends on an arm scheduled later, a report made with other settings, or a file in use by
    another process. Raises `TimeIsUp` when the process's time budget is spent; call it again to
    resume.
    """
    with nullcontext() if path is None else _locked(path):
        report: Report = {"results": []} if path is None else load(path)
        _check(task, names, seeds, report)
        for seed, name in product(seeds, names):
            kept = find(report["results"], name, seed) is not None
            if announce is not None:
                announce(f"seed {seed}: {name}{', already done' if kept else ''}")
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
        raise ValueError(f"{path} is in use by another process: wait, or choose another") from error


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
            " be comparable: write to another file, or restore those settings"
        )
    for place, name in enumerate(names):
        arms.trainer(task, name, 0, Budget(epochs=task.epochs))
        for seed in seeds if "batched gate" not in names[:place] else ():
            if find(report["results"], name, seed) is None:
                arms.budget_for(name, find(report["results"], "batched gate", seed))


def time_batches(task: arms.Task, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Interleaved timing of one training batch of each arm, in seconds; the first is the baseline.

    The gate selects exactly the target rate of each batch, so that every round costs the same;
    arms that decide sample by sample cannot do so, and use the task's own controller.
    """
    exact = replace(task, gate={**task.gate, "controller": "top_k"})
    tasks = {name: task if name.endswith("per sample") else exact for name in names}
    steps = {name: arms.stepper(tasks[name], name) for name in names}
    return interleaved(steps, rounds=rounds).table()


def save(report: Report, path: Path) -> None:
    """Write ``report`` to ``path`` atomically."""
    write_json(path, report)
