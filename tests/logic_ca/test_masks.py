"""Fire masks: as many cells as the rate says, each sample's own, the same for all channels."""

from __future__ import annotations

import pytest
import torch

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.masks import fire_masks, hard_gates
from tests.logic_ca.examples import ASYNC, trained


def draw(samples: list[int], iteration: int = 0, seed: int = 5) -> torch.Tensor:
    return fire_masks(0.6, 4, samples, 6, 7, seed=seed, iteration=iteration)


def test_the_share_of_cells_that_fire_is_the_rate() -> None:
    masks = fire_masks(0.6, 10, range(10), 100, 100, seed=1, iteration=0)
    assert masks.numel() == 1_000_000
    assert abs(masks.float().mean().item() - 0.6) <= 0.005
    assert fire_masks(1.0, 3, [0], 5, 5, seed=1, iteration=0).all()


def test_a_samples_masks_depend_on_its_own_key_alone() -> None:
    masks = draw([3, 8, 1])
    assert masks.shape == (4, 3, 1, 6, 7)
    assert masks.dtype == torch.bool
    assert torch.equal(masks[:, 1:2], draw([8]))
    others = [draw([3]), draw([3], iteration=1), draw([3], seed=6), draw([8])]
    for i, one in enumerate(others):
        assert not any(torch.equal(one, other) for other in others[i + 1 :])
    assert not torch.equal(masks[0], masks[1])


def test_the_share_of_hard_gates_is_as_asked_and_drawn_anew_each_iteration() -> None:
    drawn = [hard_gates(0.3, 100_000, seed=1, iteration=i) for i in (0, 1)]
    for one in drawn:
        assert abs(one.float().mean().item() - 0.3) <= 0.01
    assert abs((drawn[0] & drawn[1]).float().mean().item() - 0.09) <= 0.01
    assert torch.equal(drawn[0], hard_gates(0.3, 100_000, seed=1, iteration=0))
    assert hard_gates(1, 9, seed=0, iteration=0).all()
    assert not hard_gates(0, 9, seed=0, iteration=0).any()


def test_impossible_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="hard_share is 2: give a share"):
        hard_gates(2, 9, seed=0, iteration=0)
    with pytest.raises(ValueError, match="fire_rate is 0: give a share"):
        fire_masks(0, 1, [0], 2, 2, seed=0, iteration=0)
    with pytest.raises(ValueError, match="samples is empty"):
        draw([])


def test_a_cell_that_does_not_fire_stays_as_it_is() -> None:
    model = trained(ASYNC)
    x = torch.rand(3, 2, 6, 7, dtype=torch.float64, requires_grad=True)
    masks = draw([0, 1, 2])[:1]
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


def test_an_asynchronous_automaton_asks_for_masks() -> None:
    model = LogicCA(ASYNC)
    with pytest.raises(ValueError, match="masks is None, but the fire rate is"):
        model(torch.zeros(1, 2, 6, 7), 1)
    with pytest.raises(ValueError, match=r"masks has shape \[4, 1, 1, 6, 7\]: give \[3, 1,"):
        model(torch.zeros(1, 2, 6, 7), 3, draw([0]))
