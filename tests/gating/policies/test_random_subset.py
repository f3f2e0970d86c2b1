"""The random subset: equal turns for all rows, and nothing but seed and epoch matters."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import RandomSubset, rng
from astkit.gating import RunInfo, Selection

rates, sizes, seeds = st.floats(0.01, 1), st.integers(1, 60), st.integers(0, 2**32 - 1)


def plan(policy: RandomSubset, epoch: int, samples: int) -> Selection:
    return policy.plan(RunInfo(samples, torch.arange(samples), epoch, 0, 0.5))


@settings(deadline=None, max_examples=30)
@given(rates, seeds, sizes, st.integers(0, 20))
def test_epochs_are_consecutive_parts_of_shuffles(rate, seed, samples, epoch):
    size = max(1, round(rate * samples))
    shuffles = range((epoch + 1) * size // samples + 1)
    rows = torch.cat([rng.permutation(samples, seed, "random-subset", n) for n in shuffles])
    chosen = plan(RandomSubset(rate, seed), epoch, samples)
    assert chosen.index.equal(rows[epoch * size :][:size])
