"""Tables against figures worked out by hand, and what becomes of runs that failed."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest

from astkit.runs import tables
from astkit.runs.intervals import mean_interval, split_error
from astkit.runs.record import Record

SEEDS = range(4)


def accuracy(rate: float, arm: str, seed: int) -> float:
    return 0.9 - rate / 10 + (0.02 if arm == "gate" else 0.0) + ((seed * 7 + len(arm)) % 5) / 100


def make(root: Path, rate: float, seed: int, name: str = "01_gate") -> Record:
    parameters = {"rate": rate, "seed": seed, "epochs": 2}
    run = Record.create(root, name, parameters, seed)
    rows = [
        {"arm": arm, "seed": seed, "test_accuracy": accuracy(rate, arm, seed), "flops": 5.0}
        for arm in ("dense", "gate")
    ]
    run.finish(rows)
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
    found = tables.collect(root)
    assert found.varied == ["rate"]
    table = tables.table(found)
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


def test_groups_metric_and_control_can_be_chosen(root: Path) -> None:
    table = tables.table(tables.collect(root), "flops", ["arm"], "gate")
    assert table["n"].tolist() == [4, 4]  # seeds, each with two rates
    assert table["flops"].tolist() == [5.0, 5.0]
    with pytest.raises(ValueError, match="metric is 'speed': choose one of test_accuracy, flops"):
        tables.table(tables.collect(root), "speed")
    with pytest.raises(ValueError, match="by names colour: choose from"):
        tables.table(tables.collect(root), by=["colour"])
    with pytest.raises(ValueError, match="control is 'random': choose a value of arm: dense, gate"):
        tables.table(tables.collect(root), control="random")


def test_one_run_has_no_interval_but_the_error_of_its_split(tmp_path: Path) -> None:
    run = make(tmp_path, 0.1, 0)
    table = tables.table(tables.collect(tmp_path))
    assert table["n"].tolist() == [1, 1]
    assert table["low"].isna().all()
    run.finish([{**row, "test_rows": 50} for row in run.result["rows"]])
    table = tables.table(tables.collect(tmp_path))
    accuracies = table["test_accuracy"]
    assert table[tables.SPLIT].tolist() == [split_error(each, 50) for each in accuracies]


def test_several_rows_of_a_seed_count_once(root: Path) -> None:
    row = tables.table(tables.collect(root), by=["arm"]).loc["gate"]
    gate, dense = (
        [mean(accuracy(rate, arm, seed) for rate in (0.1, 0.5)) for seed in SEEDS]
        for arm in ("gate", "dense")
    )
    gaps = [value - other for value, other in zip(gate, dense, strict=True)]
    assert (row["minus dense"], row["from"], row["to"]) == pytest.approx(mean_interval(gaps)[:3])
    assert (row["test_accuracy"], row["low"], row["high"]) == pytest.approx(mean_interval(gate)[:3])


def test_rows_without_a_seed_count_each(tmp_path: Path) -> None:
    run = Record.create(tmp_path, "x", {})
    run.finish([{"loss": 1.0}, {"loss": 2.0}, {"loss": 3.0, "seed": 1}, {"loss": 5.0, "seed": 1}])
    table = tables.table(tables.collect(tmp_path), "loss")
    assert table.loc["all", ["n", "loss"]].tolist() == [3, pytest.approx(7 / 3)]


def test_an_arm_without_a_finite_value_is_a_row_of_nothing(tmp_path: Path) -> None:
    values = {"dense": [0.8, 0.9], "gate": [math.nan, math.nan]}
    rows = [
        {"arm": arm, "seed": seed, "test_accuracy": value, "test_rows": 100}
        for arm, found in values.items()
        for seed, value in enumerate(found)
    ]
    table = tables.table(tables.Found(pd.DataFrame(), pd.DataFrame(rows), []))
    assert table["n"].tolist() == [2, 0]
    assert table.loc["dense", tables.SPLIT] == split_error(0.85, 100)
    assert table.loc["gate", ["test_accuracy", tables.SPLIT, "minus dense"]].isna().all()


def test_failed_stale_and_unfinished_runs_are_shown_and_do_not_count(root: Path) -> None:
    before = tables.table(tables.collect(root))
    failed = Record.create(root, "01_gate", {"rate": 0.9}, 0)
    failed.write("error.json", {"type": "ValueError", "message": "no data\nsecond line"})
    Record.create(root, "01_gate", {"rate": 0.8}, 0)
    stale = make(root, 0.7, 0)
    stale.mark_stale("wrong labels")
    found = tables.collect(root)
    runs = found.runs.set_index("rate")
    assert runs.loc[0.9, ["status", "why"]].tolist() == ["failed", "ValueError: no data"]
    assert runs.loc[0.8, "status"] == "incomplete"
    assert runs.loc[0.7, ["status", "why"]].tolist() == ["stale", "wrong labels"]
    columns = [*before]
    after = tables.table(found)[columns]
    pd.testing.assert_frame_equal(after, before)


def test_steered_runs_have_no_place_in_a_mean(tmp_path: Path) -> None:
    for seed in SEEDS:
        run = Record.create(tmp_path, "live", {}, seed)
        run.finish([{"seed": seed, "loss": float(seed), "steered": seed == 3}])
    assert tables.table(tables.collect(tmp_path), "loss").loc["all", "loss"] == 1.0


def test_runs_of_one_name(root: Path) -> None:
    make(root, 0.1, 0, name="other")
    assert set(tables.collect(root, "other").runs["name"]) == {"other"}
    with pytest.raises(FileNotFoundError, match="contains no runs called third"):
        tables.collect(root, "third")
    with pytest.raises(FileNotFoundError, match="nowhere contains no runs: create some"):
        tables.collect(root / "nowhere")


def test_runs_of_several_notebooks_make_one_table(root: Path) -> None:
    for seed in (0, 1):
        run = Record.create(root, "02_other", {"width": 3, "seed": seed}, seed)
        run.finish([{"arm": a, "seed": seed, "test_accuracy": 0.5} for a in ("dense", "gate")])
    table = tables.table(tables.collect(root))
    assert table.loc[("02_other", "–", "–", 3, "gate"), "minus dense"] == 0
    named = {("01_gate", 0.1, 2, "–", "dense"), ("01_gate", 0.5, 2, "–", "gate")}
    assert named <= set(table.index)


def test_notebooks_with_the_same_parameters_are_not_averaged(tmp_path: Path) -> None:
    make(tmp_path, 0.1, 0)
    make(tmp_path, 0.1, 1, name="other")
    table = tables.table(tables.collect(tmp_path))
    assert set(table["n"]) == {1}
    assert {name for name, _ in table.index} == {"01_gate", "other"}


def test_damaged_folders_are_listed_and_cost_no_other(root: Path) -> None:
    sound = tables.table(tables.collect(root))
    rows = ("[1]", "{", "[" * 100_000, '{"rows": 3}', '{"rows": [3]}', '{"curves": {"a": 1}}')
    files = {
        **{("result.json", content): None for content in rows},
        **{("config.json", content): None for content in (*rows[:3], "{}", '{"name": 3}')},
        ("config.json", '{"name": "a", "seed": "b", "parameters": {}}'): None,
        ("error.json", "[3]"): None,
        ("stale.json", "3"): None,
    }
    for number, (name, content) in enumerate(files):
        damaged = make(root, 0.1, 100 + number)
        (damaged.folder / name).write_text(content)
    found = tables.collect(root)
    listed = found.runs[found.runs["status"] == "damaged"]
    assert len(listed) == len(files)
    assert listed["why"].str.contains(r"\.json is damaged \(").all()
    assert tables.table(found).equals(sound)


def test_rows_of_odd_values_are_reported_or_refused(tmp_path: Path) -> None:
    run = Record.create(tmp_path, "x", {})
    for rows in ([{"arm": "a"}], [{}], [{"loss": [1]}], [{"loss": "high"}]):
        run.write("result.json", {"rows": rows})
        with pytest.raises(ValueError, match=r"no complete run has (rows|a column of numbers)"):
            tables.table(tables.collect(tmp_path))
    run.write("result.json", {"rows": [{"arm": {"a": 1}, "loss": 1.0}, {"loss": 2.0}]})
    assert tables.table(tables.collect(tmp_path))["loss"].tolist() == [1.5]
