"""The comparison of policies: equal cost, exact resume, plan, search protocol and table."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit.comparison.training import Record
from astkit.datasets import Images
from astkit.datasets.conditions import Condition
from astkit.names import REGISTRIES
from tests.benchmarks import policies
from tests.benchmarks import policies_plan as plans
from tests.benchmarks.gain import read
from tests.benchmarks.policies_plan import Run
from tests.benchmarks.policies_table import page

RUN = Run("wrong_labels", "dense", 0, 1.0, 3e-3, 64, data="digits")


class Seen:
    """Remembers the numbers of the steps, and ends the run after one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.steps: list[int] = []
        self.last = last

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        self.steps += [step] * (phase == "train")
        if step == self.last:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def result(entry: plans.Entry) -> plans.Entry:
    """What does not depend on the clock."""
    return {name: value for name, value in entry.items() if name not in ("seconds", "stamp")}


def test_runs_cost_the_same_and_resume_exactly(tmp_path: Path) -> None:
    entries: plans.Entries = {}
    for policy in ("dense", "cached_loss:rate=0.4", "random@cached_loss:rate=0.4"):
        run = replace(RUN, policy=policy)
        rate = plans.rate_for(run, entries)
        entry = policies.execute(run, tmp_path / "whole", rate)
        entries[run.name] = entry
        if policy.startswith("cached_loss"):
            with pytest.raises(KeyboardInterrupt):
                policies.execute(run, tmp_path / "killed", rate, (Seen(15),), pause=0)
            seen = Seen()
            again = policies.execute(run, tmp_path / "killed", rate, (seen,))
            assert result(again) == result(entry)
            assert seen.steps[0] in (7, 13)
        assert not list((tmp_path / "whole").glob("*/*"))  # the checkpoints of a finished run go
        step = 64 * entry["flops"] / entry["trained"]
        assert 0 <= entry["flops"] - entry["budget_flops"] < step
    dense, cached, control = entries.values()
    assert dense["budget_flops"] == cached["budget_flops"] == control["budget_flops"]
    assert dense["trained"] == dense["train_rows"]
    assert (dense["rate"], cached["rate"]) == (1.0, pytest.approx(0.4, abs=0.001))
    assert control["rate"] == pytest.approx(cached["rate"], abs=0.001)
    assert sum(dense["wrong_share"]) / len(dense["wrong_share"]) == pytest.approx(0.4, abs=0.005)
    assert dense["worst"] < dense["balanced"] < 1
    json.dumps(entries, allow_nan=False)


def test_helper_models_that_cost_more_than_the_budget_are_refused(tmp_path: Path) -> None:
    run = replace(RUN, policy="el2n_static:runs=3")
    with pytest.raises(ValueError, match=r"times the budget, since its helper models .* epochs$"):
        policies.execute(run, tmp_path)


def test_class_weights_and_recalls_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    weights = policies.class_weights(labels, 3)
    assert weights[:2].tolist() == pytest.approx([2 / 3, 2])
    losses = policies.weighted(weights, torch.zeros(4, 3), labels)
    assert losses.tolist() == pytest.approx([*[2 / 3 * 1.0986] * 3, 2 * 1.0986], rel=1e-4)
    recalls, labels = torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0] * 6 + [1] * 3 + [2])
    scores = policies.class_scores(recalls, labels)
    assert scores == pytest.approx({"balanced": 0.5, "natural": 0.7, "worst": 0.1})


def test_wrong_shares_are_of_the_rows_trained_on() -> None:
    true, given = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0])
    pixels = torch.zeros(4, 1, 1, 1, dtype=torch.uint8)
    made = Condition("", Images(pixels, given, ("a", "b"), "toy"), None, None, 2, given, true)
    record = Record(4, lambda: 0.0, torch.device("cpu"))
    record.trained[0] = torch.tensor([1, 0, 3, 0])
    assert policies.wrong_share(record, made) == [0.75, *[0.0] * 7]


