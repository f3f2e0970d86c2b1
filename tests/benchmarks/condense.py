"""A comparison's report made small enough to commit: `python -m tests.benchmarks.condense FILE`.

Each run's steps give way to their means over each pass.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from astkit.runs import compare


def condensed(report: dict[str, Any]) -> dict[str, Any]:
    """``report`` with each run's steps replaced by their means over each pass."""
    results = []
    for result in report["results"]:
        passes: dict[int, list[dict[str, Any]]] = {}
        for step in result["steps"]:
            passes.setdefault(step["epoch"], []).append(step)
        steps = [_means(entries) for entries in passes.values()]
        results.append({"training_steps": len(result["steps"]), **result, "steps": steps})
    return {**report, "results": results}


def _means(entries: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = {
        key: [e[key] for e in entries if isinstance(e[key], int | float)] for key in entries[0]
    }
    return {key: sum(values) / len(values) for key, values in numbers.items() if values}


if __name__ == "__main__":
    path = Path(sys.argv[1])
    compare.save(condensed(compare.load(path)), path)
