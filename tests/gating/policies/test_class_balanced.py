"""Class-balanced sampling: equal shares for classes, equal turns within a class."""

import pytest
import torch

from astkit.gating.policies.class_balanced import ClassBalanced
from tests.gating.policies.recorded import info

LABELS = torch.tensor([0] * 40 + [3] * 14 + [1] * 5 + [7])  # 60 samples of four classes


@pytest.mark.parametrize("rate", [1.0, 0.45])
def test_classes_have_equal_shares_and_samples_equal_turns(rate: float) -> None:
    total, extras = round(rate * 60), torch.zeros(8)
    visits, plans = torch.zeros(60), 200
    for epoch in range(plans):
        chosen = ClassBalanced(rate).plan(info(epoch, labels=LABELS))
        assert len(chosen) == total
        assert chosen.weight.tolist() == [1.0] * total
        shares = LABELS[chosen.index].bincount(minlength=8)
        assert set(shares[[0, 1, 3, 7]].tolist()) <= {total // 4, -(-total // 4)}
        turns = chosen.index.bincount(minlength=60)
        for label in (0, 1, 3, 7):
            of_class = turns[label == LABELS]
            assert of_class.max() - of_class.min() <= 1
        visits, extras = visits + turns, extras + (shares > total // 4)
    mean = plans * total / 4 / LABELS.bincount()[LABELS]
    assert bool(((visits - mean).abs() < 4.5 * mean.sqrt()).all())
    if total % 4:  # classes take turns at what does not divide
        assert bool((extras[[0, 1, 3, 7]] - plans * (total % 4) / 4).abs().max() < 35)