def test_a_control_waits_for_the_rate_of_its_policy(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    run = replace(RUN, policy="random@seta")
    with pytest.raises(ValueError, match="the rate of seta is not known: train it first"):
        policies.train(run, out, tmp_path)
    entries = {"seta": {**asdict(replace(RUN, policy="seta")), "rate": 0.3}}
    assert plans.rate_for(run, entries) == 0.3
    assert plans.rate_for(replace(run, seed=1), entries) is None


@pytest.mark.parametrize("condition", sorted(plans.SETTINGS.keys() - plans.ALIASES))
def test_the_settings_of_the_table_are_the_best_of_the_search(condition: str) -> None:
    scores: dict[tuple[float, int], dict[int, float]] = {trial: {} for trial in plans.TRIALS}
    for found in read(plans.SEARCH).values():
        name, epochs = plans.parsed(found["condition"])[0], policies.EPOCHS.get(condition, 8.0)
        if (found["policy"], name, found["epochs"]) == ("dense", condition, epochs):
            trial = (found["lr"], found["batch_size"])
            scores.setdefault(trial, {})[found["seed"]] = found["accuracy"]
    seeds = set.intersection(*map(set, scores.values()))
    means = {trial: sum(each[seed] for seed in seeds) for trial, each in scores.items()}
    assert max(means, key=lambda trial: means[trial]) == plans.SETTINGS[condition]
    for policy, settings in {"dense": plans.SETTINGS[condition], "gate": plans.OWN["gate"]}.items():
        run = plans.tuned(replace(RUN, condition=condition, policy=policy))
        assert ((run.lr, run.batch_size), run.tuned, run.policy) == (settings, True, policy)


def test_all_arms_of_the_table_have_its_settings() -> None:
    for found in read(plans.RESULTS).values():
        run = plans.run_of(found)
        assert run == plans.tuned(run)


def entry(run: Run, accuracy: float, **values: Any) -> plans.Entry:
    common = {"balanced": accuracy, "natural": accuracy + 0.1, "worst": 0.2, "test_rows": 10_000}
    audit = {"wrong_share": [0.4] * 8, "trained": 16, "train_rows": 8, "rate": 0.5, "flops": 1e9}
    stamp = {"commit": "0123456789", "dirty": False}
    return {**asdict(run), "accuracy": accuracy, **common, **audit} | {
        "stamp": stamp,
        **values,
    }


def test_the_page_holds_verdicts_at_equal_cost() -> None:
    runs = [
        (replace(RUN, condition=condition, policy=policy, seed=seed, fraction=fraction), score)
        for condition in ("clean", "long_tail")
        for policy, fraction, scores in (
            ("dense", 1.0, (0.70, 0.72, 0.74)),
            ("seta", 1.0, (0.71, 0.731, 0.75)),
            ("seta", 0.8, (0.71, 0.70, 0.75)),
            ("infobatch", 1.0, (0.75,)),
        )
        for seed, score in enumerate(scores)
    ]
    entries = {run.name: entry(run, score) for run, score in runs}
    alone = replace(RUN, condition="small", policy="seta")
    entries[alone.name] = entry(alone, 0.1)
    text, rules = page(entries), page({})
    assert text.startswith(rules.rstrip())
    assert all(f"| {name} |" in rules for name in REGISTRIES["policy"])
    tail = "long tail, 1 epochs, balanced validation"
    titles = ["clean, 1 epochs", f"{tail} and test", f"{tail}, imbalanced test (the same runs)"]
    assert re.findall(r"### (.*)", text) == titles  # "small" has no dense run
    first, claimed = text.split("### ")[1], text.split("## Published claims")[1]
    found = re.search(r"\| seta, not tuned \| 3 \| 73.03% \| (\S+) points \[(\S+), (\S+)\]", first)
    assert found is not None
    difference, low, high = map(float, found.groups())
    assert difference == pytest.approx(1.03, abs=0.05)
    assert 0 < low < difference < high
    assert "- seta, 0.8 of the FLOPs, not tuned: cannot tell yet, +0" in first
    assert "- infobatch, not tuned: cannot tell yet, +5.0 points, 1 seed, same FLOPs" in first
    assert "| wrong labels, start |" in first
    assert "| seta | up to 50 % of the cost saved | " in claimed
    assert "| clean, 1 epochs: +1.0 points" in claimed
    assert claimed.count("not measured") == 7
    assert "Commits: 01234567; 0 of 21 runs" in text


@pytest.mark.full
def test_every_policy_can_be_compared(tmp_path: Path) -> None:
    for name in sorted(REGISTRIES["policy"]):
        policy = {"random": "random:rate=0.5", "el2n_static": "el2n_static:runs=1"}.get(name, name)
        run = replace(RUN, policy=policy, epochs=3.0)
        found = policies.execute(run, tmp_path)
        assert 1 <= found["flops"] / found["budget_flops"] < 1.05, name
