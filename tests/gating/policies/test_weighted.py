"""Draws by weights: the literal rule, their cost, several processes, a resumed run, many rows."""

import math
from collections import Counter
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import Trainer, Weighted, rng
from tests import build
from tests.build import refused
from tests.gating.policies.recorded import N, info
from tests.trainers.states import leave_after

WEIGHTS = [(row * 7 % 11) ** 2 for row in range(N)]  # some are 0


def literal(weights: list[int], order: list[int], start: float) -> list[int]:
    """The rows that the points start, start + 1, ... hit, where the weights fill [0, n)."""
    points = [Fraction(start) + number for number in range(len(order))]
    drawn, reached, total = [], Fraction(0), sum(weights)
    for row in order:
        before, reached = reached, reached + Fraction(weights[row] * len(order), total)
        drawn += [row for point in points if before <= point < reached]
    return drawn


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_is_the_literal_rule_shuffled(epoch: int) -> None:
    random = rng.generator(3, "weighted", epoch)
    order = torch.randperm(N, generator=random)
    start = float(torch.rand(1, generator=random, dtype=torch.float64))
    expected = torch.tensor(literal(WEIGHTS, order.tolist(), start))
    plan = Weighted(WEIGHTS, seed=3).plan(info(epoch, seed=3))
    assert plan.index.equal(expected[torch.randperm(N, generator=random)])
    assert plan.scale.tolist() == [1.0] * N


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any), st.integers(0, 9))
def test_a_row_is_drawn_as_often_as_its_weight_says(weights: list[int], seed: int) -> None:
    rows = len(weights)
    plan = Weighted(weights, seed=seed).plan(info(0, samples=rows, seed=seed))
    found = Counter(plan.index.tolist())
    assert found.total() == rows
    for row, weight in enumerate(weights):
        wanted = Fraction(weight * rows, sum(weights))
        assert found[row] in (math.floor(wanted), math.ceil(wanted))


def test_weights_of_zero_at_the_end_are_never_drawn_and_no_scale_matters() -> None:
    for scale in (1e-30, 1.0, 1e30):
        weights = torch.cat([torch.rand(1000).double(), torch.zeros(9).double()]) * scale
        for epoch in range(20):
            assert Weighted(weights).plan(info(epoch, samples=1009)).index.max() < 1000


def epochs_of(policy: Weighted, epochs: int = 2) -> list[list[int]]:
    sampler = policy.sampler(range(N), epochs=epochs)
    return [list(sampler) for _ in range(epochs)]


@pytest.mark.parametrize("world", [2, 3, 7])
def test_several_processes_draw_together_what_one_draws(world, monkeypatch):
    whole = epochs_of(Weighted(WEIGHTS, seed=1))
    monkeypatch.setattr("astkit.distributed.world", lambda: world)
    shares = []
    for rank in range(world):
        monkeypatch.setattr("astkit.distributed.rank", lambda rank=rank: rank)
        shares.append(epochs_of(Weighted(WEIGHTS, seed=1)))
    for epoch, rows in enumerate(whole):
        mine = [share[epoch] for share in shares]
        together = [row for step in zip(*mine, strict=True) for row in step]
        assert together == rows[: N - N % world]
    assert len(Weighted(WEIGHTS).sampler(range(N), epochs=1)) == N // world


def test_weights_are_changed_from_the_next_epoch_on() -> None:
    policy, first = Weighted(WEIGHTS), epochs_of(Weighted(WEIGHTS), 3)
    sampler = policy.sampler(range(N), epochs=3)
    drawn = iter(sampler)
    begun = [next(drawn)]
    policy.weights = [1.0] * N
    assert begun + list(drawn) == first[0]
    assert sorted(sampler) == list(range(N))
    policy.weights = WEIGHTS
    assert list(sampler) == first[2]


def weigh(**options: Any) -> Any:
    policy = Weighted(WEIGHTS, cost=5e9)
    return build.trainer(train=build.rows(N), policy=policy, epochs=3, **options)


def reversed_weights(run: Trainer) -> Trainer:
    assert isinstance(run.policy, Weighted)
    run.policy.weights = WEIGHTS[::-1]
    return run


@pytest.mark.parametrize("stop", [1, 3, 9])
def test_a_stopped_run_resumes_with_its_weights_and_counts_their_cost_once(stop, tmp_path):
    whole = reversed_weights(weigh())
    steps = whole.steps()
    assert next(steps).metrics["flops"] > 5e9
    for _ in steps:
        pass
    leave_after(reversed_weights(weigh(checkpoints=tmp_path)), stop)
    resumed = weigh(checkpoints=tmp_path, resume=True)
    resumed.run()
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name])
    assert resumed.ledger.flops == whole.ledger.flops
    assert resumed.ledger.flops.helper == 5e9


def test_several_processes_pay_the_cost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astkit.distributed.rank", lambda: 1)
    run = weigh()
    next(run.steps())
    assert run.ledger.flops.helper == 0


def test_a_comparison_says_where_the_cost_of_weights_is_not_known() -> None:
    for cost, counted in ((None, False), (0.0, True)):
        policy = Weighted(torch.arange(64), cost=cost)
        report = build.comparison(policies=[policy], seeds=[0])
        assert ("scores not counted" in report.verdict) != counted
        (entry,) = (each for each in report.entries if each["policy"].startswith("weighted"))
        assert entry["scores_counted"] == counted


def test_impossible_weights_are_refused() -> None:
    for weights, words in (
        (["a"], "weights is a list: give one number a row"),
        (torch.ones(3, 2), r"weights has shape \[3, 2\] and type torch.float32: give one"),
        ([], r"weights has shape \[0\]"),
        ([1, math.nan], "weights of row 1 is nan: give a finite number of 0 or more for each"),
        ([1.0, -1.0], "weights of row 1 is -1.0: give a finite number of 0 or more"),
        ([0.0, 0.0], "weights have the sum 0: give at least one above 0"),
        ([1.0], "weights has 1 numbers, but the data set has 60 rows: give one a"),
    ):
        refused((lambda weights=weights: Weighted(weights).plan(info(0)), f"^{words}"))
    for cost in (-1.0, math.nan, "1e9"):
        call = partial(Weighted, WEIGHTS, cost=cost)
        refused((call, f"^cost is {cost!r}: give a number of 0 or more$"))
