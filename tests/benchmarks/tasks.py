"""Policies on tasks beyond images at equal FLOPs: `python -m tests.benchmarks.tasks`.

Writes tests/benchmarks/tasks.json, from which `tests.benchmarks.readme` fills docs/tasks.md. The
same command continues what was interrupted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from astkit.runs.comparison import Comparison, compare
from astkit.runs.intervals import mean_interval
from astkit.runs.paired import DENSE, by_arm
from astkit.runs.record import read_json, write_json
from astkit.runs.verdict import Verdict, amount, judge, unit
from astkit.tasks import task

RESULTS = Path(__file__).with_name("tasks.json")
NAMES = ("regression", "imbalanced", "series", "forecast", "sound", "text", "language")
POLICIES = [{"name": "random", "rate": 0.5}, "infobatch", "auto"]
KEPT = ("policy", "seed", "value", "flops", "seconds", "trained", "scored", "rate", "worst_class")


def measure(name: str, seeds: int, jobs: int, folder: Path) -> dict[str, Any]:
    """Entries of the arms of one task, with metric and stamp."""
    found = compare(
        **task(name),
        policies=POLICIES,
        seeds=range(seeds),
        jobs=jobs,
        out=folder / name,
        all_policies=True,
        device="cpu",
    )
    print(found, flush=True)
    return plain(found)


def plain(found: Comparison) -> dict[str, Any]:
    """What the tables need of a comparison."""
    entries = [
        {key: entry[key] for key in KEPT}
        | {"curve": [[float(f"{value or 0:.6g}") for value in row] for row in entry["curve"]]}
        for entry in found.entries
    ]
    return {
        "metric": found.metric,
        "higher": found.higher,
        "entries": entries,
        "notes": found.notes,
        "stamp": found.stamp,
    }


def verdicts(part: dict[str, Any]) -> list[Verdict]:
    """The verdicts on the arms of a part of the file."""
    return judge(part["entries"], part["metric"], part["higher"])


def table(report: dict[str, Any]) -> pd.DataFrame:
    """A row per task and policy: value, difference to dense, outcome."""
    rows = []
    for name, part in report.items():
        arms = by_arm(part["entries"])
        judged = {each.policy: each for each in verdicts(part)}
        for policy in (DENSE, *judged):
            arm, found = arms[policy], judged.get(policy)
            scale, _ = unit(part["metric"])
            value = mean_interval(run["value"] for run in arm.values()).mean
            rows.append(
                {
                    "task": name,
                    "metric": part["metric"],
                    "policy": policy,
                    "n": len(arm),
                    "value": f"{value:.2%}" if scale > 1 else f"{value:.4f}",
                    "minus dense": "" if found is None else amount(found.difference, ""),
                    "outcome": "" if found is None else found.outcome,
                }
            )
            if found is not None and scale > 1:
                rows[-1]["minus dense"] = amount(found.difference, part["metric"])
    return pd.DataFrame(rows).set_index("task")


def main(arguments: list[str] | None = None) -> None:
    """Measure the tasks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("out/tasks"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for name in options.tasks:
        found = measure(name, options.seeds, options.jobs, options.folder)
        report = read_json(options.out) if options.out.exists() else {}
        write_json(options.out, {**report, name: found})


if __name__ == "__main__":
    main()
