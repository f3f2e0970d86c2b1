"""Arguments of a comparison: labels of policies, and policies that were used before."""

from __future__ import annotations

from typing import Any

import pytest

from astkit import Budget, Gate, Policy, Trainer
from astkit.comparison.arguments import checked_methods, label_of
from astkit.gating import InfoBatch, OriginPI, as_policy
from astkit.names import REGISTRIES
from astkit.trainers.fingerprint import plain
from tests.comparison.small_tasks import TRAIN, classes, make_model


def test_labels_name_the_arguments_given() -> None:
    class Mine(Policy):
        def __init__(self, first: float = 1.0, score: Any = None) -> None:
            self.first, self.score = first, score

    for policy, label in (
        ("infobatch", "infobatch"),
        (InfoBatch(seed=4), "infobatch"),
        ({"name": "gate", "score": "el2n", "target_rate": 0.25}, "gate(0.25, score=el2n)"),
        ({"name": "gate", "target_rate": 0.1, "seed": 3}, "gate(0.1)"),
        (Gate(0.25), "gate(0.25)"),
        (Gate(0.2, "el2n", fallback=0), "gate(0.2, score=el2n, fallback=0)"),
        (Gate(controller=OriginPI(0.3)), "gate(0.3, controller=OriginPI)"),
        (InfoBatch(0.3, 1.0), "infobatch(0.3, delta=1.0)"),
        (Mine(), "Mine"),
        (Mine(2.0, print), "Mine(2.0, score=builtin_function_or_method)"),
    ):
        assert label_of(policy) == label


@pytest.mark.parametrize("name", sorted(REGISTRIES["policy"]))
def test_a_policy_that_observed_another_run_is_refused(name: str) -> None:
    options: dict[str, Any] = {"rate": 0.5} if name == "random" else {}
    policy = as_policy({"name": name, **options})
    assert policy is not None
    before = plain(policy.state_dict())
    checked_methods([policy])
    Trainer(make_model(), TRAIN, classes(100), policy=policy, budget=Budget(epochs=3)).run()
    if plain(policy.state_dict()) == before:  # it observes nothing
        checked_methods([policy])
        return
    with pytest.raises(ValueError, match="with what it observed in another run: pass a new one"):
        checked_methods([policy])
