"""The fast automaton against plain Python over cells and gates."""

from __future__ import annotations

import pytest
import torch

from astkit.logic_ca.tasks import hard_gates
from tests.logic_ca.examples import CONFIGS, inputs, masks_of, trained
from tests.logic_ca.reference import rollout


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_states_are_those_of_the_plain_loops(name: str, share: float) -> None:
    config = CONFIGS[name]
    model, x = trained(config), inputs(config, 2)
    masks = masks_of(config, 3, x)
    hard = hard_gates(share, sum(config.gates), seed=0, iteration=0)
    slow = torch.tensor(rollout(model, x, 3, masks, hard.tolist()), dtype=torch.float64)
    whole = {0.0: False, 1.0: True}
    torch.testing.assert_close(model(x, 3, masks, whole.get(share, hard)), slow, rtol=0, atol=1e-10)
