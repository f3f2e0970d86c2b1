"""Claims beside results: what the committed files say, and "not run" where there is none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import mean, median

import pytest

from astkit.profiling import Timings
from astkit.runs.switches import COMPILED, SWITCHES, Bench, Measured
from tests.benchmarks import figures
from tests.benchmarks.figures import NOT_RUN, ROOT

STAMP = {"devices": [], "threads": 1}


def row(table, claim):
    (index,) = [i for i, name in enumerate(table["claim"]) if name == claim]
    return table.iloc[index]


@pytest.fixture(scope="module")
def table():
    return figures.table()


@pytest.fixture
def lay(tmp_path):
    """Lay a report down as one of the committed files."""

    def write(run, report):
        path = tmp_path / run
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"stamp": STAMP, **report}))
        return tmp_path

    return write


def test_the_table_has_a_line_for_each_figure_in_the_order_of_the_features(table):
    assert list(table.index) == sorted(table.index)
    assert list(table.columns) == ["claim", "origin", "measured", "n", "run"]
    assert len(table) == len(figures.FIGURES)
    assert table["origin"].map(bool).all()
    assert table[["claim", "origin"]].map(len).max().max() <= 42


def test_a_measured_figure_names_its_n_and_a_file_that_exists(table):
    measured = table[table["measured"] != NOT_RUN]
    assert (measured["n"].astype(int) > 0).all()
    assert all((ROOT / run).is_file() for run in measured["run"])
    absent = table[table["measured"] == NOT_RUN]
    assert set(absent["n"]) == set(absent["run"]) == {""}


def test_without_any_results_everything_is_not_run(tmp_path):
    assert set(figures.table(tmp_path)["measured"]) == {NOT_RUN}


@pytest.mark.parametrize("run", [figures.CIFAR10, figures.DIGITS])
def test_without_the_arms_nothing_is_made_up(lay, run):
    root = lay(run, {"results": [], "settings": {}})
    assert set(figures.table(root)["measured"]) == {NOT_RUN}


def test_without_the_ratios_nothing_is_made_up(lay):
    lay(figures.SPEED, {"speed": []})
    assert set(figures.table(lay(figures.RATIOS, {"figures": []}))["measured"]) == {NOT_RUN}


def test_the_committed_digits(table):
    report = json.loads((ROOT / figures.DIGITS).read_text())
    results = report["results"]
    by = {(run["arm"], run["seed"]): run for run in results}
    seeds = sorted({run["seed"] for run in results})
    gap = mean(
        by["batched gate", seed]["test_accuracy"]
        - by["sample by sample, per sample", seed]["test_accuracy"]
        for seed in seeds
    )
    shown = row(table, "batched minus sample by sample, accuracy")
    assert shown["measured"].startswith(f"{gap:+.2%} [")
    assert shown["n"] == str(len(seeds))
    seconds = mean(by["sample by sample, per sample", seed]["seconds"] for seed in seeds)
    epoch = row(table, "sample by sample, an epoch, CNN")["measured"]
    epochs = report["settings"]["epochs"]
    assert epoch.startswith(f"{seconds / epochs:.3g} s, digits_cnn, digits, ")


def test_the_committed_run_with_the_origins_settings(table):
    report = json.loads((ROOT / figures.CIFAR10).read_text())
    (gate,) = [run for run in report["results"] if run["arm"] == "batched gate"]
    rates = [step["rate"] for step in gate["steps"]]
    span = f"{min(rates):.1%} to {max(rates):.1%}"
    assert row(table, "activation rate, target 10 %")["measured"].startswith(span)
    assert row(table, "validation accuracy")["measured"] == f"{gate['val_accuracy']:.1%}"
    assert row(table, "an epoch")["measured"].startswith(
        f"{gate['seconds'] / 40:.3g} s, simple_cnn"
    )
    (batches,) = [each for each in report["batches"] if each["arm"] == "batched gate"]
    speed = row(table, "speed over dense")
    assert speed["measured"].startswith(f"{batches['speedup']:.2f} x [")
    assert speed["n"] == str(batches["rounds"])
    assert "joules not measured" in row(table, "energy saved")["measured"]


def test_the_committed_ratios(table):
    found = json.loads((ROOT / figures.RATIOS).read_text())["figures"]
    (rows,) = [each for each in found if "(per_sample) / batched" in each["name"]]
    shown = row(table, "batched over sample by sample, CNN")
    assert shown["measured"].startswith(f"{rows['median']:.3g} x [{rows['low']:.3g}, ")
    assert "digits_cnn" in shown["measured"]
    assert shown["n"] == str(rows["n"])
    (loaded,) = [each for each in found if each["name"].startswith("DataLoader over")]
    resident = f"resident {loaded['median']:.3g} x [{loaded['low']:.3g}, {loaded['high']:.3g}]"
    workers = loaded["seconds"]["DataLoader, 0 workers"] / loaded["seconds"][loaded["best"]]
    loading = row(table, "loader settings, loading")["measured"]
    assert resident in loading
    assert f"workers {workers:.2f} x" in loading
    speed = json.loads((ROOT / figures.SPEED).read_text())["speed"][0]["speed"]
    assert row(table, "all switches together")["measured"].startswith(f"{speed['median']:.3g} x")


def switched(**changes):
    """What notebook 03 writes, from a comparison that was never timed."""
    names = ["plain", "bf16", "channels_last", "metrics every 10", "accumulation, 2 x 64"]
    speeds = dict(zip(names, (1.0, 2.0, 0.5, 1.25, 1.0), strict=True))
    seconds = {name: tuple(n / speeds[name] for n in (1.0, 2.0, 3.0)) for name in names}
    memory = {"plain": 100, "bf16": 60}
    reports = {
        name: {
            "time": {},
            "memory": memory.get(name),
            "batch_size": 64 if name.startswith("acc") else 128,
            "effective_batch_size": 128,
        }
        for name in names
    }
    taken = [switch for switch in SWITCHES if switch.name in names]
    done = Measured(Bench(), taken, Timings(seconds, "plain"), reports)
    return {"dense": {**done.to_dict(), **changes}, "gated": {}}


def test_what_notebook_03_writes_is_found(lay):
    table = figures.table(lay(figures.SWITCHES, switched()))
    where = "simple_cnn, CPU"
    assert row(table, "mixed precision, speed")["measured"] == f"2 x [2, 2], {where}"
    assert row(table, "mixed precision, memory saved")["measured"] == f"40%, {where}"
    assert row(table, "channels_last")["measured"] == f"0.5 x [0.5, 0.5], {where}"
    assert row(table, "metrics only when needed")["measured"] == f"1.25 x [1.25, 1.25], {where}"
    effective = row(table, "accumulation, effective batch")
    assert effective["measured"] == "2 x (64 loaded, 128 a step)"
    assert row(table, "torch.compile")["measured"] == NOT_RUN  # its arm was not asked for
    assert row(table, "mixed precision, speed")["n"] == "3"


def test_the_switches_that_are_asked_for_have_these_names():
    names = {switch.name for switch in (*SWITCHES, COMPILED)}
    asked = [each.read.args[0] for each in figures.FIGURES if each.run == figures.SWITCHES]
    assert set(asked) <= names


def test_memory_that_was_not_told_is_not_run(lay):
    report = switched()
    report["dense"]["reports"]["bf16"]["memory"] = None
    table = figures.table(lay(figures.SWITCHES, report))
    assert row(table, "mixed precision, memory saved")["measured"] == NOT_RUN


def test_a_finder_is_added_by_naming_a_file_and_a_function(lay, monkeypatch):
    figure = next(each for each in figures.FIGURES if each.claim == "flash attention")
    added = replace(
        figure,
        run="notebooks/results/x.json",
        read=lambda report: figures.Measured(f"{median(report['ratios']):.1f} x", 3),
    )
    monkeypatch.setattr(figures, "FIGURES", (added,))
    (only,) = figures.table(lay(added.run, {"ratios": [1, 2, 3]})).to_dict("records")
    assert (only["measured"], only["n"], only["run"]) == ("2.0 x", "3", added.run)


def test_the_readme_links_each_run():
    text = (ROOT / "README.md").read_text()
    block = re.search("<!-- claims -->(.*?)<!-- end -->", text, re.DOTALL)
    assert block is not None
    links = re.findall(r"\]\((\S+?\.json)\)", block[1])
    assert links
    assert all((ROOT / link).is_file() for link in links)
