"""Training on old rows, on both, on the target's alone and by `aim`, on natural shifts.

``python -m benchmarks.natural_training`` calls `astkit.compare` on splits 0 to 4 of each of
`natural_shifts.SHIFTS`, one seed a split: the network of `Table`, `STEPS` steps of a batch of
`ROWS` for all. Of the target's rows a fifth is set aside for validation. Each split is kept in
natural_training.json when it ends, those with later test rows first.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import astkit
from astkit import Budget
from astkit.comparison.report import Comparison
from astkit.comparison.statistics import mean_interval
from benchmarks import bench
from benchmarks.natural import resume
from benchmarks.natural_shifts import SHIFTS, Shift, split

RESULTS = bench.HERE / "natural_training.json"
SPLITS, STEPS, ROWS = 5, 1000, 128
SOURCES = {
    "flights, last fifth of the year": "flights: minutes of delay",
    "bikes, last three months": "bikes rented by the hour",
    "Texas housing, from 2011": "house prices in Texas",
    "air fares, from 1999": "air fares",
    "school tests, from 1996": "school tests",
    "wages, from 2008": "wages",
}
"""One shift by time of each source, and its data in words."""
Entry = dict[str, Any]


def trained(shift: Shift, number: int, later: bool) -> Entry:
    """What each method reaches on the test rows of one split."""
    start = time.perf_counter()
    report = compared(shift, number, later, ["aim"])
    values = {each["policy"]: each["value"] for each in report.entries}
    return {
        "shift": shift.name,
        "later": later,
        "split": number,
        "sentence": ", ".join(f"{name} {value:.4g}" for name, value in values.items()),
        "metric": report.metric,
        "values": values,
        "flops": {each["policy"]: each["flops"] for each in report.entries},
        "best_step": {each["policy"]: each.get("best_step") for each in report.entries},
        "notes": [*report.before, *report.notes],
        "seconds": time.perf_counter() - start,
    }


def compared(shift: Shift, number: int, later: bool, policies: Sequence[Any]) -> Comparison:
    """A comparison of ``policies`` with the controls, on one split."""
    parts = split(shift, number, later)
    with contextlib.redirect_stdout(io.StringIO()):
        return astkit.compare(
            parts.train,
            label=shift.label,
            target=parts.target,
            test=parts.test,
            task="classes" if shift.classes else "regression",
            policies=policies,
            seeds=[number],
            budget=Budget(steps=STEPS),
            batch_size=ROWS,
        )


def gain(entry: Entry, method: str) -> float:
    """Over dense training: percent of its RMSE, or points of accuracy."""
    value, dense = entry["values"][method], entry["values"]["dense"]
    return float(100 * (value - dense if entry["metric"] == "accuracy" else 1 - value / dense))


def gains(entries: Sequence[Entry]) -> list[Entry]:
    """For each shift and place of the test rows, the mean gain of each method with its interval."""
    lines = []
    for key in dict.fromkeys((each["shift"], each["later"]) for each in entries):
        mine = [each for each in entries if (each["shift"], each["later"]) == key]
        line: Entry = {"shift": key[0], "later": key[1], "splits": len(mine)}
        for method in mine[0]["values"]:
            if method != "dense":
                found = mean_interval(gain(each, method) for each in mine)
                line[method] = [found.mean, found.low, found.high]
        line["best_steps"] = [each["best_step"]["target alone"] for each in mine]
        lines.append({**line, "unit": "points" if mine[0]["metric"] == "accuracy" else "%"})
    return lines


def plan() -> Iterator[tuple[Shift, int, bool]]:
    """Later rows of one shift a source first, then the others; of each all cases once a split."""
    shifts = {shift.name: shift for shift in (make() for make in SHIFTS)}
    first = [(shifts[name], True) for name in SOURCES]
    others = [(each, True) for each in shifts.values() if each.order is not None]
    others += [(each, False) for each in shifts.values() if each.order is None]
    same = [(each, False) for each in shifts.values() if each.order is not None]
    for cases in (first, [case for case in others if case[0].name not in SOURCES], same):
        for number in range(SPLITS):
            for shift, later in cases:
                yield shift, number, later


def main() -> None:
    """Train on the splits that have no entry."""
    torch.set_num_threads(1)
    resume(RESULTS, plan(), trained)


if __name__ == "__main__":
    main()
