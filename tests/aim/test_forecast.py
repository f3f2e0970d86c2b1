"""What training on old rows, target rows, or both gains is foretold as fresh rows show it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from astkit.aim import forecast as forecasts
from astkit.aim.decisions import (
    BOTH,
    OLD,
    TARGET,
    Decision,
    Judge,
    Judgement,
    choose,
    forward_folds,
    random_folds,
)
from astkit.aim.forecast import arrays, forecast
from astkit.aim.proxies import binned, squared, trees
from astkit.datasets.table import Table
from tests.aim.tables import made


@pytest.mark.parametrize(
    ("decision", "name"),
    [
        (OLD, "old"),
        (BOTH, "both"),
        (Decision(times=4), "both x4"),
        (TARGET, "target"),
        (Decision(times=1, weighted=True), "weighted both"),
    ],
)
def test_decisions_have_names(decision: Decision, name: str) -> None:
    assert decision.name == name


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


def test_columns_are_binned_by_quantiles_and_empty_ones_left_out() -> None:
    draw = np.random.default_rng(0)
    x = np.column_stack([draw.normal(size=1000), np.full(1000, np.nan), draw.integers(0, 3, 1000)])
    x[::7, 0] = np.nan
    found, others = binned(x, x[1:6] + np.array([100.0, 0, 0]))
    assert found.shape == (1000, 2)
    known = ~np.isnan(x[:, 0])
    assert (np.isnan(found[:, 0]) == ~known).all()
    assert np.bincount(found[known, 0].astype(int)).min() >= known.sum() / 200
    order = np.argsort(x[known, 0])
    assert (np.diff(found[known, 0][order]) >= 0).all()
    assert (found[:, 1] == x[:, 2]).all()
    assert others[0, 0] == found[known, 0].max()
    assert np.isfinite(trees(x, x[:, 2], np.ones(1000), x)).all()


@pytest.mark.parametrize(
    ("gains", "decision"),
    [
        ([0.1, 0.2, -1.0], BOTH),  # nothing is sure
        ([-0.3, 0.2, -1.0], BOTH),  # nor that both loses
        ([-9.0, -8.0, -9.0], OLD),
        ([5.0, 20.0, 1.0], Decision(times=4)),
        ([19.9, 20.0, 1.0], BOTH),  # the simpler of two that are alike
    ],
)
def test_the_simplest_of_the_best_is_chosen(gains: list[float], decision: Decision) -> None:
    draw = np.random.default_rng(0)
    old = 100 + draw.normal(size=400)
    rows = np.arange(400)
    folds = [(rows[:0], part) for part in np.split(rows, 4)]
    none = (np.zeros((0, 0)), np.zeros(0))
    judge = Judge(none, none, trees, squared, np.ones_like, folds, rows, "points")
    found = [Judgement(OLD, old)]
    for gain, each in zip(gains, (BOTH, Decision(times=4), TARGET), strict=True):
        losses = old - gain + 10 * draw.normal(size=400)
        found.append(Judgement(each, losses, *judge.gain(old, losses)))
    assert choose(found, judge)[0].decision == decision


def test_of_the_time_to_come_a_gain_varies_as_between_folds() -> None:
    rows = np.arange(300)
    folds = [(rows[:0], part) for part in np.split(rows, 3)]
    none = (np.zeros((0, 0)), np.zeros(0))
    settings = (none, none, trees, squared, np.ones_like, folds, rows, "points")
    new = -np.repeat([0.0, 10.0, 20.0], 100)
    gain, error = Judge(*settings, forward=True).gain(np.zeros(300), new)
    assert gain == pytest.approx(10)
    assert error == pytest.approx(10 * (1 + 1 / 3) ** 0.5)
    assert Judge(*settings).gain(np.zeros(300), new)[1] == pytest.approx(10 / 3**0.5)
    turns = np.arange(300) % 2.0  # neighbours are not alike: each row is one of its own
    once = Judge(*settings).gain(np.zeros(300), turns, [0, 1])
    assert Judge(*settings, forward=True).gain(np.zeros(300), turns, [0, 1]) == once
    assert once[1] == pytest.approx(0.5 / 200**0.5, rel=0.01)


@pytest.mark.parametrize("dates", [1, 3])
def test_no_later_rows_are_foretold_from_a_few_dates(dates: int) -> None:
    old, target = made(500, 0), made(200, 1, law=-1.0)
    old["year"], target["year"] = 1990, 1999 + np.arange(200) % dates
    found = forecast(old, target, "y", date="year")
    assert found.decision == BOTH
    assert f"has {dates} different values of 'year', and 4 are needed" in found.sentence
    assert found.table.empty


def test_a_date_orders_the_rows() -> None:
    old, target = made(500, 0), made(300, 1, law=-1.0)
    old["day"], target["day"] = np.arange(500) // 10, 50 + np.arange(300) // 10
    whole = forecast(old, target, "y", date="day")
    assert whole.in_order
    mixed = target.sample(frac=1, random_state=0)
    again = forecast(old, mixed, "y", date="day").table.set_index("decision")
    first = whole.table.set_index("decision")
    assert (first["gain"] - again["gain"]).abs().drop("weighted both").max() < 6
    with pytest.raises(ValueError, match="date is 'month', which is no column of the target"):
        forecast(old, target, "y", date="month")
    with pytest.raises(ValueError, match="date is 'day' and in_order is False: leave"):
        forecast(old, target, "y", date="day", in_order=False)


def test_a_table_says_how_its_rows_are_ordered() -> None:
    old, target = made(200, 0), made(120, 1, law=-1.0)
    old["day"], target["day"] = np.arange(200) // 10, 20 + np.arange(120) // 10
    table, tried = Table(old, "y"), (OLD, BOTH)
    later = Table(target, like=table)
    given = forecast(table, later, date="day", decisions=tried)
    later.date = "day"
    pd.testing.assert_frame_equal(forecast(table, later, decisions=tried).table, given.table)
    assert not forecast(table, later, in_order=False, decisions=tried).in_order
    later.date, later.in_order = None, True
    assert forecast(table, later, decisions=tried).in_order


def test_in_doubt_the_decision_is_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_doubt", lambda *_: True)
    found = forecast(made(500, 0, law=-1.0), made(300, 1), "y", in_order=False)
    assert "cannot tell, it depends on the model" in found.sentence
    chosen = found.table["decision"][found.table["chosen"]].item()
    assert chosen != "both"  # by the trees
    assert found.decision == BOTH


def test_an_opposite_law_is_foretold_as_fresh_rows_measure_it() -> None:
    old, target = made(700, 0, law=-1.0), made(300, 1)
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
    assert found.separating == ()


def test_columns_that_tell_every_row_are_left_out_of_weights() -> None:
    old, target = made(700, 0), made(300, 1, law=0.5)
    old["day"] = np.arange(700) // 7
    target["day"] = 110 + np.arange(300) // 7
    found = forecast(old, target, "y", in_order=False)
    assert found.separating == ("day",)


def test_dependent_rows_are_judged_forward_and_a_note_says_so() -> None:
    level = np.repeat(np.random.default_rng(0).normal(size=150), 4)
    target = made(600, 1)
    target["y"] = target["y"] + 2 * level
    found = forecast(made(700, 0), target, "y")
    assert found.in_order
    assert "since neighbouring rows depend on each other" in found.sentence


@pytest.mark.parametrize("rows", [5, 20])
def test_few_rows_are_a_sentence_and_both(rows: int) -> None:
    found = forecast(made(500, 0), made(rows, 1), "y", in_order=False)
    assert found.decision == BOTH
    assert f"worth about {rows}" in found.sentence
    assert not found.in_order


def test_classes_are_judged_in_points_of_accuracy() -> None:
    old, target = made(700, 0, law=-1.0), made(300, 1)
    for frame in (old, target):
        frame["y"] = np.where(frame["y"] > 0, "high", "low")
    found = forecast(old, target, "y", in_order=False)
    assert set(found.table["unit"]) == {"points"}
    assert "points higher" in found.sentence


def test_a_target_without_labels_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"the target has no 'y'.*astkit\.explain"):
        forecast(made(200, 0), made(200, 1).drop(columns="y"), "y")
