"""Tables against figures worked out by hand, and what becomes of runs that failed."""

import math
import shutil
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest

from astkit.comparison.statistics import mean_interval
from astkit.runs import tables
from astkit.runs.record import Record

SEEDS = range(4)


def accuracy(rate: float, arm: str, seed: int) -> float:
    return 0.9 - rate / 10 + (0.02 if arm == "gate" else 0.0) + ((seed * 7 + len(arm)) % 5) / 100


def make(root: Path, rate: float, seed: int, name: str = "01_gate") -> Record:
    run = Record.create(root, name, {"rate": rate, "seed": seed, "epochs": 2}, seed)
    arms = ("dense", "gate")
    values = [{"arm": a, "seed": seed, "test_accuracy": accuracy(rate, a, seed)} for a in arms]
    run.finish([{**value, "flops": 5.0} for value in values])
    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two rates and four seeds; each test has a copy of them in ``root``."""
    folder = tmp_path_factory.mktemp("made")
    for rate in (0.1, 0.5):
        for seed in SEEDS:
            make(folder, rate, seed)
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


def test_means_intervals_and_differences_are_those_by_hand(root: Path) -> None:
    runs = tables.collect(root)
    assert runs.varied == ["rate"]
    table = tables.summary_table(runs)
    assert table.index.tolist() == [(r, arm) for r in (0.1, 0.5) for arm in ("dense", "gate")]
    quantile = 3.182446305284263  # Student's, 3 degrees of freedom, 97.5 %
    for rate in (0.1, 0.5):
        values = [accuracy(rate, "gate", seed) for seed in SEEDS]
        gaps = [value - accuracy(rate, "dense", seed) for seed, value in enumerate(values)]
        row = table.loc[(rate, "gate")]
        assert row["n"] == 4
        for middle, low, high, numbers in (
            ("test_accuracy", "low", "high", values),
            ("minus dense", "from", "to", gaps),
        ):
            half = quantile * stdev(numbers) / 2
            assert row[middle] == pytest.approx(mean(numbers))
            assert row[low] == pytest.approx(mean(numbers) - half)
            assert row[high] == pytest.approx(mean(numbers) + half)
    assert math.isnan(table.loc[(0.1, "dense"), "minus dense"])


def test_an_accuracy_of_two_seeds_has_no_interval_and_others_stay_below_1(tmp_path: Path) -> None:
    for seed, value in enumerate((1.0, 0.9, 0.99)):
        values = [{"arm": "dense", "test_accuracy": value, "loss": 1 - value}]
        Record.create(tmp_path, "a", {"seed": seed}, seed).finish(values)
        table = tables.summary_table(tables.collect(tmp_path))
        assert math.isnan(table["low"].item()) == (seed < 2)
    assert table["high"].item() == 1
    assert tables.summary_table(tables.collect(tmp_path), "loss")["low"].item() < 0


def test_several_rows_of_a_seed_count_once(root: Path, tmp_path: Path) -> None:
    runs = tables.collect(root)
    row = tables.summary_table(runs._replace(varied=[])).loc["gate"]
    gate, dense = (
        [mean(accuracy(rate, arm, seed) for rate in (0.1, 0.5)) for seed in SEEDS]
        for arm in ("gate", "dense")
    )
    gaps = [value - other for value, other in zip(gate, dense, strict=True)]
    assert (row["minus dense"], row["from"], row["to"]) == pytest.approx(mean_interval(gaps)[:3])
    assert (row["test_accuracy"], row["low"], row["high"]) == pytest.approx(mean_interval(gate)[:3])
    run = Record.create(tmp_path / "other", "x", {})  # rows without a seed count each
    run.finish([{"loss": 1.0}, {"loss": 2.0}, {"loss": 3.0, "seed": 1}, {"loss": 5.0, "seed": 1}])
    table = tables.summary_table(tables.collect(tmp_path / "other"), "loss")
    assert table.loc["all", ["n", "loss"]].tolist() == [3, pytest.approx(7 / 3)]


def test_runs_that_are_not_complete_are_shown_and_do_not_count(root: Path) -> None:
    before = tables.summary_table(tables.collect(root))
    failed = Record.create(root, "01_gate", {"rate": 0.9}, 0)
    failed.write("error.json", {"type": "ValueError", "message": "no data\nsecond line"})
    Record.create(root, "01_gate", {"rate": 0.8}, 0)
    files = [("result.json", "[1]"), ("config.json", "{"), ("config.json", '{"name": "a"}')]
    for number, (name, content) in enumerate(files):
        (make(root, 0.1, 100 + number).folder / name).write_text(content)
    found = tables.collect(root)
    runs = found.folders.set_index("rate")
    assert runs.loc[0.9, ["status", "why"]].tolist() == [
        "failed",
        "ValueError: no data second line",
    ]
    assert runs.loc[0.8, "status"] == "incomplete"
    damaged = found.folders[found.folders["status"] == "damaged"]
    assert len(damaged) == len(files)
    pd.testing.assert_frame_equal(tables.summary_table(found)[[*before]], before)


def test_runs_of_several_notebooks_make_one_table(root: Path) -> None:
    for seed in (0, 1):
        run = Record.create(root, "02_other", {"width": 3, "seed": seed}, seed)
        run.finish([{"arm": a, "seed": seed, "test_accuracy": 0.5} for a in ("dense", "gate")])
    table = tables.summary_table(tables.collect(root))
    assert table.loc[("02_other", "–", "–", 3, "gate"), "minus dense"] == 0
    named = {("01_gate", 0.1, 2, "–", "dense"), ("01_gate", 0.5, 2, "–", "gate")}
    assert named <= set(table.index)
    with pytest.raises(FileNotFoundError, match="nowhere contains no runs: create some"):
        tables.collect(root / "nowhere")


def test_methods_of_notebooks_that_name_them_otherwise_are_not_mixed(root: Path) -> None:
    before = tables.summary_table(tables.collect(root))
    for seed in (0, 1):
        run = Record.create(root, "06_policies", {"seed": seed}, seed)
        run.finish([{"policy": p, "test_accuracy": v} for p, v in (("dense", 0.5), ("aim", 0.7))])
    found = tables.summary_table(tables.collect(root))
    added = found.loc[("06_policies", "–", "–", "–")]
    assert added.index.tolist() == ["dense", "aim"]
    assert added["n"].tolist() == [2, 2]  # rows without a seed have that of their run
    assert added.loc["aim", "minus dense"] == pytest.approx(0.2)
    pd.testing.assert_frame_equal(
        found.loc["01_gate"].reset_index(drop=True)[[*before]], before.reset_index(drop=True)
    )


@pytest.mark.parametrize("text", ["metric", "controller", "unit"])
def test_texts_that_follow_from_the_method_make_no_groups(tmp_path: Path, text: str) -> None:
    arms = {"dense": {}, "gate": {text: "a"}, "aim": {text: "b"}}
    rows = [
        {"policy": arm, "seed": seed, "value": seed + len(arm), **more}
        for arm, more in arms.items()
        for seed in SEEDS
    ]
    Record.create(tmp_path, "x", {}).finish(rows)
    found = tables.summary_table(tables.collect(tmp_path))
    assert found.index.tolist() == ["dense", "gate", "aim"]
    assert found["n"].tolist() == [4] * 3
    assert found["minus dense"].tolist()[1:] == [-1, -2]
    Record.create(tmp_path, "y", {}).finish([{**row, text: "c"} for row in rows])
    other = tables.summary_table(tables.collect(tmp_path))
    assert len(other) == 6  # two tasks, each with a metric of its own


def test_names_that_parameters_share_with_other_columns_are_kept_apart(tmp_path: Path) -> None:
    for rate in (0.1, 0.5):
        for seed in SEEDS:
            parameters = {"rate": rate, "seed": seed, "status": f"of {rate}"}
            run = Record.create(tmp_path, "x", parameters, seed)
            run.finish([{"loss": 1.0, "rate": rate + seed / 100}])
    runs = tables.collect(tmp_path)
    assert runs.varied == ["rate", "status (parameter)"]
    assert set(runs.folders["status"]) == {"complete"}
    assert sorted(tables.summary_table(runs).index) == [(0.1, "of 0.1"), (0.5, "of 0.5")]
    measured = tables.summary_table(runs, "rate (measured)").sort_index()
    assert measured["n"].tolist() == [4, 4]
    assert measured["rate (measured)"].tolist() == pytest.approx([0.115, 0.515])
