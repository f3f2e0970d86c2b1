"""SeTa: groups by k-means, and the window that slides over them."""

from __future__ import annotations

import math

import pytest
import torch

from astkit import rng
from astkit.gating.policies.seta import SeTa, loss_groups
from tests.gating.policies.recorded import EPOCHS, N, follow, info, losses_of


def groups_of(values: list[float], groups: int) -> list[int]:
    """k-means by the book, from the same quantiles."""
    ordered = sorted(values)
    if ordered[0] == ordered[-1]:
        return [i // math.ceil(len(values) / groups) for i in range(len(values))]
    centres = [ordered[int((g + 0.5) * len(values) / groups)] for g in range(groups)]
    while True:
        # of two centres at the same distance, the higher one
        nearest = [min(range(groups), key=lambda g: (abs(v - centres[g]), -g)) for v in values]
        means = []
        for g in range(groups):
            held = [v for v, each in zip(values, nearest, strict=True) if each == g]
            means.append(sum(held) / len(held) if held else centres[g])
        if max(abs(a - b) for a, b in zip(means, centres, strict=True)) < 1e-12:
            return nearest
        centres = means


@pytest.mark.parametrize("groups", [1, 3, 5])
def test_the_groups_are_those_of_k_means(groups: int) -> None:
    for values in (losses_of(1)[0], torch.ones(N), torch.tensor([1.0, 1, 1, 1, 1, 9])):
        found = loss_groups(values, groups).tolist()
        assert found == groups_of(values.double().tolist(), groups)


def test_a_share_that_is_a_whole_number_of_samples_is_not_rounded_down() -> None:
    assert len(SeTa(rate=0.1).plan(info(0, samples=100))) == 10


def test_it_equals_the_published_rule() -> None:
    losses, last = losses_of().tolist(), [3.0] * N
    found = follow(SeTa(rate=0.8, groups=4, window=0.5, delta=0.75), losses_of())
    for epoch in range(EPOCHS):
        kept = rng.permutation(N, 0, "seta", epoch, 0).tolist()[: int(0.8 * N)]
        if 0 < epoch < math.floor(0.75 * EPOCHS):
            window = 2
            start = epoch % (4 - window + 1)
            group = groups_of([last[i] for i in kept], 4)
            kept = [i for i, g in zip(kept, group, strict=True) if start <= g < start + window]
        assert found[epoch] == (kept, [1.0] * len(kept), len(kept))
        for i in kept:
            last[i] = losses[epoch][i]
    assert len(found[1][0]) < len(found[0][0]) == len(found[9][0])
