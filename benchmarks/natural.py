"""Forecasts of data decisions on natural shifts of real tables, beside what fresh rows measure.

``make natural`` brings the tables; ``python -m benchmarks.natural`` judges each of
`natural_shifts.SHIFTS` and `natural_new.NEW` on splits 0 to 4, with test rows of the same period
and with later ones, and keeps each split in natural.json when it ends. Nothing was tuned on these
splits.

The gain of a decision is foretold by cross-validation over the target, then measured on test rows
by the same trees, fitted to all rows that the decision names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from astkit.aim.decisions import PLAIN, WEIGHTED, WEIGHTED_BOTH, Judge, Judgement
from astkit.aim.differ import find_shift
from astkit.aim.forecast import forecast
from astkit.aim.proxies import proxy_of
from astkit.aim.sides import sides_of
from astkit.datasets.table import Table
from astkit.files import read_json, write_json
from astkit.stamp import describe, stamp
from benchmarks import bench
from benchmarks.natural_new import NEW
from benchmarks.natural_shifts import SHIFTS, Shift, split

RESULTS = bench.HERE / "natural.json"
SPLITS = 5
Z = 1.96
Entry = dict[str, Any]


def measured(shift: Shift, number: int, later: bool) -> Entry:
    """What was foretold and what fresh rows measure, for one split."""
    parts = split(shift, number, later)
    old = Table(parts.train, shift.label, task="classes" if shift.classes else "regression")
    target, test = (Table(each, like=old) for each in (parts.target, parts.test))
    date = shift.date if later else None
    in_order = None if date else later
    found = forecast(old, target, in_order=in_order, date=date, seed=number)
    chosen = next((line["decision"] for line in found.lines if line["chosen"]), "both")
    gains = {each.decision.name: each for each in fresh_gains(old, target, test, later, number)}
    return {
        "shift": shift.name,
        "later": later,
        "split": number,
        "rows": [len(old), len(target), len(test)],
        "sentence": found.sentence,
        "seconds": found.seconds,
        "notes": list(found.notes),
        "chosen": chosen,
        "decisions": [_line(line, gains[line["decision"]]) for line in found.lines],
        "measured": {name: [each.gain, each.error] for name, each in gains.items()},
    }


def fresh_gains(old: Table, target: Table, test: Table, later: bool, seed: int) -> list[Judgement]:
    """What decisions gain on test rows, by the trees that judge, fitted to the whole target."""
    both = sides_of(old, target.extended(test), seed=seed)
    both.find_units(in_order=False)
    both.forward = later  # neighbours may depend on each other, for the error
    own = sides_of(old, target, seed=seed)
    own.find_units(in_order=False)
    weights_of = find_shift(own)[0]
    proxy = proxy_of(both)
    assert proxy is not None
    judge = Judge(both, proxy, weights_of)
    rows = np.arange(len(target) + len(test))
    vars(judge)["folds"] = [(rows[: len(target)], rows[len(target) :])]
    return judge.judge([*PLAIN, *([] if weights_of is None else [WEIGHTED, WEIGHTED_BOTH])])


def _line(row: Mapping[str, Any], fresh: Judgement) -> Entry:
    return {**row, "measured": fresh.gain, "measured_error": fresh.error}


def plan() -> Iterator[tuple[Shift, int, bool]]:
    """All splits, each shift once before any twice."""
    shifts = [make() for make in (*SHIFTS, *NEW)]
    for number in range(SPLITS):
        for shift in shifts:
            for later in (True, False):
                if not later or shift.order is not None:
                    yield shift, number, later


def resume(
    path: Path, cases: Iterable[tuple[Shift, int, bool]], measure: Callable[..., Entry]
) -> list[Entry]:
    """All entries of the file ``path``: ``measure`` is called for the ``cases`` that have none."""
    here = stamp()
    content = read_json(path) or {"stamp": here, "resumed_at": [], "entries": []}
    print(describe(content["stamp"]))
    if here["commit"] not in (content["stamp"]["commit"], *content["resumed_at"]):
        content["resumed_at"].append(here["commit"])
    done = {(each["shift"], each["split"], each["later"]) for each in content["entries"]}
    for shift, number, later in cases:
        if (shift.name, number, later) in done:
            continue
        entry = measure(shift, number, later)
        content["entries"].append(entry)
        write_json(path, content)
        when = "later rows" if later else "the same period"
        print(f"{shift.name}, {when}, split {number}: {entry['sentence']}", flush=True)
    return list(content["entries"])


def main() -> None:
    """Judge the splits that have no entry."""
    print(record(resume(RESULTS, plan(), measured)).to_string())


def record(entries: list[Entry]) -> pd.DataFrame:
    """How often forecasts were right, by where the test rows lie."""
    lines = []
    for later in (True, False):
        rows = [
            each
            for entry in entries
            if entry["later"] == later
            for each in entry["decisions"]
            if each["decision"] != "old" and each["gain"] is not None
        ]
        lines.append(_record("later rows" if later else "the same period", rows))
    return pd.DataFrame(lines).set_index("test rows")


def _record(name: str, rows: list[Entry]) -> Entry:
    sure = [each for each in rows if each["low"] > 0 or each["high"] < 0]
    right = sum((each["gain"] > 0) == (each["measured"] > 0) for each in sure)
    opposite = sum(_opposite(each) for each in sure)
    inside = sum(within(each) for each in rows)
    widths = [each["high"] - each["low"] for each in rows]
    return {
        "test rows": name,
        "forecasts": len(rows),
        "exclude 0": len(sure),
        "of these with the right sign": right,
        "significantly on the other side": opposite,
        "within 1.96 combined errors": round(inside / max(1, len(rows)), 3),
        "median width": round(float(np.median(widths)), 1) if widths else None,
    }


def _opposite(each: Entry) -> bool:
    reach = Z * each["measured_error"]
    low, high = each["measured"] - reach, each["measured"] + reach
    return (each["low"] > 0 and high < 0) or (each["high"] < 0 and low > 0)


def within(each: Entry) -> bool:
    """Whether a decision measured what was foretold, within 1.96 combined errors."""
    error = (each["high"] - each["low"]) / (2 * Z)
    return abs(each["gain"] - each["measured"]) <= Z * float(
        np.hypot(error, each["measured_error"])
    )


if __name__ == "__main__":
    main()
