"""The benches of speed: each runs in short, and what is committed says how it was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit.comparison.statistics import by_arm
from astkit.names import REGISTRIES
from astkit.trainers import Trainer
from benchmarks import bench, calls, figures, measure, origin, published, score_costs, speed


@pytest.mark.alone
@pytest.mark.parametrize("name", measure.FIGURES)
def test_the_kit_keeps_its_bounds(name: str, record_property: Callable[..., None]) -> None:
    """Threads that wait for one another, where something else runs, turn 4 ms into 250."""
    figure, rounds = measure.FIGURES[name]
    with bench.one_thread():
        result = figure(rounds)
    for key, value in result.items():
        record_property(key, value)
    assert result["kept"] is not False, bench.line(result)


@pytest.mark.full
def test_a_short_run_times_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "STEPS", 2)
    out = tmp_path / "speed.json"
    speed.main(["--rounds", "2", "--out", str(out)])
    content = json.loads(out.read_text())
    assert len(content["figures"]) == len(speed.NETWORKS) * len(speed.RATIOS)
    assert "--rounds 2" in content["command"]


@pytest.mark.parametrize("rate", [1.0, speed.RATE])
def test_the_raw_loop_does_the_work_of_the_kit(rate: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(speed, "Loader", partial(speed.Loader, shuffle=False))
    monkeypatch.setattr(torch, "randperm", torch.arange)
    digits, cpu = speed.load("digits")[0], torch.device("cpu")
    trainers = []
    policy = None if rate == 1 else speed.Gate(rate, controller="top_k")

    def kept(*args: Any, **options: Any) -> speed.Trainer:
        trainers.append(Trainer(*args, **options))
        return trainers[0]

    monkeypatch.setattr(speed, "Trainer", kept)
    raw = speed.Raw("digits_cnn", digits, cpu, rate)
    steps, records = raw.steps(), speed.kit("digits_cnn", digits, cpu, policy)
    for _ in range(5):
        next(steps)
        next(records)
    for mine, other in zip(raw.parameters, trainers[0].model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def test_the_committed_figures_have_enough_rounds() -> None:
    content = json.loads(speed.RESULTS.read_text())
    assert "benchmarks.speed" in content["command"]
    names = [each["name"] for each in content["figures"]]
    assert {f"{name}: dense / raw" for name in speed.NETWORKS} <= {*names}
    assert all(each["n"] >= 21 for each in content["figures"])


@pytest.mark.full
def test_every_published_part_gives_a_ratio_that_the_table_reads(tmp_path: Path) -> None:
    out = tmp_path / figures.PUBLISHED
    out.parent.mkdir(parents=True)
    parts = [part for part in published.FIGURES if part != "compile"]  # takes a minute
    published.main(["--rounds", "2", "--out", str(out), "--parts", *parts])
    found = json.loads(out.read_text())["figures"]
    assert len(found) == len(parts)
    assert all(each["n"] == 2 and 0.2 < each["median"] < 50 for each in found)
    assert (figures.table(tmp_path)["run"] == figures.PUBLISHED).sum() == len(parts)


@pytest.mark.full
def test_every_registered_score_is_measured(tmp_path: Path) -> None:
    threads, out = torch.get_num_threads(), tmp_path / "costs.json"
    score_costs.main(["--rounds", "2", "--rows", "8", "--out", str(out)])
    assert torch.get_num_threads() == threads
    content = json.loads(out.read_text())
    assert content["stamp"]["threads"] == 1
    rows = {(row["network"], row["score"]): row for row in content["figures"]}
    names = set(REGISTRIES["score"])
    assert rows.keys() == {(net, name) for net in ("simple_cnn", "digits_cnn") for name in names}
    for row in rows.values():
        assert row["n"] == 2
        # a sum weighs two features of a row: 4 FLOPs
        assert row["extra_flops"] == pytest.approx(0, abs=4)
        assert row["uncounted"] == []


def test_the_kit_trains_on_the_rows_that_it_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "EPOCHS", 1)
    parts = origin.split("digits")
    row = origin.measure("gate", 0, parts)
    offered = len(parts.train.labels)
    assert row["trained"] < 0.5 * offered
    assert row["scored"] >= offered
    assert row["trained"] == pytest.approx(row["rate"] * offered, abs=4)  # two rows are checked


def test_every_row_of_the_originals_package_goes_backward() -> None:
    content = json.loads(origin.RESULTS.read_text())
    assert content[origin.PACKAGE] == "1.0.1"
    assert content["stamp"]["dirty"] is False
    arms = by_arm(content["rows"])
    assert len({tuple(arm) for arm in arms.values()}) == 1
    assert len(arms["dense"]) >= 5
    for seed, run in arms[origin.PACKAGE].items():
        assert run["trained"] >= content["settings"]["epochs"] * 1295
        assert run["trained"] >= arms["gate"][seed]["trained"] / 0.2
    assert list(origin.table(content["rows"]).index) == ["dense", "gate", origin.PACKAGE]


@pytest.mark.parametrize(("policy", "most", "files"), [(None, 100, 10), ("gate", 180, 14)])
def test_a_steady_step_is_few_calls_in_few_files(policy: str | None, most: int, files: int) -> None:
    total, seen, _ = calls.counted(policy)
    assert total <= most
    assert len(seen) <= files
