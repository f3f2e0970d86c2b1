"""The random subset: equal turns for all rows, and nothing but seed and epoch matters."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.gating import RandomSubset

rates = st.floats(0.01, 1)
sizes = st.integers(1, 60)
seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(rates, seeds, sizes, st.integers(0, 1000))
def test_each_epoch_has_exactly_its_share_of_the_rows(
    rate: float, seed: int, num_samples: int, epoch: int
) -> None:
    chosen = RandomSubset(rate, seed).select(epoch, num_samples)
    size = max(1, round(rate * num_samples))
    assert len(chosen) == size
    assert chosen.index.dtype == torch.int64
    assert bool(((chosen.index >= 0) & (chosen.index < num_samples)).all())
    assert chosen.rate == size / num_samples
    assert chosen.candidates == num_samples
    assert chosen.weight.tolist() == [1.0] * size
    assert chosen.threshold is None


@settings(deadline=None)
@given(rates, seeds, sizes)
def test_over_whole_shuffles_every_row_comes_equally_often(
    rate: float, seed: int, num_samples: int
) -> None:
    sampler = RandomSubset(rate, seed)
    size = max(1, round(rate * num_samples))
    epochs = math.lcm(size, num_samples) // size
    visits: Counter[int] = Counter()
    for epoch in range(epochs):
        visits.update(sampler.select(epoch, num_samples).index.tolist())
        # at no time is a row more than two turns ahead of another
        counts = [visits[row] for row in range(num_samples)]
        assert max(counts) - min(counts) <= 2
    assert set(counts) == {epochs * size // num_samples}


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), seeds, st.integers(0, 50))
def test_no_row_comes_twice_within_a_shuffle(
    pieces: int, size: int, seed: int, shuffle: int
) -> None:
    num_samples = pieces * size
    sampler = RandomSubset(1 / pieces, seed)
    first = shuffle * pieces
    rows = [
        row
        for epoch in range(first, first + pieces)
        for row in sampler.select(epoch, num_samples).index.tolist()
    ]
    assert sorted(rows) == list(range(num_samples))


def test_a_rate_of_1_shuffles_everything_anew_each_epoch() -> None:
    sampler = RandomSubset(1.0)
    first, second = (sampler.select(epoch, 50).index for epoch in (0, 1))
    assert first.sort().values.equal(torch.arange(50))
    assert second.sort().values.equal(torch.arange(50))
    assert not first.equal(second)


def test_seeds_and_shuffles_differ() -> None:
    drawn = {
        tuple(RandomSubset(0.25, seed).select(epoch, 100).index.tolist())
        for seed in range(5)
        for epoch in range(8)
    }
    assert len(drawn) == 40


def test_pairs_of_rows_meet_as_often_as_chance_has_it() -> None:
    # rows 0 and 1 fall into the same quarter with probability (n / 4 - 1) / (n - 1)
    sampler, epochs = RandomSubset(0.25), 2000
    together = 0
    for epoch in range(epochs):
        together += {0, 1} <= set(sampler.select(epoch, 20).index.tolist())
    expected = epochs * 0.25 * 4 / 19
    assert together == pytest.approx(expected, abs=5 * math.sqrt(expected))


@settings(deadline=None)
@given(rates, seeds, sizes, st.permutations(range(6)))
def test_a_selection_is_a_function_of_seed_and_epoch(
    rate: float, seed: int, num_samples: int, order: list[int]
) -> None:
    straight = RandomSubset(rate, seed)
    expected = [straight.select(epoch, num_samples).index for epoch in range(6)]
    mixed = RandomSubset(rate, seed)
    for epoch in order:
        torch.rand(1)
        mixed.observe(torch.arange(3), torch.rand(3))
        mixed.select(epoch + 1, num_samples + 3)
        assert mixed.select(epoch, num_samples).index.equal(expected[epoch])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    RandomSubset(0.3).select(4, 100)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("rate", [0, -1, 1.5, math.nan, math.inf])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=rf"rate is {rate}, but a rate is a share of the samples"):
        RandomSubset(rate)


def test_a_saved_state_goes_on_as_before() -> None:
    sampler, resumed = RandomSubset(0.3, seed=7), RandomSubset(0.9)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for epoch in range(5):
        assert resumed.select(epoch, 40).index.equal(sampler.select(epoch, 40).index)
