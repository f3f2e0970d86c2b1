"""The speed report: it runs, and what is committed keeps its bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import speed


@pytest.mark.full
def test_a_small_report_holds_speeds_and_accuracies(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    small = ["--rounds", "2", "--batches", "1", "--model", "digits_cnn", "--out", str(out)]
    speed.main([*small, "--only", "speed"])
    speed.main([*small, "--only", "accuracy", "--seeds", "1", "--epochs", "1"])
    first = json.loads(out.read_text())["accuracy"]["results"]
    speed.main([*small, "--only", "accuracy", "--seeds", "2", "--epochs", "1"])
    report = json.loads(out.read_text())
    assert [found["kind"] for found in report["speed"]] == ["dense", "batched gate"]
    for found in report["speed"]:
        assert found["speed"]["low"] <= found["speed"]["median"] <= found["speed"]["high"]
        assert found["table"][0]["arm"] == "plain"
    quality = report["accuracy"]
    assert quality["dataset"] == "digits"
    assert len(quality["results"]) == 2 * 2 * 2
    assert quality["results"][: 2 * 2] == first  # what was measured is not measured again
    by_arm = {(r["seed"], r["arm"]): r["test_accuracy"] for r in quality["results"]}
    gaps = [by_arm[seed, "dense, auto"] - by_arm[seed, "dense, plain"] for seed in (0, 1)]
    assert quality["differences"]["dense"]["mean"] == pytest.approx(sum(gaps) / 2)


def test_the_committed_report_keeps_its_bounds() -> None:
    report = json.loads(speed.RESULTS.read_text())
    for found in report["speed"]:
        assert found["speed"]["n"] >= 7
        if found["bound"] is not None:
            assert found["speed"]["median"] >= found["bound"]
    assert all(gap["n"] >= 5 for gap in report["accuracy"]["differences"].values())
