"""Configurations: equal for equal objects, different for each difference that matters."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from astkit.gating import Gate, RandomSubset
from astkit.identity import configuration, repeated_hash, tensor_hash


@dataclass
class Plain:
    size: int = 3
    name: str = "a"


class Kept:
    def __init__(self, rate: float = 0.5, parts: Any = (), method: Any = None) -> None:
        self.rate, self.parts, self.hidden = rate, parts, object()

    def method(self) -> None:
        """Has the name of an argument, and is none."""


def test_the_configuration_of_each_kind_of_value() -> None:
    square = functools.partial(pow, exp=2)
    for value, expected in (
        (None, None),
        ({1: (2, "a")}, {"1": [2, "a"]}),
        ({"b", "a"}, ["a", "b"]),
        (Plain(), {"class": "Plain", "size": 3, "name": "a"}),
        (Kept(0.1, [Plain()]), {"class": "Kept", "rate": 0.1, "parts": [configuration(Plain())]}),
        (RandomSubset(0.2, 3), {"class": "RandomSubset", "rate": 0.2, "seed": 3}),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (Plain, f"{__name__}.Plain"),
        (square, {"partial": ["builtins.pow", []], "exp": 2}),
        (nn.Linear(2, 3), {"module": "Linear"}),
        (torch.bfloat16, "torch.bfloat16"),
        (
            nn.L1Loss(),
            {"class": "L1Loss", "reduction": "mean"},
        ),
    ):
        found = configuration(value)
        assert found == expected
        json.dumps(found, allow_nan=False)
    assert configuration(torch.ones(2)) == {"tensor": [2], "sha256": tensor_hash(torch.ones(2))}


def test_each_difference_tells() -> None:
    gates = [
        Gate(),
        Gate(0.2),
        Gate(score="entropy"),
        Gate(controller="top_k"),
        Gate(criterion=nn.functional.mse_loss),
        Gate(fallback=1),
        Gate(min_active=2),
        Gate(seed=1),
    ]
    found = [json.dumps(configuration(gate)) for gate in gates]
    assert len(set(found)) == len(gates)
    arrays = [
        np.ones(2),
        np.array([1, 50.0]),
        np.ones(3),
        np.ones(2, int),
        np.int64(2),
        np.int64(3),
    ]

    def weighted(weights: Any) -> Any:
        return lambda losses: losses * weights

    for change in (configuration, lambda each: configuration(weighted(each))):
        assert len({json.dumps(change(each)) for each in arrays}) == len(arrays)
    assert json.dumps(configuration(Gate())) == found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_a_hash_is_of_the_values(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1], [1, 1], [0, 0]]).to(dtype)
    assert tensor_hash(values) == tensor_hash(values.t().contiguous().t())  # however they are laid
    assert tensor_hash(values) != tensor_hash(values.flip(0))
    assert tensor_hash(torch.tensor(1).to(dtype)) != tensor_hash(torch.tensor(0).to(dtype))
    assert len(tensor_hash(values[:0])) == 16


def criteria(scale: float, weights: list[float]) -> list[Any]:
    """Criteria that a user may edit, with the same names."""
    return [
        lambda outputs, targets: scale * (outputs - targets).abs(),
        lambda outputs, targets, factor=scale: factor * (outputs - targets).abs(),
        nn.CrossEntropyLoss(weight=torch.tensor(weights), reduction="none"),
        nn.CrossEntropyLoss(label_smoothing=scale),
    ]


def test_an_edited_criterion_is_another_one() -> None:
    kept, again, edited = criteria(0.1, [1, 2]), criteria(0.1, [1, 2]), criteria(0.2, [1, 3])
    for first, second, third in zip(kept, again, edited, strict=True):
        assert configuration(first) == configuration(second) != configuration(third)
    one, other = (eval(f"lambda a, b: {body}") for body in ("(a - b) ** 2", "(a - b) ** 4"))
    assert configuration(one) != configuration(other)
    nested = [eval(f"lambda a: map(lambda b: b * {by}, a)") for by in (2, 3)]
    assert configuration(nested[0]) != configuration(nested[1])


@pytest.mark.parametrize("edited", ["ALPHA = 0.4", "POWERS = 2, 3", "def power(x): return x**3"])
def test_an_edited_global_makes_another_criterion(edited: str) -> None:
    def cells(*more: str) -> dict[str, Any]:
        scope: dict[str, Any] = {"__name__": "__main__"}
        for cell in (
            "ALPHA, POWERS, mean, calls = 0.3, (2, None), 1, 0",
            "def power(x): return x ** POWERS[0]",
            "def criterion(a, b):\n global calls\n calls += 1\n return ALPHA * power(a).mean(b)",
            *more,
        ):
            exec(cell, scope)
        return scope

    kept = configuration(cells()["criterion"])
    assert configuration(cells(edited)["criterion"]) != kept
    assert configuration(cells("mean, calls = 2, 5")["criterion"]) == kept  # read by no function


def test_rows_that_flip_by_a_generator_of_their_own_have_no_hash() -> None:
    for seed in range(100):
        flip = random.Random(seed).getrandbits
        assert (
            repeated_hash(functools.partial(lambda flip: [flip(1) for _ in range(3)], flip)) is None
        )
    assert repeated_hash(lambda: [random.random(), torch.rand(2)]) is not None


def test_a_function_is_the_same_in_every_process() -> None:
    program = (
        "from astkit.identity import configuration\n"
        "KNOWN, MOST = ('x', None, 2.5), 3\n"
        "def known(name): return KNOWN.index(name) < MOST\n"
        "print(configuration(lambda name: known(name) or name in {'a', 'b', 'c', 'd', MOST}))"
    )
    said = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
