"""The random subset: equal turns for all rows, and nothing but seed and epoch matters."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import RandomSubset
from astkit.gating import RunInfo, Selection, Visit

rates, sizes, seeds = st.floats(0.01, 1), st.integers(1, 60), st.integers(0, 2**32 - 1)


def plan(policy: RandomSubset, epoch: int, samples: int) -> Selection:
    return policy.plan(RunInfo(samples, torch.arange(samples), epoch, 0, 0.5))


@settings(deadline=None, max_examples=60)
@given(rates, seeds, sizes, st.integers(0, 1000))
def test_each_epoch_has_exactly_its_share_of_the_rows(
    rate: float, seed: int, samples: int, epoch: int
) -> None:
    policy = RandomSubset(rate, seed)
    chosen, size = plan(policy, epoch, samples), max(1, round(rate * samples))
    assert len(chosen) == size == policy.expected_rows(samples)
    assert chosen.check(samples, policy) is chosen
    assert (chosen.rate, chosen.candidates, chosen.threshold) == (size / samples, samples, None)
    assert chosen.weight.tolist() == [1.0] * size


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), seeds, st.integers(0, 50))
def test_no_row_comes_twice_within_a_shuffle(
    pieces: int, size: int, seed: int, shuffle: int
) -> None:
    policy, first = RandomSubset(1 / pieces, seed), shuffle * pieces
    epochs = range(first, first + pieces)
    rows = torch.cat([plan(policy, epoch, pieces * size).index for epoch in epochs])
    assert rows.sort().values.tolist() == list(range(pieces * size))


def test_seeds_epochs_and_shuffles_differ() -> None:
    drawn = {
        tuple(plan(RandomSubset(rate, seed), epoch, 100).index.tolist())
        for rate in (0.25, 1.0)
        for seed in range(5)
        for epoch in range(8)
    }
    assert len(drawn) == 80


@settings(deadline=None, max_examples=30)
@given(rates, seeds, sizes, st.permutations(range(6)))
def test_a_plan_is_a_function_of_seed_and_epoch(
    rate: float, seed: int, samples: int, order: list[int]
) -> None:
    straight, mixed = RandomSubset(rate, seed), RandomSubset(rate, seed)
    expected = [plan(straight, epoch, samples).index for epoch in range(6)]
    for epoch in order:
        mixed.observe(Visit(torch.arange(3), torch.rand(3)))
        plan(mixed, epoch + 1, samples + 3)
        before = torch.get_rng_state()
        assert plan(mixed, epoch, samples).index.equal(expected[epoch])
        assert torch.get_rng_state().equal(before)
