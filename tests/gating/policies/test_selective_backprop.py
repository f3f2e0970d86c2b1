"""Selective backpropagation: the power law of the ranks, and when it is on."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from astkit.gating import RunInfo, Scored
from astkit.gating.policies.selective_backprop import SelectiveBackprop
from tests.gating.policies.recorded import close, drawn_shares, scored


def batch_of(size: int, seed: int = 0) -> Scored:
    outputs = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return scored(outputs, torch.zeros(size, dtype=torch.int64))


def test_rows_are_drawn_by_the_power_of_their_percentile() -> None:
    policy, batch, plans = SelectiveBackprop(0.4, start=0, end=1, interrupt=0), batch_of(5), 1500
    found = torch.zeros(5)
    for _ in range(plans):
        chosen = policy.choose(batch)
        assert chosen is not None
        assert len(chosen) == len(set(chosen.index.tolist())) == 2  # floor(0.4 * 5)
        assert chosen.weight.tolist() == [1.0, 1.0]
        found[chosen.index] += 1
    losses = F.cross_entropy(batch.outputs, batch.targets, reduction="none").tolist()
    ranks = sorted(range(5), key=losses.__getitem__)
    weights = [((j + 0.5) / 5) ** (1 / 0.4 - 1) for j in range(5)]
    assert close(found[ranks] / plans, drawn_shares(weights), plans)


def test_a_share_that_is_a_whole_number_of_rows_is_not_rounded_down() -> None:
    policy = SelectiveBackprop(0.29, start=0, end=1, interrupt=0)
    assert len(policy.choose(batch_of(100))) == 29  # 0.29 * 100 is 28.999999999999996


def test_it_selects_between_start_and_end_but_for_every_interrupted_batch() -> None:
    policy, on = SelectiveBackprop(0.5, start=0.3, end=0.7, interrupt=3), {}
    for epoch in range(2):
        for number in range(10):
            progress = (epoch + number / 10) / 2
            policy.plan(RunInfo(8, torch.arange(8), epoch, number, progress))
            batch = batch_of(8)
            batch._outputs = None  # reading a score would raise
            try:
                on[epoch, number] = policy.choose(batch) is not None
            except AssertionError:
                on[epoch, number] = True
    expected = {
        (epoch, number): 0.3 <= (epoch + number / 10) / 2 < 0.7 and (number + 1) % 3 != 0
        for epoch, number in on
    }
    assert on == expected


def test_unknown_progress_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nothing says how far it is: set policy.progress, let"):
        SelectiveBackprop().choose(batch_of(4))
    policy = SelectiveBackprop()
    policy.progress = 0.6
    assert policy.choose(batch_of(4)) is not None
