"""Reports over run folders: numbers against slow ones, and what becomes of runs that failed."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev

import nbformat
import pandas as pd
import pytest

from astkit.cli import main
from astkit.runs import report, report_page
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
    curves = [
        {**row, "epoch": epoch, "val_accuracy": 0.5 + epoch / 10, "val_loss": 1 / epoch}
        for row in rows
        for epoch in (1, 2, 3)
    ]
    run.finish(rows, curves)
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for rate in (0.1, 0.5):
        for seed in SEEDS:
            make(tmp_path / "runs", rate, seed)
    return tmp_path / "runs"


def test_means_intervals_and_differences_are_those_by_hand(root: Path) -> None:
    found = report.collect(root)
    assert found.varied == ["rate"]
    table = report.table(found)
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
    table = report.table(report.collect(root), "flops", ["arm"], "gate")
    assert table["n"].tolist() == [8, 8]
    assert table["flops"].tolist() == [5.0, 5.0]
    with pytest.raises(ValueError, match="metric is 'speed': choose one of test_accuracy, flops"):
        report.table(report.collect(root), "speed")
    with pytest.raises(ValueError, match="by names colour: choose from"):
        report.table(report.collect(root), by=["colour"])
    with pytest.raises(ValueError, match="control is 'random': choose a value of arm: dense, gate"):
        report.table(report.collect(root), control="random")


def test_one_run_has_no_interval(tmp_path: Path) -> None:
    make(tmp_path, 0.1, 0)
    table = report.table(report.collect(tmp_path))
    assert table["n"].tolist() == [1, 1]
    assert table["low"].isna().all()


def test_failed_stale_and_unfinished_runs_are_shown_and_do_not_count(root: Path) -> None:
    before = report.table(report.collect(root))
    failed = Record.create(root, "01_gate", {"rate": 0.9}, 0)
    failed.fail(ValueError("no data\nsecond line"))
    Record.create(root, "01_gate", {"rate": 0.8}, 0)
    stale = make(root, 0.7, 0)
    stale.mark_stale("wrong labels")
    found = report.collect(root)
    runs = found.runs.set_index("rate")
    assert runs.loc[0.9, ["status", "why"]].tolist() == ["failed", "ValueError: no data"]
    assert runs.loc[0.8, "status"] == "incomplete"
    assert runs.loc[0.7, ["status", "why"]].tolist() == ["stale", "wrong labels"]
    columns = [*before]
    after = report.table(found)[columns]
    pd.testing.assert_frame_equal(after, before)


def test_steered_runs_have_no_place_in_a_mean(tmp_path: Path) -> None:
    for seed in SEEDS:
        run = Record.create(tmp_path, "live", {}, seed)
        run.finish([{"seed": seed, "loss": float(seed), "steered": seed == 3}])
    assert report.table(report.collect(tmp_path), "loss").loc["all", "loss"] == 1.0


def test_runs_of_one_name(root: Path) -> None:
    make(root, 0.1, 0, name="other")
    assert set(report.collect(root, "other").runs["name"]) == {"other"}
    with pytest.raises(FileNotFoundError, match="holds no runs called third"):
        report.collect(root, "third")
    with pytest.raises(FileNotFoundError, match="is no folder of runs"):
        report.collect(root / "nowhere")


def test_two_runs_are_compared(root: Path) -> None:
    runs = report.records(root, lambda run: run.config["parameters"]["rate"] == 0.1)
    first, second, *_ = sorted(runs, key=lambda run: run.config["seed"])
    changed = report.differing(first, second)
    assert changed.loc["config: seed"].tolist() == [0, 1]
    assert "mean of test_accuracy" in changed.index
    assert "mean of flops" not in changed.index
    assert "config: parameters.rate" not in changed.index


def test_curves_are_labelled_by_their_group(root: Path) -> None:
    curves = report.labelled(report.collect(root))
    assert set(curves["arm"]) == {f"rate {r}, {a}" for r in (0.1, 0.5) for a in ("dense", "gate")}


def test_the_command_prints_counts_and_the_table(root: Path, capsys) -> None:
    failed = Record.create(root, "01_gate", {"rate": 0.9}, 0)
    failed.fail(ValueError("no data"))
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8 complete, 1 failed")
    assert "ValueError: no data" in text
    assert "minus dense" in text
    name = failed.folder.name
    assert main(["report", str(root), "--stale", name, "--why", "never mind"]) == 0
    assert failed.status == "stale"
    assert main(["report", str(root), "--compare", name, report.records(root)[0].folder.name]) == 0
    assert "config: parameters.rate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere is no folder of runs"),
        (["--metric", "speed"], "metric is 'speed'"),
        (["--stale", "it"], "holds no run it"),
        (["--format", "text", "-o", "file"], "format text is printed"),
        (["--format", "html", "--control", "it"], "control is 'it'"),
    ],
)
def test_the_command_refuses_in_one_sentence(root: Path, arguments, sentence, capsys) -> None:
    place = [] if arguments == ["nowhere"] else [str(root)]
    with pytest.raises(SystemExit) as end:
        main(["report", *place, *arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_a_page_in_three_formats(root: Path, tmp_path: Path) -> None:
    page = report_page.write(root, tmp_path / "report.ipynb")
    executed = nbformat.read(page, 4)
    kinds = {
        kind for c in executed.cells for o in c.get("outputs", []) for kind in o.get("data", {})
    }
    assert {"text/html", "image/png"} <= kinds
    for form, ending, sign in (("html", "html", "<table"), ("markdown", "md", "![")):
        out = report_page._converted(executed, tmp_path / f"page.{ending}", form)
        text = out.read_text()
        assert sign in text
        assert "minus dense" in text
        assert "report.collect" not in text
    pictures = list((tmp_path / "page_files").iterdir())
    assert [picture.suffix for picture in pictures] == [".png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="format is 'pdf'"):
        report_page.write(root, tmp_path / "report.pdf", "pdf")
