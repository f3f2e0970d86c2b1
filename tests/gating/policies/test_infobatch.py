"""InfoBatch: the published rule, its rate, and defects of other implementations."""

import math

import pytest
import torch

from astkit import rng
from astkit.gating import RunInfo, Visit
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


@pytest.mark.parametrize("rounds", [1, 10])
def test_the_last_epochs_have_no_weights_for_any_number_of_epochs(rounds: int) -> None:
    """Others reset the weights only where delta * epochs is a whole number."""
    losses = losses_of(1)[0]
    for epochs in (*range(1, 13), 30, 33):
        for delta in (0.5, 0.875, 0.9):
            policy = InfoBatch(delta=delta)
            policy.rounds = rounds
            whole = []
            for epoch in range(epochs):
                for part in range(0, rounds, 4):
                    progress = (epoch + part / rounds) / epochs
                    run = RunInfo(N, torch.arange(N), epoch, part, progress)
                    whole.append((epoch, policy.plan(run) is None))
                policy.observe(Visit(torch.arange(N), losses))
            first = int(delta * epochs + 1e-6)
            assert all(found == (epoch >= first) for epoch, found in whole if epoch), epochs


def test_losses_in_bf16_reach_their_own_samples() -> None:
    """Others gather ids in the type of the losses: 40001 becomes 39936 in bf16."""
    policy = InfoBatch()
    sampler = policy.sampler(range(50_000), epochs=2)
    rows = torch.tensor(list(sampler))
    for batch in rows.split(10_000):
        policy.mean((batch.remainder(250) / 2).bfloat16(), batch)
    assert policy.losses is not None
    assert policy.losses.equal(torch.arange(50_000).remainder(250) / 2)
    assert policy.losses.dtype == torch.float32
