"""The comparison of policies: equal cost, names of runs, search protocol and page."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from astkit.files import read_json
from astkit.names import REGISTRIES
from benchmarks import gain, policies, policy_tables
from benchmarks.gain import Run


def test_runs_cost_the_same_and_a_control_has_the_rate_of_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "CACHE", tmp_path)
    monkeypatch.setattr(gain, "RESULTS", tmp_path / "gain.json")
    entries: dict[str, Any] = {}
    for policy in ("dense", "cached_loss:rate=0.4", "random@cached_loss:rate=0.4", "elr"):
        run = Run("digits", "wrong_labels:share=0.4,target=0", 2.0, policy, 0, 3e-3)
        entry = entries[run.name] = gain.execute(run)
        gain.RESULTS.write_text(gain.dumped(entries))
        step = 64 * entry["flops"] / entry["trained"]
        assert 0 <= entry["flops"] - entry["budget"] < step
    dense, cached, control, elr = entries.values()
    assert dense["budget"] == cached["budget"] == control["budget"]
    assert dense["trained"] == elr["trained"] == 2520
    assert dense["value"] != elr["value"]  # from the second epoch on
    assert (dense["rate"], cached["rate"]) == (1.0, pytest.approx(0.4, abs=0.001))
    assert control["rate"] == pytest.approx(cached["rate"], abs=0.001)
    json.dumps(entries, allow_nan=False)


def test_without_right_validation_rows_a_part_of_the_training_rows_is_held_out() -> None:
    here = gain.made(Run("digits", "wrong_labels:share=0.4,target=0", 2.0, "auto", 0))
    parts = here.train.images, here.validation.images
    assert [len(part) for part in parts] == [1260, 140]
    every = gain.images("digits")[0].images
    assert torch.equal(torch.cat(parts).unique(dim=0), every.unique(dim=0))
    assert here.oracle is not None
    assert torch.equal(here.oracle == 0, here.wrong)
    assert float(here.wrong.float().mean()) == pytest.approx(0.4, abs=0.02)


def test_a_run_is_found_by_its_name() -> None:
    for run in (*gain.plan(), *gain.search()):
        assert gain.named(run.name) == run
    assert gain.parsed("gate:rate=0.1,score=entropy,guard=None") == (
        "gate",
        {"rate": 0.1, "score": "entropy", "guard": None},
    )


@pytest.mark.parametrize("condition", sorted(policies.SETTINGS.keys() - {"natural_tail"}))
def test_the_settings_of_the_table_are_the_best_of_the_search(condition: str) -> None:
    scores: dict[tuple[float, int], dict[int, float]] = {trial: {} for trial in policies.TRIALS}
    for found in read_json(policies.SEARCH).values():
        name, epochs = gain.parsed(found["condition"])[0], 40.0 if condition == "small" else 8.0
        if (found["policy"], name, found["epochs"]) == ("dense", condition, epochs):
            trial = (found["lr"], found["batch_size"])
            scores.setdefault(trial, {})[found["seed"]] = found["accuracy"]
    seeds = set.intersection(*map(set, scores.values()))
    means = {trial: sum(each[seed] for seed in seeds) for trial, each in scores.items()}
    assert max(means, key=lambda trial: means[trial]) == policies.SETTINGS[condition]


def test_all_arms_of_the_table_have_its_settings() -> None:
    for found in read_json(policies.ENTRIES).values():
        condition, policy = (gain.parsed(found[key])[0] for key in ("condition", "policy"))
        wanted = policies.OWN.get(policy) or policies.SETTINGS[condition]
        assert (found["lr"], found["batch_size"]) == wanted
        assert found["tuned"]


def entry(condition: str, policy: str, fraction: float, seed: int, accuracy: float) -> dict:
    """An entry of the earlier runner."""
    scores = {"accuracy": accuracy, "balanced": accuracy, "natural": accuracy + 0.1, "worst": 0.2}
    counts = {"test_rows": 10_000, "trained": 16, "train_rows": 8, "rate": 0.5, "flops": 1e9}
    run = {"condition": condition, "policy": policy, "seed": seed, "epochs": 1.0}
    stamp = {"commit": "0123456789", "dirty": False}
    more = {"data": "digits", "fraction": fraction, "wrong_share": [0.4] * 8, "stamp": stamp}
    return {**run, **scores, **counts, **more}


def test_the_page_holds_verdicts_at_equal_cost() -> None:
    found = [
        entry(condition, policy, fraction, seed, score)
        for condition in ("clean", "long_tail")
        for policy, fraction, scores in (
            ("dense", 1.0, (0.70, 0.72, 0.74)),
            ("infobatch", 1.0, (0.71, 0.731, 0.75)),
            ("infobatch", 0.8, (0.71, 0.70, 0.75)),
            ("learned", 1.0, (0.75,)),
        )
        for seed, score in enumerate(scores)
    ]
    found.append(entry("small", "infobatch", 1.0, 0, 0.1))
    entries = {str(place): each for place, each in enumerate(found)}
    text = policies.page(entries)
    assert all(f"| [{name}](../astkit/" in text for name in REGISTRIES["policy"])
    table = pd.read_csv(StringIO(policies.files(entries)["accuracy.csv"]))
    tail = "long tail, 1 epochs, balanced validation"
    titles = ["clean, 1 epochs", f"{tail} and test", f"{tail}, imbalanced test (the same runs)"]
    assert list(table["condition"].unique()) == titles  # "small" has no dense run
    clean = table[table["condition"] == titles[0]].set_index("policy")
    infobatch = clean.loc["infobatch"]
    assert (infobatch["seeds"], infobatch["accuracy"]) == (3, pytest.approx(73.03, abs=0.01))
    assert infobatch["difference"] == pytest.approx(1.03, abs=0.05)
    assert 0 < infobatch["low"] < infobatch["difference"] < infobatch["high"]
    assert infobatch["wrong_end"] == 40
    assert clean["outcome"].fillna("").to_dict() == {
        "dense": "",
        "infobatch": "better",
        "infobatch, 0.8 of the FLOPs": "cannot tell yet",
        "learned": "cannot tell yet",
    }
    said = "of 9 comparisons, 3 are better than dense training, 0 worse: clean, 1 epochs: infobatch"
    assert f"{said} +1.0" in text
    claimed = text.split("## Published claims")[1]
    place = "[infobatch](../astkit/gating/policies/infobatch.py)"
    assert f"| {place} | 40 % of the cost saved | " in claimed
    assert "| clean, 1 epochs: better, 1.0 points higher" in claimed
    assert claimed.count("not measured") == 1
    assert "Commits: 01234567; 0 of 21 runs" in text


def test_what_may_train_on_the_target_has_a_table_of_its_own() -> None:
    assert "aim+target" not in set(policy_tables.gains()["policy"])
    table = policy_tables.on_target()
    drifts = table[table.index.str.match("table|series")]
    assert len(drifts) == len(gain.DRIFTS)
    assert (drifts != "not measured").all(axis=None)
    text = policies.gained()
    assert all(f"| {name} | {row.iloc[0]} | " in text for name, row in drifts.iterrows())


@pytest.mark.full
def test_every_policy_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "CACHE", tmp_path)
    given = ("weighted",)  # numbers of one data set, which no text can name
    for name in sorted(set(REGISTRIES["policy"]) - {*given}):
        policy = "random:rate=0.5" if name == "random" else name
        found = gain.execute(Run("digits", "clean", 3.0, policy, 0, 3e-3))
        assert 1 <= found["flops"] / found["budget"] < 1.05, name
