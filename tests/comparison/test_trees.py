"""The closing line of a comparison of tables: boosted trees, the network, and which to use."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import nn

from astkit import Comparison, Metric, Table, compare
from astkit.comparison.statistics import estimate
from tests import build
from tests.comparison.small_tasks import run

REACHED = re.compile(r"reach \w+ ([\d.]+%?) \(.* s\) and the network \w+ ([\d.]+%?) \(.* s\): ")


def compared(train: pd.DataFrame, test: pd.DataFrame, **options: Any) -> Comparison:
    options = {"policies": "infobatch", "seeds": 3, "epochs": 8, "lr": 0.01, **options}
    return compare(train, label="y", test=test, check_baseline=False, device="cpu", **options)


def frame(rows: int, seed: int, kind: str, shift: float = 0.0) -> pd.DataFrame:
    """A straight line, steps of which a network knows little, or noise; "words": as classes."""
    made = build.table(rows, seed, shift=shift)
    steps = (np.floor(made["size"] * 6) % 2) * 4.0 + 0.1 * made["noise"]
    y = {"line": made["y"] * 5, "steps": steps, "words": np.where(steps > 2, "up", "down")}
    noise = np.random.default_rng(seed).normal(size=rows)
    return made.assign(y=y.get(kind, noise), noise=0.0)


@pytest.mark.parametrize(
    ("kind", "shift", "said"),
    [
        ("steps", 0.0, "boosted trees are what to use, RMSE "),
        ("words", 0.0, "boosted trees are what to use, accuracy "),
        ("line", 2.5, "the network is what to use, RMSE "),
        ("nothing", 0.0, "cannot tell which to use, RMSE of boosted trees "),
    ],
)
def test_what_to_use_is_said_where_the_interval_excludes_0(
    kind: str, shift: float, said: str, capsys: Any
) -> None:
    train, test = frame(600, 0, kind), frame(300, 1, kind, shift)
    report = compared(train, test)
    line = report.notes[-1]
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert line.startswith("no forecast: trained on all rows; on the 300 test rows boosted trees ")
    assert said in line

    held = report.train  # without the validation rows
    x, later = held.matrix(scaled=False), Table(test, like=held)
    if kind == "words":
        y = np.array(held.classes)[held.values]
        trees = HistGradientBoostingClassifier(early_stopping=False, random_state=0).fit(x, y)
        right = trees.predict(later.matrix(scaled=False)) == test["y"]
        expected, shown = right.mean(), "{:.1%}"
    else:
        kinds = HistGradientBoostingRegressor(early_stopping=False, random_state=0)
        error = kinds.fit(x, held.values).predict(later.matrix(scaled=False)) - test["y"]
        expected, shown = np.sqrt((error**2).mean()), "{:.4g}"
    dense = [each for each in report.entries if each["policy"] == "dense"]
    values = shown.format(expected), shown.format(np.mean([each["value"] for each in dense]))
    reached = REACHED.search(line)
    assert reached is not None
    assert reached.groups() == values

    if kind == "words":  # a mean over rows: its interval is known from the rows
        rows = np.stack([right - report.test_rows(each).numpy() for each in dense])
        each = estimate([expected - run["value"] for run in dense], rows)
        low, high = (100 * end for end in each.interval()[1:3])
        assert f"[{low:.1f}, {high:.1f}]" in line


def test_trees_and_network_are_those_of_the_forecast(capsys: Any) -> None:
    old = build.table(300, law=-5.0)
    new, test = build.table(200, 1, law=5.0), build.table(200, 2, law=5.0)
    report = compared(old, test, target=new, policies="aim", epochs=5)
    assert report.forecast is not None
    assert report.forecast.decision.name == "target"
    line = report.notes[-1]
    assert line.startswith("forecast: train on the target's rows alone: RMSE ")
    reached = REACHED.search(line)
    assert reached is not None
    alone = [each["value"] for each in report.entries if each["policy"] == "target alone"]
    assert reached[2] == f"{np.mean(alone):.4g}"
    assert float(reached[1]) < 2  # rows of the other law would bring about 10
    assert line in capsys.readouterr().out


def test_groups_and_days_are_units_and_one_seed_tells_nothing() -> None:
    train, test = frame(600, 0, "steps"), frame(300, 1, "steps")
    few = [np.arange(len(each)) % 12 for each in (train, test)]
    grouped = compared(
        train.assign(who=few[0]), test.assign(who=few[1] + 100), groups="who", drop=["noise"]
    )
    assert "cannot tell which to use" in grouped.notes[-1]
    assert "worth about 12 independent ones, of 30" in grouped.notes[-1]
    days = pd.date_range("2024-01-01", periods=900)
    waves = [np.sin(np.arange(n) / 20) * 9 + each["y"] for n, each in ((600, train), (300, test))]
    first = train.assign(day=days[:600], y=waves[0])
    then = test.assign(day=days[600:], y=waves[1], size=0.0)
    sorted_, shuffled = (
        compared(first, rows, date="day", seeds=2, epochs=2).notes[-1].partition("cannot tell")[2]
        for rows in (then, then.sample(frac=1, random_state=0))
    )
    assert "independent ones, of 30" in sorted_
    assert sorted_ == shuffled
    one = compared(train, test, seeds=1).notes[-1]
    assert "cannot tell which to use" in one
    assert one.endswith("; one seed has no interval")


def test_a_line_is_of_tables_and_never_an_error() -> None:
    assert not any("boosted trees" in note for note in run(policies=["infobatch"], seeds=1).notes)

    def own(outputs: Any, y: Any) -> Any:
        return (outputs[0] - y).abs()

    class Pair(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = nn.Linear(width, 1)

        def forward(self, x: Any) -> Any:
            return (self.layer(x).squeeze(1), x)

    table = Table(build.table(80), "y")
    parts = map(table.take, torch.arange(80).split([40, 20, 20]))
    report = compare(
        lambda: Pair(table.width),
        *parts,
        criterion=own,
        metrics=Metric("first", own, higher_is_better=False),
        policies="infobatch",
        seeds=1,
        epochs=1,
        check_baseline=False,
    )
    assert report.notes[-1].startswith("boosted trees cannot be judged by first: ")
