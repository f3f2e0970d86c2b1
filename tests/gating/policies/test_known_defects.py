"""Defects of other implementations that cannot happen here; one test each."""

from __future__ import annotations

import pytest
import torch

from astkit.gating import RunInfo, Visit
from astkit.gating.policies.infobatch import InfoBatch
from tests.gating.policies.recorded import N, losses_of


@pytest.mark.parametrize("rounds", [1, 10])
def test_the_last_epochs_have_no_weights_for_any_number_of_epochs(rounds: int) -> None:
    """InfoBatch resets its weights only where delta * epochs is a whole number."""
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
    """InfoBatch gathers ids in the type of the losses: 40001 becomes 39936 in bf16."""
    policy = InfoBatch()
    sampler = policy.sampler(range(50_000), epochs=2)
    rows = torch.tensor(list(sampler))
    for batch in rows.split(10_000):
        policy.mean((batch.remainder(250) / 2).bfloat16(), batch)
    assert policy.losses is not None
    assert policy.losses.equal(torch.arange(50_000).remainder(250) / 2)
    assert policy.losses.dtype == torch.float32
