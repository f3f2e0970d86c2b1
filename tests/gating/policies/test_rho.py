"""RHO: the rows of a batch whose losses are highest above those of a model that never saw them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from astkit.gating.policies.rho import Rho
from tests.gating.policies.recorded import info, linear

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
HELD = torch.rand(48, generator=torch.Generator().manual_seed(1))


def test_rows_are_chosen_by_their_loss_above_the_holdout_loss() -> None:
    policy, model = Rho(HELD.tolist(), 0.25), linear()
    for rows in torch.randperm(48, generator=torch.Generator().manual_seed(2)).split(12):
        chosen = policy(model, X[rows], Y[rows], rows)
        excess = F.cross_entropy(model(X[rows]), Y[rows], reduction="none").detach() - HELD[rows]
        best = sorted(range(12), key=lambda i: -float(excess[i]))[:3]
        assert sorted(chosen.index.tolist()) == sorted(best)


def test_rows_without_a_holdout_loss_count_as_zero() -> None:
    nan = torch.nan
    policy, labels = Rho([nan, 0.0, nan, nan], 0.5), torch.zeros(4, dtype=torch.int64)
    chosen = policy(nn.Identity(), torch.zeros(4, 3), labels, torch.arange(4))
    assert 1 in chosen.index.tolist()  # its loss is ln 3, the others count as 0


def test_too_few_holdout_losses_are_refused() -> None:
    with pytest.raises(ValueError, match=r"holdout_losses has 40 numbers, but .* rows 36 to 47: "):
        Rho(HELD[:40])(linear(), X[36:], Y[36:], torch.arange(36, 48))
    with pytest.raises(ValueError, match="holdout_losses has 40 numbers, but the data set has 60"):
        Rho(HELD[:40]).check(info(0))
