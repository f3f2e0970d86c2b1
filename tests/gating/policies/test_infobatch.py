"""InfoBatch: the published rule, its rate, and the gradient that it keeps."""

from __future__ import annotations

import math

import pytest
import torch

from astkit import rng
from astkit.gating import Visit
from astkit.gating.policies.infobatch import InfoBatch
from tests.gating.policies.recorded import EPOCHS, N, follow, info, losses_of, planned


def test_it_equals_the_published_rule() -> None:
    losses, r, last = losses_of().tolist(), 0.4, {}
    found = follow(InfoBatch(1 - r, delta=0.75, seed=3), losses_of())
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


def test_equal_losses_are_not_below_their_mean() -> None:
    policy = InfoBatch()
    for epoch in range(2):  # the float32 mean of these is above 0.1
        assert len(policy.plan(info(epoch, samples=50_000))) == 50_000
        policy.observe(Visit(torch.arange(50_000), torch.full((50_000,), 0.1)))


def test_a_sample_without_a_finite_loss_stays() -> None:
    policy = InfoBatch(0.1)
    losses = torch.ones(1, N)
    losses[0, :3] = torch.tensor([math.nan, math.inf, 0.5])
    follow(policy, losses)
    for epoch in range(1, 9):
        rows, weights, _ = planned(policy.plan(info(epoch, epochs=100)))
        assert {0, 1} <= set(rows)
        assert weights[:2] == [1.0, 1.0]
