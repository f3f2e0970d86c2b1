"""The closing line of a comparison of tables: boosted trees, the network, and which to use."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from astkit import Comparison, Metric, Table, compare
from astkit.comparison.statistics import estimate
from tests import build
from tests.comparison.small_tasks import run

REACHED = re.compile(r"reach \w+ ([\d.]+) \(.* s\), the network ([\d.]+) \(.* s\): ")


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
        ("steps", 0.0, r"boosted trees are what to use, RMSE of the network [\d.]+ % higher"),
        ("words", 0.0, r"boosted trees are what to use, accuracy of the .* points lower"),
        ("line", 2.5, r"the network is what to use, RMSE of the network [\d.]+ % lower"),
        ("nothing", 0.0, "cannot tell which to use, RMSE of the network "),
    ],
)
def test_what_to_use_is_said_where_the_interval_excludes_0(
    kind: str, shift: float, said: str, capsys: Any
) -> None:
    train, test = frame(600, 0, kind), frame(300, 1, kind, shift)
    report = compared(train, test)
    line = report.notes[-1]
    assert line in capsys.readouterr().out.splitlines()
    assert line.startswith("on the 300 test rows boosted trees, trained on all rows, reach ")
    assert report.next_step.startswith("Next: use boosted trees, by ") == (
        "boosted trees are" in said
    )
    assert re.search(said, line)

    held, settings = report.train, {"early_stopping": False, "random_state": 0}
    x, later = held.matrix(scaled=False), Table(test, like=held).matrix(scaled=False)
    if kind == "words":
        trees = HistGradientBoostingClassifier(**settings).fit(
            x, np.array(held.classes)[held.values]
        )
        right = trees.predict(later) == test["y"]
        expected = right.mean()
    else:
        error = HistGradientBoostingRegressor(**settings).fit(x, held.values).predict(later)
        expected = np.sqrt(((error - test["y"]) ** 2).mean())
    dense = [each for each in report.entries if each["policy"] == "dense"]
    values = [f"{each:.4g}" for each in (expected, np.mean([each["value"] for each in dense]))]
    assert REACHED.search(line).groups() == tuple(values)  # type: ignore[union-attr]
    if kind == "words":  # a mean over rows: its interval is known from the rows
        rows = np.stack([report.test_rows(each).numpy() - right for each in dense])
        of_rows = estimate([run["value"] - expected for run in dense], rows).interval()
        assert f"[{-100 * of_rows.high:.1f}, {-100 * of_rows.low:.1f}]" in line


def test_trees_and_network_are_those_of_the_forecast() -> None:
    old = build.table(300, law=-5.0)
    new, test = build.table(200, 1, law=5.0), build.table(200, 2, law=5.0)
    report = compared(old, test, target=new, policies="aim", epochs=5)
    assert report.forecast.sentence.startswith("forecast: train on the target's rows alone: RMSE ")
    said = "on the 200 test rows boosted trees, trained as forecast, reach RMSE "
    assert report.notes[-1].startswith(said)
    trees, network = REACHED.search(report.notes[-1]).groups()  # type: ignore[union-attr]
    alone = [each["value"] for each in report.entries if each["policy"] == "target alone"]
    assert network == f"{np.mean(alone):.4g}"
    assert float(trees) < 2  # rows of the other law would bring about 10


def test_groups_and_days_are_units_and_one_seed_tells_nothing() -> None:
    train, test = frame(600, 0, "steps"), frame(300, 1, "steps")
    few = [np.arange(len(each)) % 12 for each in (train, test)]
    grouped = compared(train.assign(who=few[0]), test.assign(who=few[1] + 100), groups="who")
    assert "cannot tell which to use" in grouped.notes[-1]
    assert "worth about 12 independent ones" in grouped.notes[-1]
    days = pd.date_range("2024-01-01", periods=900)
    waves = [np.sin(np.arange(n) / 20) * 9 + each["y"] for n, each in ((600, train), (300, test))]
    first = train.assign(day=days[:600], y=waves[0])
    then = test.assign(day=days[600:], y=waves[1], size=0.0)
    in_time, shuffled = (
        compared(first, rows, date="day", seeds=2, epochs=2).notes[-1].partition("cannot tell")[2]
        for rows in (then, then.sample(frac=1, random_state=0))
    )
    assert "independent ones" in in_time
    assert in_time == shuffled
    one = compared(train, test, seeds=1).notes[-1]
    assert one.endswith("; one seed has no interval, so add seeds")


def test_a_line_is_of_tables_their_rmse_or_accuracy() -> None:
    absolute = Metric("error", lambda said, y: (said - y).abs(), higher_is_better=False)
    other = compared(build.table(80), build.table(40, 1), metrics=absolute, seeds=1, epochs=1)
    for report in (run(policies=["infobatch"], seeds=1), other):
        assert not any("boosted trees" in note for note in report.notes)
