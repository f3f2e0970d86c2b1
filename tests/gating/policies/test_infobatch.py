"""InfoBatch: the published rule, its rate, and the gradient that it keeps."""

from __future__ import annotations

import math

import pytest
import torch

from astkit import rng
from astkit.gating import Selection
from astkit.gating.policies.infobatch import InfoBatch
from tests.gating.policies.recorded import EPOCHS, N, follow, info, losses_of, planned


def test_it_equals_the_published_rule() -> None:
    losses, r, last = losses_of().tolist(), 0.4, {}
    found = follow(InfoBatch(r, delta=0.75, seed=3), losses_of())
    for epoch in range(EPOCHS):
        rows, weights = [], []
        draws = rng.uniform(torch.arange(N), 0, "infobatch", epoch, 0).tolist()
        mean = sum(last.values()) / max(1, len(last))
        for i in range(N):
            low = i in last and last[i] < mean and epoch < math.floor(0.75 * EPOCHS)
            if not low or draws[i] >= r:
                rows.append(i)
                weights.append(1 / (1 - r) if low else 1.0)
        assert found[epoch][0] == rows
        assert found[epoch][1] == pytest.approx(weights)
        assert found[epoch][2] == N
        last |= {i: losses[epoch][i] for i in rows}
    assert len(found[1][0]) < N


def informed() -> InfoBatch:
    policy = InfoBatch(0.5)
    follow(policy, losses_of(1))
    return policy


def unbiased(policy: InfoBatch, plans: int, weighted: bool) -> bool:
    gradients = losses_of(1, seed=5)[0].double()[:, None] * torch.randn(N, 3).double()
    sums = []
    for epoch in range(1, plans):
        chosen = policy.plan(info(epoch, epochs=100 * plans))
        assert chosen is not None
        chosen = chosen if weighted else Selection(chosen.index)
        sums.append(chosen.weight.double() @ gradients[chosen.index] / chosen.total)
    found = torch.stack(sums)
    error = 4 * found.std(0) / math.sqrt(len(found))
    return bool(((found.mean(0) - gradients.mean(0)).abs() <= error).all())


@pytest.mark.parametrize("plans", [400, pytest.param(10_000, marks=pytest.mark.full)])
def test_the_expected_gradient_is_that_of_all_samples(plans: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert unbiased(informed(), plans, weighted=True)
        assert not unbiased(informed(), plans, weighted=False)


def test_a_sample_without_a_finite_loss_stays() -> None:
    policy = InfoBatch(0.9)
    losses = torch.ones(1, N)
    losses[0, :3] = torch.tensor([math.nan, math.inf, 0.5])
    follow(policy, losses)
    for epoch in range(1, 9):
        rows, weights, _ = planned(policy.plan(info(epoch, epochs=100)))
        assert {0, 1} <= set(rows)
        assert weights[:2] == [1.0, 1.0]
