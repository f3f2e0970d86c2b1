"""RCAP: sizes of the classes, and the draws within them."""

from __future__ import annotations

import math

import torch

from astkit.gating import Visit
from astkit.gating.policies.rcap import RCAP, class_sizes
from tests.gating.policies.recorded import EPOCHS, LABELS, N, close, info, losses_of


def softmax(losses: list[float], beta: float) -> list[float]:
    powers = [math.exp(loss / beta) for loss in losses]
    return [power / sum(powers) for power in powers]


def sizes_of(counts: list[int], mass: list[float], total: float) -> list[int]:
    """By the book: cap one class after the other until none is too large."""
    capped: dict[int, int] = {}
    while True:
        left = [c for c in range(len(counts)) if c not in capped]
        roots = {c: math.sqrt(counts[c] / sum(counts) * mass[c]) for c in left}
        rest = total - sum(capped.values())
        want = {c: rest * roots[c] / sum(roots.values()) for c in left}
        over = [c for c in left if want[c] > counts[c]]
        if not over:
            return [capped.get(c, math.ceil(want.get(c, 0))) for c in range(len(counts))]
        capped |= {c: counts[c] for c in over}


def test_it_equals_the_published_rule() -> None:
    policy, losses = RCAP(rate=0.4, beta=0.5), losses_of()
    last, chosen = [math.inf] * N, set(range(N))
    for epoch in range(EPOCHS):
        clipped = [min(loss, math.log(3)) for loss in last]
        classes = [[i for i in range(N) if LABELS[i] == c] for c in range(3)]
        p = [softmax([clipped[i] for i in part], 0.5) for part in classes]
        mass = [
            sum(each for i, each in zip(part, of_class, strict=True) if i in chosen)
            for part, of_class in zip(classes, p, strict=True)
        ]
        sizes = sizes_of([len(part) for part in classes], mass, 0.4 * N)
        rows = policy.plan(info(epoch)).index
        assert len(set(rows.tolist())) == len(rows)
        assert LABELS[rows].bincount(minlength=3).tolist() == sizes
        policy.observe(Visit(rows, losses[epoch][rows]))
        chosen = set(rows.tolist())
        for i in chosen:
            last[i] = float(losses[epoch, i])


def test_class_sizes() -> None:
    assert class_sizes([990, 10], [1.0, 1.0], 500) == [490, 10]  # a class is used up
    for counts, mass, total in (([50, 7, 3], [0.5, 0.9, 0.9], 40), ([8, 8, 1], [0.1, 1, 1], 9)):
        assert class_sizes(counts, mass, total) == sizes_of(counts, mass, total)
    assert class_sizes([5, 5], [0.0, 0.0], 4) == [2, 2]
    assert class_sizes([9, 9], [1.0, 0.0], 4) == [4, 1]  # a mass too small for a float64


def test_within_a_class_draws_follow_the_softmax() -> None:
    labels, losses, plans = torch.tensor([0] * 4 + [1] * 4), torch.linspace(0, 0.6, 8), 400
    found = torch.zeros(8)
    for seed in range(plans):
        policy = RCAP(rate=0.25, beta=0.5)
        policy.plan(info(0, samples=8, labels=labels))
        policy.observe(Visit(torch.arange(8), losses))
        policy.chosen[:] = True
        rows = policy.plan(info(1, samples=8, labels=labels, seed=seed)).index
        found[rows] += 1
        assert len(rows) == 2
    expected = torch.tensor(softmax(losses[:4].tolist(), 0.5) + softmax(losses[4:].tolist(), 0.5))
    assert close(found / plans, expected, plans)
