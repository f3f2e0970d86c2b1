"""Run the arms of a comparison and keep each result in one JSON file as soon as it is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astkit import files
from astkit.runs import arms
from astkit.stamp import stamp
from astkit.trainers import Progress

Result = dict[str, Any]


def load(path: Path) -> dict[str, Any]:
    """The report at ``path``; an empty one where there is none."""
    if not path.exists():
        return {"results": []}
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def find(results: Sequence[Result], arm: str, seed: int) -> Result | None:
    """The result of one arm and seed, if it is there."""
    return next((r for r in results if r["arm"] == arm and r["seed"] == seed), None)


def run_all(
    task: arms.Task,
    names: Sequence[str],
    seeds: Sequence[int],
    path: Path | None = None,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> list[Result]:
    """Run every arm for every seed, those that ``path`` holds already excepted.

    Arms take turns within a seed, so that a drift of the machine's speed hits them alike.
    ``settings`` are written into the report beside the environment stamp.
    """
    report = load(path) if path is not None else {"results": []}
    results: list[Result] = report["results"]
    for seed in seeds:
        for name in names:
            if find(results, name, seed) is not None:
                continue
            budget = arms.budget_for(name, find(results, "batched gate", seed))
            watchers = [] if quiet else [Progress(f"{name}, seed {seed}")]
            results.append(arms.run(task, name, seed, budget, watchers))
            if path is not None:
                report |= {"settings": settings or {}, "stamp": stamp()}
                files.write_atomic(path, json.dumps(report, indent=1) + "\n")
    return results
