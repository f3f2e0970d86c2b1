"""A fixed subset: which samples stay, in every epoch."""

from __future__ import annotations

import pytest
import torch

from astkit.gating.policies.subset import Subset
from tests.gating.policies.recorded import N, info

SCORES = (torch.arange(N) * 7 % N).float()  # a permutation of 0 to N - 1


@pytest.mark.parametrize(
    ("keep", "lowest"), [("highest", N - 15), ("lowest", 0), ("middle", (N - 15) // 2)]
)
def test_the_samples_with_the_scores_to_keep_stay_in_every_epoch(keep: str, lowest: int) -> None:
    policy = Subset(SCORES.numpy(), 0.25, keep)  # type: ignore[arg-type]
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    for epoch in range(3):
        found = policy.plan(info(epoch, rows=order)).index.tolist()
        assert found == [row for row in order.tolist() if lowest <= SCORES[row] < lowest + 15]


def test_equal_scores_and_small_shares_leave_at_least_one_sample() -> None:
    for keep, row in (("highest", 4), ("lowest", 0), ("middle", 2)):
        plan = Subset(torch.ones(5), 0.01, keep).plan(info(0, samples=5))  # type: ignore[arg-type]
        assert plan.index.tolist() == [row]


def test_wrong_scores_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^scores has 59 numbers, but the data set has 60 rows: "):
        Subset(SCORES[1:], 0.5).plan(info(0))
    with pytest.raises(ValueError, match=r"^keep is 'best': give one of highest, lowest, middle$"):
        Subset(SCORES, 0.5, "best")  # type: ignore[arg-type]
