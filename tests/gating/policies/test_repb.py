"""RePB: comparison within a batch, return of what was left out, weights by counts."""

from __future__ import annotations

import pytest
import torch

from astkit import rng
from astkit.gating import Visit
from astkit.gating.policies.repb import RePB
from tests.gating.policies.recorded import EPOCHS, N, follow, info, losses_of


def test_it_equals_the_three_rules() -> None:
    losses, r, size = losses_of().tolist(), 0.6, 7
    found = follow(RePB(r), losses_of(), batch=size)
    chosen = set(range(N))
    counts = [0] * N
    for epoch in range(EPOCHS):
        rows = sorted(chosen)
        for i in rows:
            counts[i] += 1
        weights = [(epoch + 1) / counts[i] for i in rows]
        assert found[epoch][0] == rows
        assert found[epoch][1] == pytest.approx(weights)
        assert found[epoch][2] == len(rows)
        draws = rng.uniform(torch.arange(N), 0, "repb", epoch + 1, 0).tolist()
        following = {i for i in range(N) if i not in chosen and draws[i] >= r}
        for first in range(0, len(rows), size):
            batch = rows[first : first + size]
            mean = sum(losses[epoch][i] for i in batch) / len(batch)
            following |= {i for i in batch if losses[epoch][i] >= mean or draws[i] >= r}
        chosen = following
    assert len(found[5][0]) < 0.8 * N


def test_equal_losses_are_not_below_their_mean() -> None:
    policy = RePB()
    policy.plan(info(0, samples=32))
    policy.observe(Visit(torch.arange(32), torch.full((32,), 0.1)))  # its float32 mean is above
    assert policy.low is not None
    assert not policy.low.any()


def test_a_memory_of_other_samples_is_refused() -> None:
    policy = RePB(0.5)
    list(policy.sampler(range(N), epochs=2))
    with pytest.raises(ValueError, match=f"RePB remembers {N} samples, but the data set has 7"):
        list(policy.sampler(range(7), epochs=2))
