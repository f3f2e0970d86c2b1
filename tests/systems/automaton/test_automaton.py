"""The automaton: equal to plain Python over cells and gates; its wiring: pairs that differ."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton import automaton
from astkit.systems.automaton.automaton import LogicCA, unique_pairs
from astkit.systems.automaton.tasks import checkerboard, checkerboard_async, game_of_life
from tests.systems.automaton.examples import (
    ASYNC,
    CONFIGS,
    SYNC,
    half_hard,
    inputs,
    masks_of,
    trained,
)
from tests.systems.automaton.reference import rollout

NAMES = sorted(CONFIGS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hard", [False, True, "half"])
def test_states_are_those_of_the_plain_loops(name: str, hard: Any) -> None:
    config = CONFIGS[name]
    model, x = trained(config), inputs(config, 2)
    masks = masks_of(config, 3, x)
    which = half_hard(config) if hard == "half" else torch.full((sum(config.gates),), hard)
    slow = torch.tensor(rollout(model, x, 3, masks, which.tolist()), dtype=torch.float64)
    fast = model(x, 3, masks, which if hard == "half" else hard)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_its_gradients_are_those_of_differences(name: str) -> None:
    model, x = trained(CONFIGS[name]), inputs(CONFIGS[name], 2, (3, 4)).requires_grad_()
    masks = masks_of(CONFIGS[name], 2, x)

    def run(x: torch.Tensor, *logits: torch.Tensor) -> torch.Tensor:
        weights = dict(zip(names, logits, strict=True))
        return torch.func.functional_call(model, weights, (x, 2, masks))

    names = [name for name, _ in model.named_parameters()]
    assert torch.autograd.gradcheck(run, (x, *model.parameters()), fast_mode=True)


def test_the_presets_have_the_gates_of_the_source() -> None:
    for task, gates, read in (
        (game_of_life(), (240, 2303), 17),
        (checkerboard(), (224, 2816), 264),
        (checkerboard_async(), (224, 3840), 264),
    ):
        assert (task.config.gates, task.config.update_inputs) == (gates, read)
    assert sum(p.numel() for p in LogicCA(game_of_life().config).parameters()) == 16 * 2543
    assert checkerboard().config.gates_per_cell == 8 * 224 + 2816


def test_sizes_that_do_not_fit_are_refused() -> None:
    for changes, told in (
        ({"kernel_layers": (4, 2)}, "kernel_layers is (4, 2)"),
        ({"update_layers": (128, 64)}, "end the other with the number of channels, 8"),
        ({"boundary": "open"}, "boundary is 'open': give one of periodic, zero"),
        ({"fire_rate": 0.0}, "fire_rate is 0.0: give a share above 0 and at most 1"),
        ({"update_layers": (100, 8)}, "a layer of 100 gates cannot follow 264 values"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            replace(checkerboard().config, **changes)  # type: ignore[arg-type]


def test_wrong_inputs_are_refused() -> None:
    x = torch.zeros(1, 2, 6, 7)
    masks = torch.ones(4, 1, 1, 6, 7, dtype=torch.bool)
    for config, states, steps, ways, told in (
        (SYNC, torch.zeros(2, 3, 5, 4), 1, {}, r"x has shape \[2, 3, 5, 4\]: give \[batch, 2,"),
        (ASYNC, x, 1, {}, "masks is None, but the fire rate is"),
        (ASYNC, x, 3, {"masks": masks}, r"masks has shape \[4, 1, 1, 6, 7\]: give \[3, 1,"),
    ):
        with pytest.raises(ValueError, match=told):
            LogicCA(config)(states, steps, **ways)


def test_hard_gates_have_the_gradients_of_soft_ones() -> None:
    random = torch.Generator().manual_seed(2)
    logits = torch.randn(50, 16, generator=random, requires_grad=True)
    some = torch.rand(50, generator=random) < 0.5
    soft, hard, mixed = (automaton.coefficients(logits, way) for way in (False, True, some))
    assert [tuple(row) for row in hard.tolist()] == [automaton.BASIS[i] for i in logits.argmax(-1)]
    assert torch.equal(mixed, torch.where(some[:, None], hard, soft))
    wanted, *slopes = (torch.autograd.grad(c[:, 3].sum(), logits)[0] for c in (soft, hard, mixed))
    for slope in slopes:
        torch.testing.assert_close(slope, wanted)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pairs_differ_and_lie_in_range(data: st.DataObject) -> None:
    inputs = data.draw(st.integers(2, 40))
    outputs = data.draw(st.integers(-(-inputs // 2), inputs * (inputs - 1) // 2))
    table = unique_pairs(inputs, outputs, rng.generator(data.draw(st.integers(0, 9))))
    assert table.shape == (2, outputs)
    assert len(table.unique(dim=1).T) == outputs
    assert (table[0] < table[1]).all()
    assert set(table.flatten().tolist()) == set(range(inputs))
