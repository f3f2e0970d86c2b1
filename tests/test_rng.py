"""Numbers that depend on their key alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from astkit.rng import derive, isolated, permutation, uniform

keys = st.lists(st.integers() | st.text(), max_size=4)


@settings(max_examples=30)
@given(keys)
def test_a_derived_seed_fits_every_generator_and_never_changes(key: list[int | str]) -> None:
    seed = derive(*key)
    assert 0 <= seed < 2**63
    assert seed == derive(*key)
    torch.Generator().manual_seed(seed)
    np.random.default_rng(seed)
    assert permutation(9, *key).equal(permutation(9, *key))


def test_every_part_of_a_key_and_their_order_matter() -> None:
    found: list[tuple[int | str, ...]] = [
        (), (0,), ("0",), (0, 1), (1, 0), ("01",), ("0", "1"), (0, "1"), ("a", 1), ("a1",)
    ]  # fmt: skip
    assert len({derive(*key) for key in found}) == len(found)
    # saved runs depend on it
    assert derive(0, "gate", 3) == 6847025307109701497


def test_whole_numbers_of_any_type_are_one_key() -> None:
    for one in (np.int64(1), np.uint8(1), torch.tensor(1), True):
        assert derive(one, "gate", 3) == derive(1, "gate", 3)
    with pytest.raises(TypeError, match="float"):
        derive(1.0, "gate", 3)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    st.integers(0, 2**40),
    st.randoms(use_true_random=False),
)
def test_a_number_does_not_depend_on_its_batch(index, seed, order):
    whole = uniform(torch.tensor(index), seed, "gate")
    assert whole.dtype == torch.float32
    assert bool(((whole >= 0) & (whole < 1)).all())
    alone = torch.stack([uniform(torch.tensor(i), seed, "gate") for i in index])
    assert alone.equal(whole)
    shuffled = torch.tensor(order.sample(range(len(index)), len(index)))
    assert uniform(torch.tensor(index)[shuffled], seed, "gate").equal(whole[shuffled])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_numbers() -> None:
    index = torch.arange(1_000)
    drawn = uniform(index.cuda(), 5)
    assert drawn.is_cuda
    assert drawn.cpu().equal(uniform(index, 5))


def test_numbers_are_uniform_over_indices_and_keys_and_not_tied_to_their_neighbours() -> None:
    index = torch.arange(20_000)
    draws = [uniform(index * 2**power, seed, "chi") for seed, power in enumerate((0, 8, 32))]
    draws += [torch.stack([uniform(index[7], 0, "epoch", epoch) for epoch in range(2_000)])]
    for numbers in draws:
        counts = torch.histc(numbers, 50, 0, 1).numpy()
        assert 1e-6 < chisquare(counts).pvalue < 1 - 1e-6  # nor too even
    first, second = uniform(index, 0), uniform(index, 1)
    for a, b in ((first, second), (first[:-1], first[1:]), (first, index / len(index))):
        pair = torch.stack([a, b.float()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / len(index) ** 0.5


def test_an_isolated_block_is_repeatable_and_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    with isolated("cpu"):  # without a key, from where things are
        inside = torch.rand(4)
    assert torch.rand(4).equal(inside)
    torch.set_rng_state(before)
    drawn = []
    for device, seed in (("cpu", 3), (torch.device("cpu"), 3), ("cpu", 4)):
        with isolated(device, seed, "init"):
            drawn.append(torch.rand(4).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(KeyError), isolated("cpu", 1):
        raise KeyError
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_an_isolated_block_seeds_the_gpu_it_names_and_restores_it(monkeypatch, device) -> None:
    named, current = torch.device(device).index or 0, [0]
    seeds = {0: 10, 1: 11}

    def number(place: torch.device) -> int:
        return current[0] if place.index is None else place.index

    @contextmanager
    def device_index(index: int | None) -> Iterator[None]:
        before, current[0] = current[0], current[0] if index is None else index
        yield
        current[0] = before

    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeds.update({current[0]: seed}))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda place: seeds[number(place)])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda seed, place: seeds.update({number(place): seed})
    )
    with isolated(device, 3):
        assert seeds == {0: 10, 1: 11, named: derive(3)}
        assert current == [0]
    assert seeds == {0: 10, 1: 11}
