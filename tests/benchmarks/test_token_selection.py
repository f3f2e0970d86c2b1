"""The criterion that selects tokens equals a slow loop."""

from __future__ import annotations

import math
from statistics import mean

import pytest
import torch
import torch.nn.functional as F

from astkit.gating import row_losses
from astkit.tasks import task
from tests.benchmarks.token_selection import TokenSelection, with_reference


def test_tokens_of_the_largest_excess_loss_are_trained_with_equal_weight() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=random)
    labels = torch.randint(4, (3, 5), generator=random)
    labels[2, 3:] = -100
    reference = torch.rand(3, 5, generator=random)
    batch = {"labels": labels, "reference": reference}
    losses, mask = TokenSelection(0.4)(logits, batch)
    every = [
        (F.cross_entropy(logits[i, j], labels[i, j]).item() - reference[i, j].item(), i, j)
        for i in range(3)
        for j in range(5)
        if labels[i, j] != -100
    ]
    best = {(i, j) for _, i, j in sorted(every, reverse=True)[:5]}  # 0.4 of 13
    assert {tuple(place) for place in mask.nonzero().tolist()} == best
    expected = mean(F.cross_entropy(logits[i, j], labels[i, j]).item() for i, j in best)
    rows = row_losses(TokenSelection(0.4), logits, batch)
    assert rows.mean().item() == pytest.approx(expected)
    assert losses.shape == mask.shape
    for share in (0, 1.1, math.nan):
        with pytest.raises(ValueError, match="share is"):
            TokenSelection(share)
    with pytest.raises(ValueError, match="no column 'reference': call with_reference"):
        TokenSelection()(logits, {"labels": labels})


def test_a_reference_is_the_loss_of_each_token() -> None:
    made = task("language")
    model = made["make_model"]().eval()
    data = with_reference(made["test"], model, rows=50)
    row = data[51]
    logits = model(row["tokens"][None])[0]
    assert row["reference"].allclose(F.cross_entropy(logits, row["labels"], reduction="none"))
    assert len(data) == len(made["test"])
