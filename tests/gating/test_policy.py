"""Policies: what every one keeps, names, and one sentence an error."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import RandomSubset
from astkit.gating import Gate, Policy, RunInfo, Scored, Selection, Visit, as_policy
from astkit.names import REGISTRIES, resolve
from astkit.trainers import Trainer
from tests.gating.policies.cells import Rho

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
DATA = TensorDataset(X, Y)


NEEDED = {"rate": 0.25}
NEEDED |= {"weights": [1.0]}


@pytest.mark.parametrize("kind", ["policy", "score", "controller"])
def test_every_argument_of_a_constructor_is_kept_under_its_name(kind: str) -> None:
    """So that it is part of what a resumed run must have in common."""
    for name in REGISTRIES[kind]:
        made = resolve(kind, name)
        if not isinstance(made, type):  # a score without arguments
            continue
        names = inspect.signature(made).parameters
        needed = {each: value for each, value in NEEDED.items() if each in names}
        needed = {} if kind == "score" else needed
        built = made(**needed)
        missing = {each for each in names if not hasattr(built, each)}
        assert not missing, name


def test_a_policy_by_name_by_mapping_and_as_it_is() -> None:
    policy = RandomSubset(0.5)
    assert as_policy(policy) is policy
    assert as_policy(None) is None
    assert isinstance(as_policy("gate"), Gate)
    spelled = as_policy("gate:rate=0.5,score=margin", seed=7)
    assert (spelled.rate, spelled.seed) == (0.5, 7)
    given = {"name": "random", "rate": 0.25}
    named = as_policy(given, seed=7)
    assert isinstance(named, RandomSubset)
    assert (named.rate, named.seed) == (0.25, 7)
    assert given == {"name": "random", "rate": 0.25}  # left as it was
    assert as_policy({**given, "seed": 3}, seed=7).seed == 3  # type: ignore[union-attr]


def test_a_state_stays_as_it_was_saved() -> None:
    policy = as_policy("cached_loss")
    assert policy is not None
    policy.plan(RunInfo(4, torch.arange(4), 0, 0, 0.0))
    for losses in (torch.ones(4), torch.zeros(4)):
        state = policy.state_dict()
        before = state["losses"].clone()
        policy.observe(Visit(torch.arange(4), losses))
        assert state["losses"].equal(before)


class Choosing(Policy):
    """Chooses what it was made with, from a batch or from the data."""

    def __init__(self, chosen: Selection) -> None:
        self.chosen = chosen

    def choose(self, batch: Scored) -> Selection:
        return self.chosen


class Planning(Choosing):
    def plan(self, run: RunInfo) -> Selection:
        return self.chosen


class Watching(Policy):
    needs_outputs = True

    def plan(self, run: RunInfo) -> None:
        return None


def choose(*index: int) -> Any:
    """A policy that chooses these rows, called on a batch."""
    return Choosing(Selection(torch.tensor(index, dtype=torch.int64)))(nn.Linear(6, 3), X, Y)


def test_a_process_that_selects_no_row_passes_one_with_weight_0(monkeypatch):
    assert len(choose()) == 0
    monkeypatch.setattr("astkit.distributed.world", lambda: 2)
    assert (choose().index.tolist(), choose().weight.tolist()) == ([0], [0.0])


def watching() -> Any:
    policy = Watching()
    list(policy.sampler(range(3), epochs=2))
    return policy.mean(torch.ones(3), torch.arange(3))


def mean_of(losses: Any) -> Any:
    policy = RandomSubset(1.0)
    rows = list(policy.sampler(range(3), epochs=np.int64(2)))
    return policy.mean(losses, torch.tensor(rows))


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "an empty batch": (lambda: Gate()(nn.Linear(6, 3), X[:0], Y[:0]), r"at least one row"),
    "rows that do not exist": (lambda: choose(3, 48), r"selected rows 3 to 48 of 48, .*0 to"),
    "no index": (
        lambda: Rho(torch.zeros(48))(nn.Linear(6, 3), X, Y),
        r"Rho needs the index of each row, but got none: use a DataLoader of indexed\(data\)",
    ),
    "no index, in a trainer": (
        lambda: Trainer(nn.Linear(6, 3), [(X, Y)], policy=Rho(torch.zeros(48)), epochs=1).run(),
        r"Rho keeps per-sample state, but .*pass the data set itself .* or use .*indexed\(data\)",
    ),
    "no name": (lambda: as_policy({"rate": 0.1}), r"policy is \{'rate': 0.1\}: pass a policy"),
    "unknown": (
        lambda: as_policy("best"),
        "^unknown policy 'best': choose one of .*gate, .*random",
    ),
    "a seed that is no number": (
        lambda: as_policy("infobatch", seed="a"),  # type: ignore[arg-type]
        r"^seed is 'a': give a whole number of 0 or more$",
    ),
    "no rate": (
        lambda: as_policy("random"),
        r"'random' cannot be made .*missing.*'rate'.* are rate, seed; write 'random:rate=0.5'",
    ),
    "no outputs": (watching, r"Watching needs the correctness .*outputs=outputs, targets=y\)"),
    "plans": (
        lambda: RandomSubset(0.5)(nn.Linear(6, 3), X, Y),
        r"RandomSubset selects before loading: pass sampler=policy.sampler\(data, epochs=...\)",
    ),
    "chooses": (
        lambda: Gate().sampler(DATA, epochs=1),
        r"Gate selects after scoring: call chosen = policy\(model, x, y\) on each batch instead",
    ),
    "no sampler": (
        lambda: RandomSubset(0.5).mean(torch.ones(3), torch.arange(3)),
        "RandomSubset has no sampler: give the DataLoader sampler=policy.sampler",
    ),
    "no length": (lambda: RandomSubset(0.5).sampler(iter([1]), 1), "without a length.*map-style"),
    "no epochs": (lambda: RandomSubset(0.5).sampler(DATA, epochs=0), "epochs is 0: give a number"),
    "rows as a list": (lambda: Selection([0, 1]), "index of a Selection is a list: give int64"),  # type: ignore[arg-type]
    "a plan of rows": (
        lambda: list(Planning(torch.arange(2)).sampler(DATA, epochs=1)),  # type: ignore[arg-type]
        r"Planning gave a Tensor: return Selection\(rows\), or None for all rows",
    ),
    "a choice of rows": (
        lambda: Choosing(torch.arange(2))(nn.Linear(6, 3), X, Y),  # type: ignore[arg-type]
        "Choosing gave a Tensor: return Selection",
    ),
    "losses as a list": (lambda: mean_of([1.0] * 3), "losses has type list and index shape .3.: "),
    "one mean loss": (
        lambda: mean_of(torch.ones(())),
        r"losses has shape \[\] and index shape \[3\]",
    ),
    "another state": (
        lambda: RandomSubset(0.5).load_state_dict({}),
        r"the state has no begun: pass what the state_dict\(\) of a RandomSubset returned",
    ),
    "an earlier name": (
        lambda: RunInfo(4, torch.arange(4), 0, 0, 0.0).target,
        "RunInfo.target was the validation data: read run.validation",
    ),
    "nothing to steer": (lambda: RandomSubset(0.5).steer("rate", 1), "RandomSubset has no setting"),
}


def test_an_error_is_one_sentence_with_the_remedy() -> None:
    for call, words in ERRORS.values():
        with pytest.raises((ValueError, AttributeError), match=words) as caught:
            call()
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert not re.search(r"[^.]\. ", sentence)
        assert len(sentence) < 300
