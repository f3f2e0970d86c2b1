"""Defects of other implementations that cannot happen here; one test each."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from astkit.datasets import indexed
from astkit.gating import Gate, RunInfo, Visit
from astkit.gating.policies.infobatch import InfoBatch
from astkit.gating.policies.seta import SeTa
from tests.gating.policies.recorded import N, losses_of

NEXT = _BaseDataLoaderIter.__next__


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


def test_weights_are_gone_in_a_loop_of_four_epochs() -> None:
    policy = InfoBatch()
    sampler = policy.sampler(range(N), epochs=4)
    for epoch in range(4):
        rows = torch.tensor(list(sampler))
        losses = losses_of(1)[0][rows]
        total = policy.mean(losses, rows)
        assert (total.item() == pytest.approx(losses.mean().item())) == (epoch in (0, 3))


@pytest.mark.parametrize("kind", [InfoBatch, SeTa])
def test_two_seeds_have_two_orders_and_no_generator_is_seeded(kind: type) -> None:
    """InfoBatch and SeTa call np.random.seed with the number of the epoch."""
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    orders = [list(kind(seed=seed).sampler(range(N), epochs=3)) for seed in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert torch.get_rng_state().equal(before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


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


def test_no_warm_up_overwrites_the_target() -> None:
    """The original's warm-up trains on everything, and leaves the target at 1."""
    gate = Gate(0.4, controller="top_k")
    for _ in range(5):
        gate.select(torch.rand(100))
        assert gate.target_rate == 0.4
    assert gate.rate == pytest.approx(0.4)


def test_torchs_loader_is_as_it_was() -> None:
    """InfoBatch, SeTa and BLS replace the __next__ of all loaders of the process."""
    policy = SeTa()
    loader = DataLoader(indexed(list(range(N))), 8, sampler=policy.sampler(range(N), epochs=1))
    assert sum(len(index) for index, _ in loader) == int(0.9 * N)
    assert _BaseDataLoaderIter.__next__ is NEXT
    assert NEXT.__module__ == "torch.utils.data.dataloader"
