"""What training on old rows, target rows, or both gains is foretold as fresh rows show it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from astkit.aim.decisions import (
    BOTH,
    OLD,
    TARGET,
    Decision,
    decisions_for,
    forward_folds,
    random_folds,
    trees,
)
from astkit.aim.forecast import arrays, forecast
from astkit.datasets.table import Table
from tests.aim.tables import made


@pytest.mark.parametrize(
    ("decision", "name"),
    [
        (OLD, "old"),
        (BOTH, "both"),
        (Decision(times=4), "both x4"),
        (TARGET, "target"),
        (Decision(times=4, weighted=True), "weighted both x4"),
        (Decision(times=1, without=("day",)), "both without day"),
    ],
)
def test_decisions_have_names(decision: Decision, name: str) -> None:
    assert decision.name == name
    assert len({each.name for each in decisions_for(["day"])}) == 11


def test_folds_keep_units_together_and_go_forward() -> None:
    units = np.repeat(np.arange(20), 5)
    for fit, judge in random_folds(units, seed=0):
        assert not set(units[fit]) & set(units[judge])
        assert len(fit) + len(judge) == len(units)
    folds = forward_folds(units)
    assert len(folds) == 3
    for fit, judge in folds:
        assert units[fit].max() + 1 < units[judge].min()  # a unit lies between
    assert np.concatenate([judge for _, judge in folds]).tolist() == list(range(25, 100))


def test_an_opposite_law_is_foretold_as_fresh_rows_measure_it() -> None:
    old, target = made(1500, 0, law=-1.0), made(400, 1)
    found = forecast(old, target, "y", in_order=False)
    assert not found.in_order
    row = found.table.set_index("decision").loc["target"]
    tables = [Table(old, "y")]
    tables += [Table(each, like=tables[0]) for each in (target, made(4000, 2))]
    data = [arrays(each) for each in tables]
    errors = []
    for x, y in data[:2]:
        predicted = trees(x, y, np.ones(len(y)), data[2][0])
        errors.append(np.sqrt(((predicted - data[2][1]) ** 2).mean()))
    measured = 100 * (1 - errors[1] / errors[0])
    assert measured > 50
    assert row["low"] - 3 < measured < row["high"] + 3
    assert found.decision.times
    assert "% lower [" in found.sentence


def test_alike_rows_promise_nothing() -> None:
    found = forecast(made(1500, 0), made(300, 1), "y", in_order=False)
    assert found.decision in (OLD, BOTH)
    table = found.table.set_index("decision")
    assert (table.loc[["both", "both x4", "weighted old"], "low"] <= 1).all()
    assert table.loc["target", "high"] < 5  # few rows say less than many
    assert found.telling == ()


def test_columns_that_tell_every_row_are_left_out_of_weights_and_decided_about() -> None:
    old, target = made(1500, 0), made(300, 1, law=0.5)
    old["day"] = np.arange(1500) // 7
    target["day"] = 220 + np.arange(300) // 7
    found = forecast(old, target, "y", in_order=False)
    assert found.telling == ("day",)
    assert "both without day" in found.table["decision"].tolist()


def test_dependent_rows_are_judged_forward_and_a_note_says_so() -> None:
    level = np.repeat(np.random.default_rng(0).normal(size=150), 4)
    target = made(600, 1)
    target["y"] = target["y"] + 2 * level
    found = forecast(made(1500, 0), target, "y")
    assert found.in_order
    assert "since neighbouring rows depend on each other" in found.sentence


@pytest.mark.parametrize("rows", [5, 20])
def test_few_rows_are_a_sentence_and_both(rows: int) -> None:
    found = forecast(made(500, 0), made(rows, 1), "y", in_order=False)
    assert found.decision == BOTH
    assert f"worth about {rows}" in found.sentence


def test_classes_are_judged_in_points_of_accuracy() -> None:
    old, target = made(1500, 0, law=-1.0), made(400, 1)
    for frame in (old, target):
        frame["y"] = np.where(frame["y"] > 0, "high", "low")
    found = forecast(old, target, "y", in_order=False)
    assert set(found.table["unit"]) == {"points"}
    assert "points higher" in found.sentence


def test_a_target_without_labels_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"the target has no 'y'.*astkit\.explain"):
        forecast(made(200, 0), made(200, 1).drop(columns="y"), "y")


def test_forecasts_repeat_and_leave_their_inputs_alone() -> None:
    old, target = made(600, 0, law=-1.0), made(200, 1)
    before = old.copy()
    one, other = (forecast(old, target, "y", in_order=False) for _ in range(2))
    pd.testing.assert_frame_equal(one.table, other.table)
    pd.testing.assert_frame_equal(old, before)
