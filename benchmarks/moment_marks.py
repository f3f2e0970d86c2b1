"""Bounds of what earlier moments and folds say of natural shifts, beside what was measured.

They were set before the shifts of `natural_new` were run; each is read on these, and on the shifts
that were known before beside them. Units are shifts: of later rows the first split is read, since
all splits have one history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from astkit.files import read_json
from astkit.trainers.evaluation import wilson_interval
from benchmarks import histories
from benchmarks.natural_new import EXPECTED

Entry = dict[str, Any]
Line = tuple[str, str, str, bool]
WORTH = 5
"""Moments that share no later row, from which on an interval is expected to exclude 0."""


def of_moments(entries: Sequence[Entry]) -> Iterator[Line]:
    """What earlier moments say of later rows, and folds of other places."""
    firsts = [each for each in entries if each["later"] and each["split"] == 0]
    both = [(each["shift"], _of(each, "both")) for each in firsts if worth(each) >= WORTH]
    told = [(shift, line) for shift, line in both if _excludes_0(line)]
    every = [
        (each["shift"], line)
        for each in firsts
        for line in each["decisions"]
        if line.get("past_low") is not None
    ]
    in_time = {each["shift"] for each in firsts}
    places = [
        (each["shift"], line)
        for each in entries
        if each["shift"] not in in_time
        for line in each["decisions"]
        if line["decision"] != "old"
    ]
    sure = [(shift, line) for shift, line in places if _is_sure(line)]
    what = f"later rows, moments worth at least {WORTH}: the interval of `both` excludes 0"
    yield _line(what, "at least a third", both, _excludes_0, 1 / 3)
    yield _line("these intervals cover what later rows measure", "all", told, _covers, 1.0)
    what = "intervals of one more moment that cover what later rows measure, all decisions"
    yield _line(what, "at least 85 %", every, _covers, 0.85)
    what = "shifts by place: forecasts of folds that exclude 0"
    yield _line(what, "at least half", places, _is_sure, 0.5)
    yield _line("these have the right sign", "at least 95 %", sure, _is_right, 0.95)


def of_histories() -> Iterator[Line]:
    """Which decision was taken in made histories."""
    draws = read_json(histories.RESULTS)["draws"]
    for kind in ("target", "old", "both x4"):
        right = sum(each["chosen"] == kind for each in draws[kind])
        what = f"made histories in which `{kind}` is right at each moment: chosen"
        kept = right >= 0.8 * len(draws[kind])
        yield what, "at least 80 %", f"{right} of {len(draws[kind])}", kept
    nulls = {"both": "`both` is better than each other", "alike": "nothing changes"}
    nulls["constant"] = "nothing changes, with dates"
    for kind, what in nulls.items():
        others = sum(each["chosen"] != "both" for each in draws[kind])
        high = wilson_interval(others, len(draws[kind]))[1]
        most = 0.05 if kind == "alike" else 0.01
        said = f"{others} of {len(draws[kind])}, upper end {high:.1%}"
        kept = others <= most * len(draws[kind])
        yield f"made histories in which {what}: another answer", f"at most {most:.0%}", said, kept
    opposite = sum(each["opposite"] for each in draws["constant"])
    what = "of these, fresh rows show the other sign of what folds say of `both`"
    yield what, "none", f"{opposite} of {len(draws['constant'])}", not opposite
    drifted = [each["chosen"] for each in draws["drift"]]
    right = sum(name == "target" or name.startswith("weighted") for name in drifted)
    what = "tables whose older rows follow another law, in order: `target` or weighted rows"
    yield what, "19 of 20", f"{right} of {len(drifted)}", right >= 0.95 * len(drifted)


def worth(entry: Entry) -> float:
    """Moments that share no later row, as a note says where there are more; 0 without any."""
    both = _of(entry, "both")
    if not both.get("won"):
        return 0.0
    notes = " ".join(entry["notes"])
    told = re.search(r"worth (\d+\.\d)", notes)
    count = int(both["won"].split(" of ")[1])
    halved = "this half counts" in notes
    return float(told[1]) if told else float(2 * count if halved else count)


def _of(entry: Entry, decision: str) -> Entry:
    return next((each for each in entry["decisions"] if each["decision"] == decision), {})


def _excludes_0(line: Entry) -> bool:
    return line.get("past_low") is not None and (line["past_low"] > 0 or line["past_high"] < 0)


def _covers(line: Entry) -> bool:
    return bool(line["past_low"] <= line["measured"] <= line["past_high"])


def _is_sure(line: Entry) -> bool:
    return bool(line["low"] > 0 or line["high"] < 0)


def _is_right(line: Entry) -> bool:
    return bool((line["gain"] > 0) == (line["measured"] > 0))


def _line(
    what: str,
    mark: str,
    found: Sequence[tuple[str, Entry]],
    judge: Callable[[Entry], bool],
    least: float,
) -> Line:
    """A row: how many are so of the new shifts, and of those seen before beside them."""
    new = [judge(line) for shift, line in found if shift in EXPECTED]
    seen = [judge(line) for shift, line in found if shift not in EXPECTED]
    said = f"{sum(new)} of {len(new)} (seen before: {sum(seen)} of {len(seen)})"
    widths = [line["past_high"] - line["past_low"] for _, line in found if judge is _covers]
    said += f", median width {np.median(widths):.0f}" if widths else ""
    return what, mark, said, sum(new) >= least * len(new)
