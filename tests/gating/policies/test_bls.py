"""Batch loss scores: the average that they are, and how InfoBatch plans from them."""

from __future__ import annotations

import math

import pytest
import torch

from astkit.gating import Visit
from astkit.gating.policies.bls import BatchLossScore
from astkit.gating.policies.infobatch import InfoBatch
from tests.gating.policies.recorded import N, info, losses_of, planned


def test_it_plans_as_infobatch_does_from_the_average() -> None:
    losses, size, alpha = losses_of(), 8, 0.6
    policy = BatchLossScore(rate=0.6, delta=0.75, alpha=alpha)
    other = InfoBatch(rate=0.6, delta=0.75)
    scores = [0.0] * N
    for epoch, values in enumerate(losses):
        other.losses = torch.tensor(scores)
        found = planned(policy.plan(info(epoch)))
        assert found == planned(other.plan(info(epoch)))
        for first in range(0, len(found[0]), size):
            batch = found[0][first : first + size]
            policy.observe(Visit(torch.tensor(batch), values[batch]))
            mean = sum(float(values[i]) for i in batch) / len(batch)
            for i in batch:
                scores[i] = alpha * scores[i] + (1 - alpha) * mean
    policy.observe(Visit(torch.arange(2), torch.tensor([1.0, math.nan])))  # changes nothing
    assert policy.losses is not None
    assert policy.losses.tolist() == pytest.approx(scores)


def test_a_loop_that_only_has_the_mean_passes_it() -> None:
    policy = BatchLossScore(seed=2)
    sampler = policy.sampler(range(N), epochs=20)
    for _ in range(3):
        rows = torch.tensor(list(sampler))
        weights = sampler._scale.clone()
        for batch, weight in zip(rows.split(10), weights.split(10), strict=True):
            loss = (batch.float().mean() / 10).requires_grad_()
            total = policy.mean(loss, batch)
            total.backward()
            assert total.item() == pytest.approx(loss.item() * float(weight.mean()))
            assert float(loss.grad) == pytest.approx(float(weight.mean()))
    assert len(rows) < N
    assert bool((policy.losses > 0).all())
