"""The arms of the comparison: same batches, same start, and budgets as they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from astkit.logic_ca import gated, tasks
from astkit.logic_ca.config import LogicCAConfig
from astkit.trainers import Budget

LIFE = replace(tasks.game_of_life(), config=LogicCAConfig(1, 4, (8, 4, 2, 1), (8, 8, 4, 2, 1)))


def test_arms_spend_what_they_may() -> None:
    found = gated.compare_arms(1, task=LIFE, iterations=50, rate=0.25, device="cpu")
    arms = {result["arm"]: result for result in found}
    assert list(arms) == list(gated.ARMS)
    dense, gate, equal, random = arms.values()
    assert dense["samples_trained"] == 1000
    assert gate["samples_scored"] == 1000
    assert gate["samples_trained"] + gate["samples_skipped"] == 1000
    assert gate["samples_trained"] < 500
    assert gate["flops"] <= equal["flops"] <= gate["flops"] + dense["flops"] / 50
    assert random["samples_trained"] == 240
    assert random["samples_unloaded"] == 2 * 384
    assert dense["rate"] is None
    assert 0 < gate["rate"] < 0.6


def test_arms_start_from_the_same_automaton() -> None:
    made = [
        gated.arm_trainer(arm, 2, task=LIFE, device="cpu", budget=budget)
        for arm, budget in (
            ("dense", None),
            ("gate", None),
            ("dense, equal FLOPs", Budget(flops=1)),
        )
    ]
    states = [trainer.model.state_dict() for trainer in made]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in states[0])
    assert {trainer.config.schedule for trainer in made} == {"cosine"}


def test_an_unknown_arm_and_a_missing_budget_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown arm 'best': choose one of dense, gate"):
        gated.arm_trainer("best", 0)
    with pytest.raises(ValueError, match="budget is None for the arm 'dense, equal FLOPs'"):
        gated.arm_trainer("dense, equal FLOPs", 0)
    with pytest.raises(ValueError, match="for the arm 'dense'"):
        gated.arm_trainer("dense", 0, budget=Budget(epochs=1))
