"""Static EL2N: scores of short runs, and the subset that stays."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from astkit import distributed
from astkit.gating import ScoredBatches
from astkit.gating.policies.el2n_static import StaticEL2N
from tests.gating.policies.recorded import info, linear

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
INDEX = torch.arange(60)


class Data:
    """Two orders of the same batches, in turn."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.passes += 1
        order = INDEX if self.passes % 2 else INDEX.flip(0)
        return iter(ScoredBatches([(rows, (X[rows], Y[rows])) for rows in order.split(15)]))


def test_the_scores_are_error_norms_averaged_over_runs() -> None:
    policy, before, data = StaticEL2N(0.3, runs=3, epochs=2, lr=0.1), torch.get_rng_state(), Data()
    policy.prepare(linear, data)
    total, reference = torch.zeros(60), Data()
    for _ in range(3):
        trained = linear()
        optimizer = torch.optim.AdamW(trained.parameters(), 0.1)
        for _ in range(2):
            for batch in reference:
                optimizer.zero_grad()
                F.cross_entropy(trained(batch.inputs), batch.targets).backward()
                optimizer.step()
        list(reference)  # the order of scoring does not matter
        total += (trained(X).softmax(1) - F.one_hot(Y, 3)).norm(dim=1).detach()
    torch.testing.assert_close(policy.scores, total / 3)
    assert data.passes == reference.passes == 9
    assert torch.get_rng_state().equal(before)
    best = sorted(range(60), key=lambda i: -float(total[i]))[:18]
    for epoch in range(3):
        chosen = policy.plan(info(epoch, rows=INDEX.flip(0)))
        assert chosen.index.tolist() == sorted(best, reverse=True)  # in the order of the epoch
        assert chosen.weight.tolist() == [1.0] * 18


def test_samples_that_no_run_scored_are_kept() -> None:
    policy = StaticEL2N(0.5)
    policy.scores = torch.tensor([0.1, torch.nan, 0.3, 0.2])
    assert policy.plan(info(0, samples=6)).index.tolist() == [1, 4, 5]


def test_processes_plan_with_the_scores_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training may differ between processes."""
    policy, first = StaticEL2N(runs=1), torch.rand(60)
    monkeypatch.setattr(distributed, "gather", lambda own: [[first], [own]])
    policy.prepare(linear, Data())
    assert policy.scores is first


def test_training_without_scores_is_refused() -> None:
    with pytest.raises(ValueError, match=r"StaticEL2N has no scores: call policy.prepare\(make"):
        StaticEL2N().plan(info(0))
