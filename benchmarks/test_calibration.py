"""The calibration of verdicts and the bytes of several processes: what is committed is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import calibration, distributed
from benchmarks.calibration import NOTHING


def test_a_few_trials_are_wrong_as_rarely_as_promised() -> None:
    nothing = calibration.cell(NOTHING, "normal", n=5, rows=300, trials=200)
    assert nothing["wrong"] <= 0.09  # 5 %, and 2.6 standard errors of 200 trials
    assert nothing["seeds_only"] > nothing["wrong"]
    clear = calibration.cell((0.05, -0.05), "normal", n=10, rows=2000, trials=20)
    assert clear["wrong"] == 0
    assert clear["decided"] > 0.95


def test_a_few_trials_on_rows_that_depend_on_each_other() -> None:
    groups = calibration.grouped(40, "even", 0.5, trials=50)
    series = calibration.following("accuracy", 500, 0.9, trials=50)
    for found in (groups, series):
        assert found["covered"] >= 0.88  # 95 %, and two standard errors of 50 trials
    assert series["said"] == pytest.approx(series["worth"], rel=0.5)
    assert calibration.recorded(600, 300, 0.0, 1.0, trials=5)["alarms"] == 0


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


def test_a_few_tables_without_a_shift_change_nothing() -> None:
    assert calibration.alike(200, 100, "numbers", trials=5)["drawn"] == 0
