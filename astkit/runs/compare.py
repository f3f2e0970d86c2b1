"""Run the arms of a comparison and keep each result in one JSON file as soon as it is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

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
    if not path.exists():
        return {"results": []}
    with suppress(ValueError, KeyError, TypeError):
        report = read_json(path)
        if isinstance(report["results"], list):
            return report
    raise ValueError(f"{path} holds no report of a comparison: name another file, or move it away")


def find(results: Sequence[Result], arm: str, seed: int) -> Result | None:
    """The result of one arm and seed, if it is there."""
    return next((r for r in results if r["arm"] == arm and r["seed"] == seed), None)


def run_all(
    task: arms.Task,
    names: Sequence[str],
    seeds: Sequence[int],
    report: Report | None = None,
    *,
    path: Path | None = None,
    announce: Callable[[str], None] | None = None,
) -> Report:
    """Run every arm for every seed, those that ``report`` holds already excepted.

    Arms take turns within a seed, so that a drift of the machine's speed hits them alike.

    Args:
        report: what to resume; by default the file at ``path``, or an empty one.
        path: JSON file that is written anew after each arm; metrics of each arm, and checkpoints
            while it trains, lie beside it in a folder of the same name, from which an interrupted
            arm resumes.
        announce: called with each arm's name as it begins; without it, each shows its progress.

    Raises ``ValueError`` before the first arm is trained: for an unknown arm or an impossible
    setting, an arm whose budget is not known by its turn, a report made with other settings. Raises
    `TimeIsUp` when the process's time budget is over; called again, it resumes.
    """
    if report is None:
        report = load(path) if path is not None else {"results": []}
    results: list[Result] = report["results"]
    _check_settings(task, report)
    for place, name in enumerate(names):
        arms.trainer(task, name, 0, Budget(epochs=task.epochs))
        for seed in seeds if "batched gate" not in names[:place] else ():
            if find(results, name, seed) is None:
                arms.budget_for(name, find(results, "batched gate", seed))
    test_rows = len(task.splits.test)
    for seed, name in product(seeds, names):
        kept = find(results, name, seed) is not None
        if announce is not None:
            announce(f"seed {seed}: {name}{', kept from before' if kept else ''}")
        if kept:
            continue
        watchers = [Progress(f"{name}, seed {seed}")] if announce is None else []
        budget = arms.budget_for(name, find(results, "batched gate", seed))
        folder = None if path is None else _folder(path, name, seed)
        result = arms.run(task, name, seed, budget, watchers, folder)
        results.append({"test_rows": test_rows, **result})
        report |= {"settings": task.settings(), "stamp": stamp()}
        if path is not None and folder is not None:
            save(report, path)
            shutil.rmtree(folder / "ckpt", ignore_errors=True)
    return report


def _folder(path: Path, arm: str, seed: int) -> Path:
    return path.with_suffix("") / f"{re.sub(r'[^a-z0-9]+', '_', arm.lower())}_s{seed}"


def _check_settings(task: arms.Task, report: Report) -> None:
    try:
        now = json.loads(json.dumps(task.settings()))
    except TypeError as error:
        raise ValueError(
            f"the task cannot be written down ({error}): give score and controller by name"
        ) from error
    then = json.loads(json.dumps(report.get("settings", now)))
    changed = sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
    if report["results"] and changed:
        raise ValueError(
            f"the results that are there were made with another {', '.join(changed)}, so these"
            " could not stand beside them: write to another file, or go back to those settings"
        )


def time_batches(task: arms.Task, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Seconds of one training batch of each arm, taken in turn; one row an arm, first is baseline.

    The gate takes its best rows at exactly the target rate, so that every round costs the same;
    where rows are decided one by one that cannot be, and the task's own controller decides.
    """
    exact = replace(task, gate={**task.gate, "controller": "top_k"})
    tasks = {name: task if name.endswith("per sample") else exact for name in names}
    steps = {name: arms.stepper(tasks[name], name) for name in names}
    return interleaved(steps, rounds=rounds).table()


def save(report: Report, path: Path) -> None:
    """Write ``report`` to ``path``, whole or not at all."""
    write_json(path, report)
