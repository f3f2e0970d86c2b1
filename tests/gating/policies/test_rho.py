"""RHO: holdout losses of models that never saw a sample, and the choice by what is left."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from astkit import rng
from astkit.gating import ScoredBatches
from astkit.gating.policies.rho import Rho
from tests.gating.policies.recorded import linear

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
INDEX = torch.arange(48)
BATCHES = [(rows, (X[rows], Y[rows])) for rows in INDEX.split(12)]


def test_holdout_losses_are_those_of_the_other_halfs_model() -> None:
    policy, before = Rho(0.25, epochs=3, lr=0.05, seed=4), torch.get_rng_state()
    policy.prepare(linear, ScoredBatches(BATCHES))
    half = (rng.uniform(INDEX, 4, "rho") < 0.5).long()
    expected = torch.zeros(48)
    for k in (0, 1):
        trained = linear()
        optimizer = torch.optim.AdamW(trained.parameters(), 0.05)
        for _ in range(3):
            for rows, (x, y) in BATCHES:
                own = half[rows] == k
                optimizer.zero_grad()
                F.cross_entropy(trained(x[own]), y[own]).backward()
                optimizer.step()
        other = half != k
        expected[other] = F.cross_entropy(trained(X[other]), Y[other], reduction="none").detach()
    torch.testing.assert_close(policy.held, expected)
    current = linear()
    for rows, (x, y) in BATCHES:
        chosen = policy(current, x, y, rows)
        excess = F.cross_entropy(current(x), y, reduction="none").detach() - expected[rows]
        best = sorted(range(12), key=lambda i: -float(excess[i]))[:3]
        assert sorted(chosen.index.tolist()) == sorted(best)
    assert torch.get_rng_state().equal(before)


def test_samples_without_a_holdout_loss_count_as_zero() -> None:
    policy = Rho(0.5)
    policy.held = torch.tensor([0.0, torch.nan])
    labels = torch.zeros(4, dtype=torch.int64)
    chosen = policy(nn.Identity(), torch.zeros(4, 3), labels, torch.arange(4))
    assert 0 in chosen.index.tolist()  # its loss is ln 3, the others count as 0


def test_small_halves_and_batch_norm_go_together() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(linear(), nn.BatchNorm1d(3))

    policy = Rho(epochs=1)
    policy.prepare(normed, ScoredBatches([(r, (X[r], Y[r])) for r in INDEX.split(2)]))
    assert policy.held is not None
    assert bool(policy.held.isfinite().all())


def test_it_is_refused_without_holdout_losses() -> None:
    with pytest.raises(ValueError, match=r"no holdout losses: call policy.prepare\(make_model"):
        Rho()(linear(), X, Y, INDEX)
