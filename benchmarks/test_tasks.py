"""The benches of tasks, token selection and keep fractions: what they keep, fit and show."""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from astkit.gating import row_losses
from benchmarks import optimal_rate, tasks
from benchmarks.builders import task
from benchmarks.tasks import TokenSelection, with_reference

FOUND = {path: json.loads(path.read_text()) for path in (tasks.RESULTS, optimal_rate.RESULTS)}


def test_results_are_of_five_seeds_and_of_commits() -> None:
    for path, report in FOUND.items():
        known = set(tasks.ALL) if path == tasks.RESULTS else set(optimal_rate.GOALS)
        assert set(report) <= known
        for part in report.values():
            assert part["stamp"]["commit"]
            assert part["stamp"]["dirty"] is False
            runs = part["runs"] if "runs" in part else part["entries"]
            assert {run["seed"] for run in runs} == set(range(5))


def test_each_task_has_all_policies_and_a_verdict() -> None:
    report = FOUND[tasks.RESULTS]
    for name in report.keys() & set(tasks.NAMES):
        policies = [each.policy for each in tasks.verdicts(report[name])]
        assert policies == ["random(0.5)", "infobatch", "auto"]
    table = tasks.table(report, costs=True)
    assert len(table) == sum(
        len({run["policy"] for run in part["entries"]}) for part in report.values()
    )
    assert (table["n"] == 5).all()
    words = table["outcome"].str.replace(r" above.*", "", regex=True)
    assert set(words) <= {"", "better", "worse", "no gain", "cannot tell yet"}
    learned = table.loc["learned"].set_index("policy")
    assert learned.index.tolist() == ["dense", "random at 0.30", "cached_loss", "learned"]
    assert learned["against random"].map(bool).tolist() == [False, False, True, True]


def synthetic(a: float, b: float, scoring: float = 0.3) -> list[dict[str, Any]]:
    """Runs of which the costs follow the model."""
    runs = [
        {"seed": seed, "rate": rate, "reached": True, "scoring": scoring, "flops": 1e9 * (1 + seed)}
        for seed in range(2)
        for rate in (None, *optimal_rate.RATES)
    ]
    for run in runs:
        if run["rate"] is not None:
            run["flops"] *= optimal_rate.model(run["rate"], scoring, (a, b))
        run["cpu"] = run["flops"]
    return runs


@pytest.mark.parametrize(("a", "b"), [(0.6, 0.1), (0.2, 0.5), (1.0, 0.01)])
def test_the_fit_finds_the_parameters_and_the_least_cost(a: float, b: float) -> None:
    runs = synthetic(a, b)
    assert optimal_rate.fit(runs) == pytest.approx((a, b), rel=0.02, abs=0.002)
    rates = np.linspace(optimal_rate.RATES[0], 1, 2000)
    least = rates[optimal_rate.model(rates, 0.3, (a, b)).argmin()]
    assert optimal_rate.optimum(0.3, (a, b)) == pytest.approx(least, abs=1e-3)


def test_runs_that_do_not_reach_the_goal_are_counted_and_left_out() -> None:
    runs = synthetic(0.6, 0.1)
    runs[1]["reached"] = False  # the least rate with the first seed
    assert len(optimal_rate.ratios(runs, "flops")[0.1]) == 1
    row = optimal_rate.table({"digits": {"runs": runs}}).loc["digits"]
    assert row["k = 0.1"] == "1 not reached"
    assert row["k = 0.5"] == "0.64, CPU 0.64"  # equal, so without an interval
    assert (row["a, b"], row["least at k"]) == ("0.60, 0.10", "0.22")
    (legend,) = optimal_rate.plot({"digits": {"runs": synthetic(0.6, 0.1)}}).legends
    assert len(legend.get_texts()) == 4


@pytest.mark.full
def test_a_run_ends_at_its_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optimal_rate.GOALS, "series", optimal_rate.Goal(0.5, 1, 3e-3))
    for rate in (None, 0.5):
        run = optimal_rate.reach("series", rate, 0)
        assert run["reached"]
        assert (run["scored"] > 0) == (rate is not None)


def test_tokens_of_the_largest_excess_loss_are_trained_with_equal_weight() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=random)
    labels = torch.randint(4, (3, 5), generator=random)
    labels[2, 3:] = -100
    reference = torch.rand(3, 5, generator=random)
    batch = {"labels": labels, "reference": reference}
    losses, mask = TokenSelection(0.4)(logits, batch)
    every = [
        (F.cross_entropy(logits[i, j], labels[i, j]).item() - reference[i, j].item(), i, j)
        for i in range(3)
        for j in range(5)
        if labels[i, j] != -100
    ]
    best = {(i, j) for _, i, j in sorted(every, reverse=True)[:5]}  # 0.4 of 13
    assert {tuple(place) for place in mask.nonzero().tolist()} == best
    expected = mean(F.cross_entropy(logits[i, j], labels[i, j]).item() for i, j in best)
    rows = row_losses(TokenSelection(0.4), logits, batch)
    assert rows.mean().item() == pytest.approx(expected)
    assert losses.shape == mask.shape


def test_a_reference_is_the_loss_of_each_token() -> None:
    made = task("language")
    model = made["make_model"]().eval()
    data = with_reference(made["test"], model, rows=50)
    row = data[51]
    logits = model(row["tokens"][None])[0]
    assert row["reference"].allclose(F.cross_entropy(logits, row["labels"], reduction="none"))
    assert len(data) == len(made["test"])
