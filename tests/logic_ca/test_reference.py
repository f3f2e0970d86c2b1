"""The fast automaton against plain Python over cells and gates: states and gradients."""

from __future__ import annotations

import pytest

from astkit import rng
from astkit.logic_ca.gradients import gradients
from astkit.logic_ca.tasks import hard_gates
from tests.logic_ca import reference
from tests.logic_ca.examples import CONFIGS, inputs, masks_of, trained

BOUND = 1e-10


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("hard", [False, True])
def test_states_are_those_of_the_plain_loops(name: str, hard: bool) -> None:
    config = CONFIGS[name]
    model, x = trained(config), inputs(config, 2)
    masks = masks_of(config, 3, x)
    slow = reference.rollout(reference.Weights(model), x, 3, masks, hard)
    fast = model(x, 3, masks, hard).flatten().tolist()
    values = [complex(v).real for sample in slow for c in sample for row in c for v in row]
    assert max(abs(a - b) for a, b in zip(fast, values, strict=True)) <= BOUND


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_gradients_are_those_of_complex_steps(name: str, share: float) -> None:
    config = CONFIGS[name]
    model, x = trained(config), inputs(config, 2, (3, 4))
    masks, targets = masks_of(config, 2, x), inputs(config, 2, (3, 4))[:, 0].flip(0)
    hard = hard_gates(share, sum(config.gates), seed=0, iteration=0)
    losses, found = gradients(model, x, targets, 2, masks, hard=hard)
    weights = reference.Weights(model)
    arguments = (x, targets, 2, masks, hard.tolist())
    total = complex(reference.loss(weights, *arguments)).real
    assert abs(losses.sum().item() - total) <= BOUND * total
    for number, (parameter, gradient) in enumerate(found.items()):
        rows = gradient.flatten(0, -2)
        for draw in range(2):
            key = rng.permutation(rows.numel(), number, draw)[0].item()
            gate, operation = divmod(int(key), 16)
            place = (parameter, gate, operation)
            wanted = reference.derivative(weights, place, *arguments)
            assert abs(rows[gate, operation].item() - wanted) <= BOUND * rows.abs().max(), place
