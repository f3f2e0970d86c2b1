"""The calibration of verdicts and the bytes of several processes: what is committed is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astkit.trainers.evaluation import wilson_interval
from tests.benchmarks import calibration, distributed
from tests.benchmarks.calibration import EDGE, MIXED, NOTHING, ROWS, SEEDS, SHAPES


def test_a_few_trials_are_wrong_as_rarely_as_promised() -> None:
    nothing = calibration.cell(NOTHING, "normal", n=5, rows=300, trials=200)
    assert nothing["wrong"] <= 0.09  # 5 %, and 2.6 standard errors of 200 trials
    assert nothing["seeds_only"] > nothing["wrong"]
    clear = calibration.cell((0.05, -0.05), "normal", n=10, rows=2000, trials=20)
    assert clear["wrong"] == 0
    assert clear["decided"] > 0.95


def test_the_committed_calibration_keeps_its_bounds() -> None:
    report = json.loads(calibration.RESULTS.read_text())["seeds"]
    assert report["stamp"]["dirty"] is False
    assert report["command"].startswith("python -m tests.benchmarks.calibration")
    found = {(*c["effects"], c["shape"], c["n"], c["rows"]): c for c in report["cells"]}
    tables = {(*each, "normal", n, r) for each in (EDGE, MIXED) for n in SEEDS for r in ROWS}
    tables |= {(*NOTHING, shape, n, r) for shape in SHAPES for n in SEEDS for r in ROWS}
    assert found.keys() >= tables
    for each in found.values():
        assert each["trials"] >= 2000
        if each["shape"] == "normal":  # 5 %, and two standard errors of 2000 trials
            assert each["wrong"] <= 0.06, each
            assert each["covered"] >= 0.94, each
            assert each.get("once_more", 0) <= 0.08, each
    few = [each for key, each in found.items() if key[-3:] == ("normal", 10, 300)]
    assert max(each["seeds_only"] for each in few) > 0.15  # what the test rows are regarded for


def test_a_few_trials_on_rows_that_depend_on_each_other() -> None:
    groups = calibration.grouped(40, "even", 0.5, trials=50)
    series = calibration.following("accuracy", 500, 0.9, trials=50)
    for found in (groups, series):
        assert found["covered"] >= 0.88  # 95 %, and two standard errors of 50 trials
    assert series["said"] == pytest.approx(series["worth"], rel=0.5)
    assert calibration.recorded(600, 300, 0.0, 1.0, trials=5)["alarms"] == 0


def test_committed_intervals_cover_where_rows_depend_on_each_other() -> None:
    report = json.loads(calibration.RESULTS.read_text())
    cells = report["groups"]["cells"] + report["series"]["cells"]
    assert len(cells) == 36
    for each in cells:
        assert each["trials"] >= 1000
        assert each["low"] >= 0.92, each  # of Wilson's interval


def test_committed_false_alarms_of_windows_of_a_stationary_process() -> None:
    cells = json.loads(calibration.RESULTS.read_text())["recordings"]["cells"]
    assert len(cells) == len(calibration.RECORDED)
    for each in cells:
        assert each["trials"] >= 1000
        assert each["alarms"] <= 0.01, each
        assert each["high"] <= 0.02, each  # of Wilson's interval


def check(row: dict[str, Any]) -> None:
    for part, expected in row["formula"].items():
        assert row["counted"][part] == pytest.approx(expected, rel=0.2), row


def test_the_committed_bytes_are_those_of_the_formula() -> None:
    figures = json.loads(distributed.RESULTS.read_text())["figures"]
    assert {(row["policy"], row["world"]) for row in figures} == {
        (name, world) for name in distributed.NAMES for world in (2, 3)
    }
    for row in figures:
        steps = distributed.STEPS / (4 if row["policy"] == "auto" else 1)
        now = distributed.formula(row["policy"], row["rows"], row["world"], steps)
        assert tuple(row["formula"].values()) == now
        check(row)


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", distributed.NAMES)
def test_the_bytes_that_are_exchanged_are_counted(name: str, world: int) -> None:
    check(distributed.measured(name, world))  # the first step exchanges more


def test_aim_abstains_on_tables_without_a_shift_in_99_of_100_draws() -> None:
    assert calibration.alike(200, 100, "numbers", trials=5)["drawn"] == 0
    cells = json.loads(calibration.RESULTS.read_text())["tables"]["cells"]
    assert len(cells) == len(calibration.NULLS)
    trials = sum(cell["trials"] for cell in cells)
    alarms = sum(cell["trials"] * cell["alarms"] for cell in cells)
    assert trials >= 1000
    assert alarms <= 0.01 * trials
    assert wilson_interval(round(alarms), trials)[1] <= 0.02
    assert all(cell["drawn"] <= cell["alarms"] for cell in cells)
