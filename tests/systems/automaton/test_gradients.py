"""Four ways to one gradient, equal in float64 up to rounding."""

from typing import Any

import pytest
import torch
from torch import Tensor

from astkit.systems.automaton.automaton import LogicCA
from astkit.systems.automaton.gradients import gradients
from tests.systems.automaton.examples import CONFIGS, SYNC, half_hard, inputs, masks_of, trained

BATCH, STEPS = 5, 4
WAYS: tuple[Any, ...] = ("batch", "vmap", 1, 2, BATCH)


def case(name: str) -> tuple[LogicCA, Tensor, Tensor, int, Tensor | None]:
    config = CONFIGS[name]
    x = inputs(config, BATCH)
    targets = inputs(config, BATCH + 1)[:BATCH, 0].round()
    return trained(config), x, targets, STEPS, masks_of(config, STEPS, x)


def assert_equal(found: Any, wanted: Any, bound: float = 1e-12) -> None:
    assert found[0].shape == wanted[0].shape == (BATCH,)
    for a, b in zip([found[0], *found[1].values()], [wanted[0], *wanted[1].values()], strict=True):
        assert (a - b).abs().max() <= bound * b.abs().max()


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_way_gives_the_losses_and_gradients_of_the_loop(name: str) -> None:
    arguments = case(name)
    hard = half_hard(CONFIGS[name])
    counts = torch.tensor([1, 0, 2, 0.5, 1], dtype=torch.float64)
    for parameter in arguments[0].parameters():
        parameter.grad = torch.full_like(parameter, 7)
    wanted = gradients(*arguments, parallel="loop")
    model, x, targets, steps, masks = arguments
    losses = (model(x, steps, masks)[:, 0] - targets).square().sum((1, 2))
    slopes = torch.autograd.grad(losses.sum(), list(model.parameters()))
    assert_equal((losses, dict(enumerate(slopes))), wanted)
    assert all(part.abs().max() > 1e-9 for part in wanted[1].values())
    assert list(wanted[1]) == [name for name, _ in model.named_parameters()]
    weighted = gradients(*arguments, parallel="loop", weight=counts, hard=hard)
    assert (weighted[0] - wanted[0]).abs().max() > 1e-3  # hard gates give other losses
    for way in WAYS:
        assert_equal(gradients(*arguments, parallel=way), wanted)
        found = gradients(*arguments, weight=counts, hard=hard, parallel=way)
        assert_equal(found, weighted)
    assert all((parameter.grad == 7).all() for parameter in model.parameters())


def test_wrong_arguments_are_refused() -> None:
    for parallel in ("threads", 0):
        with pytest.raises(
            ValueError, match=f'parallel is {parallel!r} for 5 samples: give "batch'
        ):
            gradients(*case("sync"), parallel=parallel)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"for 0 samples: give .* 1 sample or more"):
        gradients(trained(SYNC), torch.zeros(0, 2, 5, 4), torch.zeros(0, 5, 4), 1)
    model, x, targets, *rest = case("sync")
    for parallel in ("batch", "vmap", "loop"):
        for wrong in (targets[:, None], targets[:1, :1]):
            with pytest.raises(
                ValueError, match=r"targets has shape \[.*\]: give \[\d, 5, 4\], the"
            ):
                gradients(model, x, wrong.expand(5, *wrong.shape[1:]), *rest, parallel=parallel)
