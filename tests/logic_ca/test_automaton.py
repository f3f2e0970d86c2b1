"""The automaton: fused or plain, at once or state by state, it is one and the same."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.tasks import fire_masks
from tests.logic_ca.examples import ASYNC, CONFIGS, SYNC, inputs, masks_of, trained

NAMES = sorted(CONFIGS)


def gradient(model: LogicCA, x: torch.Tensor, *args: Any, **ways: Any) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = model(x, *args, **ways)
    parts = torch.autograd.grad(out.square().sum(), [x, *model.parameters()])
    return [out.detach(), *parts]


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_compute_it_gives_the_same(name: str) -> None:
    config = CONFIGS[name]
    model, x = trained(config), inputs(config, 3)
    masks = masks_of(config, 5, x)
    plain = gradient(model, x, 5, masks)
    for ways in ({"fused": False}, {"recompute": 2}, {"recompute": 9}):
        for a, b in zip(plain, gradient(model, x, 5, masks, **ways), strict=True):
            assert (a - b).abs().max() <= 1e-13 * b.abs().max()
    with torch.no_grad():
        assert torch.equal(model(x, 5, masks), plain[0])


@pytest.mark.parametrize("name", NAMES)
def test_its_gradients_are_those_of_differences(name: str) -> None:
    model, x = trained(CONFIGS[name]), inputs(CONFIGS[name], 2, (3, 4)).requires_grad_()
    masks = masks_of(CONFIGS[name], 2, x)

    def run(x: torch.Tensor, *logits: torch.Tensor) -> torch.Tensor:
        weights = dict(zip(names, logits, strict=True))
        return torch.func.functional_call(model, weights, (x, 2, masks))

    names = [name for name, _ in model.named_parameters()]
    assert torch.autograd.gradcheck(run, (x, *model.parameters()), fast_mode=True)


def test_hard_gates_keep_bits_bits_and_soft_ones_tend_to_them() -> None:
    model = trained(SYNC)
    bits = torch.randint(2, (3, 2, 5, 4), generator=torch.Generator().manual_seed(0)).double()
    hard = model(bits, 6, hard=True)
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e5)
    torch.testing.assert_close(model(bits, 6), hard, rtol=0, atol=1e-6)


def test_some_gates_are_hard_and_learn_as_if_they_were_soft() -> None:
    model, x = trained(SYNC), inputs(SYNC, 2)
    all_of_them = torch.ones(sum(SYNC.gates), dtype=torch.bool)
    torch.testing.assert_close(model(x, 4, None, all_of_them), model(x, 4, hard=True))
    assert torch.equal(model(x, 4, None, ~all_of_them), model(x, 4))
    model(x, 4, None, all_of_them).sum().backward()
    assert all(parameter.grad.any() for parameter in model.parameters())  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"hard has shape \[3\]: give \[64\]"):
        model(x, 4, None, all_of_them[:3])


def test_a_saved_automaton_brings_its_wiring_along() -> None:
    source = trained(SYNC)
    other = LogicCA(replace(SYNC, seed=99)).double()
    x = inputs(SYNC, 2)
    assert source.wiring_hash != other.wiring_hash
    other.load_state_dict(copy.deepcopy(source.state_dict()))
    assert source.wiring_hash == other.wiring_hash
    assert torch.equal(source(x, 4), other(x, 4))
    assert not [name for name in source.state_dict() if "rows" in name]


def test_a_cell_that_does_not_fire_stays_as_it_is() -> None:
    model = trained(ASYNC)
    x = torch.rand(3, 2, 6, 7, dtype=torch.float64, requires_grad=True)
    masks = fire_masks(0.6, 1, [0, 1, 2], 6, 7, seed=5, iteration=0)
    new, free = model(x, 1, masks), model(x, 1, torch.ones_like(masks))
    idle = ~masks[0].expand_as(x)
    assert torch.equal(new[idle], x[idle])  # in all channels
    assert torch.equal(new[~idle], free[~idle])
    assert (free[idle] != x[idle]).all()


def test_the_gradient_of_a_cell_that_never_fires_is_its_own() -> None:
    model = trained(ASYNC)
    x = torch.rand(1, 2, 6, 7, dtype=torch.float64, requires_grad=True)
    masks = torch.ones(4, 1, 1, 6, 7, dtype=torch.bool)
    masks[..., 2, 3] = False
    (of_x,) = torch.autograd.grad(model(x, 4, masks)[0, 1, 2, 3], x)
    wanted = torch.zeros_like(x)
    wanted[0, 1, 2, 3] = 1
    assert torch.equal(of_x, wanted)


def test_wrong_inputs_are_refused() -> None:
    for shape, steps, ways, told in (
        ((2, 3, 5, 4), 1, {}, r"x has shape \[2, 3, 5, 4\]: give \[batch, 2,"),
        ((2, 5, 4), 1, {}, r"x has shape \[2, 5, 4\]"),
        ((2, 2, 5, 4), 0, {}, "steps is 0: give 1 or more"),
        ((2, 2, 5, 4), 3, {"recompute": 0}, "recompute is 0: give 1 step or more"),
    ):
        with pytest.raises(ValueError, match=told):
            LogicCA(SYNC)(torch.zeros(shape), steps, **ways)
    x, masks = torch.zeros(1, 2, 6, 7), torch.ones(4, 1, 1, 6, 7, dtype=torch.bool)
    with pytest.raises(ValueError, match="masks is None, but the fire rate is"):
        LogicCA(ASYNC)(x, 1)
    with pytest.raises(ValueError, match=r"masks has shape \[4, 1, 1, 6, 7\]: give \[3, 1,"):
        LogicCA(ASYNC)(x, 3, masks)
