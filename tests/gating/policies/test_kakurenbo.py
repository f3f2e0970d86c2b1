"""KAKURENBO: which samples are hidden, and how they come back."""

from __future__ import annotations

import pytest
import torch

from astkit.gating import Visit
from astkit.gating.policies.kakurenbo import Kakurenbo
from tests.gating.policies.recorded import EPOCHS, N, info, losses_of

LOSSES = losses_of()
CONFIDENCE = (-LOSSES / 2).exp()
CORRECT = LOSSES < 2


def tell(policy: Kakurenbo, epoch: int, rows: torch.Tensor, trained: bool = True) -> None:
    known = (LOSSES[epoch, rows], CORRECT[epoch, rows], CONFIDENCE[epoch, rows])
    policy.observe(Visit(rows, *known, trained))


def test_it_equals_the_published_rule() -> None:
    policy, most = Kakurenbo(hidden=0.5), 0
    for epoch in range(EPOCHS):
        chosen = policy.plan(info(epoch))
        share = 0.5 * (1, 1, 1, 0.8, 0.8, 0.8, 0.6, 0.6, 0.4, 0.4)[epoch]
        hidden = []
        if epoch:  # every sample was trained on or scored in the last epoch
            last = LOSSES[epoch - 1].tolist()
            for i in sorted(range(N), key=last.__getitem__)[: int(share * N)]:
                if CORRECT[epoch - 1, i] and CONFIDENCE[epoch - 1, i] >= 0.7:
                    hidden.append(i)
        assert chosen.score_only is not None
        assert sorted(chosen.score_only.tolist()) == sorted(hidden)
        assert chosen.index.tolist() == [i for i in range(N) if i not in hidden]
        assert chosen.lr_factor == pytest.approx(1 / (1 - share) if hidden else 1)
        assert chosen.weight.tolist() == [1.0] * len(chosen)
        tell(policy, epoch, chosen.index)
        tell(policy, epoch, chosen.score_only, trained=False)
        most = max(most, len(hidden))
    assert most > N / 4


def test_hidden_samples_that_nobody_scores_come_back() -> None:
    policy = Kakurenbo(hidden=0.5)
    policy.plan(info(0))
    tell(policy, 9, torch.arange(N))
    hidden = policy.plan(info(1)).score_only
    tell(policy, 9, torch.tensor([int(hidden[0])]), trained=False)
    assert policy.plan(info(2)).score_only.tolist() == [int(hidden[0])]


def test_a_task_without_classes_is_refused() -> None:
    policy = Kakurenbo()
    policy.plan(info(0))
    with pytest.raises(ValueError, match=r"this task has no class outputs .* such as 'infobatch'"):
        policy.observe(Visit(torch.arange(3), torch.ones(3)))
