"""Four ways to one gradient, equal in float64 up to rounding."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.gradients import denormals_flushed, gradients
from astkit.logic_ca.tasks import hard_gates
from tests.logic_ca.examples import CONFIGS, SYNC, inputs, masks_of, trained

BATCH, STEPS = 5, 4
WAYS: list[dict[str, Any]] = [
    {"parallel": "batch"},
    {"parallel": "batch", "recompute": 3},
    {"parallel": "vmap"},
    {"parallel": "vmap", "chunk_size": 2},
    {"parallel": "chunk", "chunk_size": 1},
    {"parallel": "chunk", "chunk_size": 2},
    {"parallel": "chunk", "chunk_size": BATCH},
    {"parallel": "chunk", "chunk_size": 2, "recompute": 2},
]


def case(name: str, seed: int = 0) -> tuple[LogicCA, Tensor, Tensor, int, Tensor | None]:
    config = CONFIGS[name]
    x = inputs(config, BATCH + seed)[:BATCH]
    targets = inputs(config, BATCH + seed + 1)[:BATCH, 0].round()
    return trained(config), x, targets, STEPS, masks_of(config, STEPS, x)


def assert_equal(found: Any, wanted: Any, bound: float = 1e-12) -> None:
    assert found[0].shape == wanted[0].shape == (BATCH,)
    for a, b in zip([found[0], *found[1].values()], [wanted[0], *wanted[1].values()], strict=True):
        assert (a - b).abs().max() <= bound * b.abs().max()


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_way_gives_the_losses_and_gradients_of_the_loop(name: str) -> None:
    arguments = case(name)
    hard = hard_gates(0.5, sum(CONFIGS[name].gates), seed=0, iteration=0)
    counts = torch.tensor([1, 0, 2, 0.5, 1], dtype=torch.float64)
    wanted = gradients(*arguments, parallel="loop")
    model, x, targets, steps, masks = arguments
    losses = (model(x, steps, masks)[:, 0] - targets).square().sum((1, 2))
    slopes = torch.autograd.grad(losses.sum(), list(model.parameters()))
    assert_equal((losses, dict(enumerate(slopes))), wanted)
    assert all(part.abs().max() > 1e-9 for part in wanted[1].values())
    assert list(wanted[1]) == [name for name, _ in arguments[0].named_parameters()]
    weighted = gradients(*arguments, parallel="loop", weight=counts, hard=hard)
    assert (weighted[0] - wanted[0]).abs().max() > 1e-3  # hard gates give other losses
    for ways in WAYS:
        assert_equal(gradients(*arguments, **ways), wanted)
        assert_equal(gradients(*arguments, weight=counts, hard=hard, **ways), weighted)


def test_a_dropped_sample_is_seen() -> None:
    """The comparison above fails where one sample's gradient is missing, whichever it is."""
    arguments = case("async")
    wanted = gradients(*arguments, parallel="loop")
    for dropped in range(BATCH):
        counts = torch.ones(BATCH, dtype=torch.float64)
        counts[dropped] = 0
        mutant = gradients(*arguments, weight=counts)
        with pytest.raises(AssertionError):
            assert_equal(mutant, wanted)
        assert_equal((mutant[0], wanted[1]), wanted)  # it is the gradient that tells


def test_gradients_that_are_there_stay_as_they_are() -> None:
    arguments = case("sync")
    for parameter in arguments[0].parameters():
        parameter.grad = torch.full_like(parameter, 7)
    for ways in WAYS:
        gradients(*arguments, **ways)
    assert all((parameter.grad == 7).all() for parameter in arguments[0].parameters())


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_zero_within_the_block_alone(before: bool) -> None:
    small = torch.tensor([1e-39, 2.0])
    if not torch.set_flush_denormal(before):
        pytest.skip("this CPU cannot flush denormals")
    try:
        with denormals_flushed():
            assert (small * 1.0).tolist() == [0.0, 2.0]
        assert ((small * 1.0)[0].item() == 0.0) == before
        with pytest.raises(RuntimeError, match="boom"), denormals_flushed():
            raise RuntimeError("boom")
        assert ((small * 1.0)[0].item() == 0.0) == before
    finally:
        torch.set_flush_denormal(False)


def test_wrong_arguments_are_refused() -> None:
    for ways, told in (
        ({"parallel": "threads"}, "parallel is 'threads': choose one of batch, vmap, chunk, loop"),
        ({"parallel": "chunk"}, 'parallel is "chunk", but chunk_size is None'),
        ({"parallel": "batch", "chunk_size": 2}, "chunk_size is 2 with parallel='batch'"),
        ({"parallel": "chunk", "chunk_size": 0}, "chunk_size is 0 with parallel='chunk'"),
        ({"parallel": "vmap", "recompute": 2}, 'recompute is 2, but parallel is "vmap"'),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            gradients(*case("sync"), **ways)
    with pytest.raises(ValueError, match="x has no samples"):
        gradients(trained(SYNC), torch.zeros(0, 2, 5, 4), torch.zeros(0, 5, 4), 1)
