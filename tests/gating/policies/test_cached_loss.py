"""Cached losses: the probabilities of a draw."""

import math

import torch

from astkit.gating import Visit
from astkit.gating.policies.cached_loss import CachedLoss
from tests.gating.policies.recorded import close, drawn_shares, follow, info, losses_of

LOSSES = torch.tensor([0.0, 0.1, 0.9, 2.0, 4.0])
PLANS = 1000


def shares(policy: CachedLoss) -> torch.Tensor:
    """Share of plans that hold each of five samples, whose losses are known."""
    policy.plan(info(0, samples=5))
    policy.observe(Visit(torch.arange(5), LOSSES))
    found = torch.zeros(5)
    for epoch in range(1, PLANS + 1):
        rows = policy.plan(info(epoch, samples=5, epochs=2 * PLANS)).index
        assert len(rows) == len(set(rows.tolist())) == 2
        found[rows] += 1
    return found / PLANS


def test_rows_are_drawn_by_the_root_of_their_last_loss() -> None:
    roots = [math.sqrt(loss) for loss in LOSSES.tolist()]
    found = shares(CachedLoss(rate=0.4))
    assert close(found, drawn_shares(roots), PLANS)
    assert not close(found, drawn_shares(LOSSES.tolist()), PLANS)


def test_samples_not_seen_yet_come_first() -> None:
    found = follow(CachedLoss(rate=0.25), losses_of(5))
    seen = [row for rows, _, _ in found[:4] for row in rows]
    assert sorted(seen) == list(range(60))
    assert all(len(rows) == 15 for rows, _, _ in found)
    again, other = CachedLoss(0.25).plan(info(0)), CachedLoss(0.25).plan(info(0, seed=1))
    assert not again.index.equal(other.index)  # which of them is random
