"""Policies: three of the field in a file each; what every policy keeps; a sentence an error."""

from __future__ import annotations

import copy
import inspect
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from astkit.batch import as_batch
from astkit.datasets import indexed
from astkit.gating import (
    Gate,
    Policy,
    RandomSubset,
    RunInfo,
    Scored,
    ScoredBatches,
    Selection,
    Visit,
    as_policy,
)
from astkit.identity import arguments, configuration
from astkit.names import REGISTRIES, resolve
from astkit.trainers import TrainConfig, Trainer
from tests.gating.policies.importance import ImportanceSampling
from tests.gating.policies.infobatch import InfoBatch
from tests.gating.policies.rho import Rho

Planner = type[InfoBatch] | type[ImportanceSampling]
PLANNERS = [InfoBatch, ImportanceSampling]
X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
DATA = TensorDataset(X, Y)


def run_info(samples: int, epoch: int = 0, progress: float = 0.5, seed: int = 0) -> RunInfo:
    return RunInfo(samples, torch.arange(samples), epoch, 0, progress, None, seed)


def informed(kind: Planner, losses: Tensor, **options: Any) -> Any:
    """A policy that has seen every loss."""
    policy = kind(**options)
    policy.plan(run_info(len(losses)))
    policy.observe(Visit(torch.arange(len(losses)), losses))
    return policy


def everything_of(chosen: Selection | None) -> tuple[Any, ...]:
    assert chosen is not None
    return chosen.index.tolist(), chosen.weight.tolist(), float(chosen.total)


# --- the policies of the field ---------------------------------------------------------------


def mean_gradient(plans: int, plan: Callable[[int], Selection], gradients: Tensor) -> Any:
    """Mean over plans of ``sum(w * gradient) / normaliser``, and its standard error."""
    sums = []
    for epoch in range(plans):
        chosen = plan(epoch)
        sums.append(chosen.weight.double() @ gradients[chosen.index] / chosen.total)
    found = torch.stack(sums)
    return found.mean(0), found.std(0) / plans**0.5


def unbiased(plans: int, plan: Callable[[int], Selection], gradients: Tensor) -> bool:
    full = gradients.mean(0)
    mean, error = mean_gradient(plans, plan, gradients)
    return bool(((mean - full).abs() <= torch.maximum(0.01 * full.abs(), 4 * error)).all())


@pytest.mark.parametrize("plans", [300, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(InfoBatch, {}), (InfoBatch, {"r": 0.8}), (ImportanceSampling, {"rate": 0.4})],
)
def test_the_expected_gradient_is_that_of_all_rows(
    kind: Planner, options: dict[str, Any], plans: int
) -> None:
    # of squared errors of a linear model, whose losses the policy has seen
    errors = X.double() @ torch.randn(6, generator=torch.Generator().manual_seed(1)).double()
    losses, gradients = errors.square(), 2 * errors[:, None] * X.double()
    policy = informed(kind, losses.float(), **options)

    def unweighted(epoch: int) -> Selection:
        return Selection(policy.plan(run_info(48, epoch)).index)

    assert unbiased(plans, lambda epoch: policy.plan(run_info(48, epoch)), gradients)
    assert not unbiased(plans, unweighted, losses[:, None])  # the check can fail


@pytest.mark.parametrize("kind", [*PLANNERS, lambda seed=0: RandomSubset(0.5, seed)])
def test_plans_are_functions_of_seed_epoch_and_memory(kind: Any) -> None:
    def plans(policy: Policy, epochs: range) -> list[Any]:
        found = []
        for epoch in epochs:
            found.append(everything_of(policy.plan(run_info(48, epoch, seed=policy.seed))))
            losses = torch.rand(48, generator=torch.Generator().manual_seed(epoch))
            policy.observe(Visit(torch.arange(48), losses))
        return found

    before = torch.get_rng_state()
    whole, other, first = kind(), kind(seed=1), kind()
    expected = plans(whole, range(6))
    assert expected[1:] != plans(other, range(6))[1:]
    assert expected[:3] == plans(first, range(3))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed = kind()
    resumed.load_state_dict(torch.load(file))
    assert plans(resumed, range(3, 6)) == expected[3:]
    assert torch.get_rng_state().equal(before)


def test_rho_takes_what_the_holdout_model_has_learnt_and_the_model_has_not() -> None:
    torch.manual_seed(0)
    model, policy = nn.Linear(6, 3), Rho(0.25)
    wrong = Y.clone()
    wrong[::6] = (Y[::6] + 1) % 3
    policy.prepare(lambda: copy.deepcopy(model), ScoredBatches([(X, Y)] * 30, indexed=False))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    chosen = policy(model, X, wrong)
    losses, held = (
        F.cross_entropy(each(X), wrong, reduction="none") for each in (model, policy._model)
    )
    assert set(chosen.index.tolist()) == set((losses - held).topk(12).indices.tolist())
    assert not set(chosen.index.tolist()) & set(range(0, 48, 6))  # no wrong label is chosen
    top_k = Gate(0.25, controller="top_k")(model, X, wrong)  # by loss alone they are
    assert set(top_k.index.tolist()) & set(range(0, 48, 6))
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert torch.get_rng_state().equal(random)
    resumed = Rho(0.25)
    resumed.load_state_dict(policy.state_dict())
    assert resumed(model, X, wrong).index.equal(chosen.index)


@pytest.mark.parametrize("make", [InfoBatch, ImportanceSampling, Rho])
def test_the_trainer_takes_them_as_objects(make: Callable[[], Policy]) -> None:
    torch.manual_seed(0)
    trainer = Trainer(
        nn.Linear(6, 3),
        DATA,
        DATA,
        policy=make(),
        epochs=8,
        batch_size=8,
        config=TrainConfig(lr=0.1),
        device="cpu",
    )
    trainer.run()
    assert trainer.history.epochs[-1]["val_accuracy"] > 0.8
    counts = trainer.ledger.counts
    assert counts.trained < 8 * 48
    helper = trainer.ledger.flops.helper
    assert (counts.scored, helper > 0) == ((8 * 48, True) if make is Rho else (0, False))


# --- what every policy keeps -----------------------------------------------------------------

NOT_KEPT = {"policy gate": {"score"}}  # a method has that name: `Gate.config` says the score
NEEDED = {"target_rate": 0.25, "rate": 0.25}


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
        missing = set(names) - set(arguments(made(**needed)))
        assert missing == NOT_KEPT.get(f"{kind} {name}", set()), name
    for policy in (InfoBatch(), ImportanceSampling(), Rho()):
        assert set(policy.config()) == set(inspect.signature(type(policy)).parameters)


def test_the_configuration_of_a_gate_names_its_score() -> None:
    found = {str(configuration(Gate(score=score))) for score in ("loss", "entropy", F.relu)}
    assert len(found) == 3


# --- by name ---------------------------------------------------------------------------------


def test_a_policy_by_name_by_mapping_and_as_it_is() -> None:
    policy = RandomSubset(0.5)
    assert as_policy(policy) is policy
    assert as_policy(None) is None
    assert isinstance(as_policy("gate"), Gate)
    given = {"name": "random", "rate": 0.25}
    named = as_policy(given, seed=7)
    assert isinstance(named, RandomSubset)
    assert (named.rate, named.seed) == (0.25, 7)
    assert given == {"name": "random", "rate": 0.25}  # left as it was
    assert as_policy({**given, "seed": 3}, seed=7).seed == 3  # type: ignore[union-attr]


def test_a_policy_as_it_stands_takes_everything() -> None:
    policy, model = Policy(), nn.Linear(6, 3)
    assert policy.plan(run_info(5)) is None
    assert policy.choose(Scored(None, Y, X, None, model)) is None
    assert (policy.expected_rows(7), RandomSubset(0.5).expected_rows(7)) == (7, 4)
    assert policy.config() == {}


# --- errors ----------------------------------------------------------------------------------


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
    return Choosing(Selection(torch.tensor(index)))(nn.Linear(6, 3), X, Y)


def watching(**outputs: Any) -> Any:
    policy = Watching()
    list(policy.sampler(range(3), epochs=2))
    return policy.mean(torch.ones(3), torch.arange(3), **outputs)


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "no rows": (lambda: as_batch({"id": 3}).rows, "holds dict without a tensor of shape .*collate"),
    "an empty batch": (lambda: Gate()(nn.Linear(6, 3), X[:0], Y[:0]), r"at least one row"),
    "rows that do not exist": (lambda: choose(3, 48), r"Choosing chose rows 3 to 48 of 48, .*0 to"),
    "planned": (
        lambda: list(Planning(Selection(torch.tensor([-1]))).sampler(DATA, epochs=1)),
        r"Planning chose rows -1 to -1 of 48, some of which do not exist",
    ),
    "no index": (
        lambda: Gate(score="el2n")(nn.Linear(6, 3), X, Y),
        r"Gate remembers samples, but got no index: let the DataLoader load indexed\(data\)",
    ),
    "no index, in a trainer": (
        lambda: Trainer(nn.Linear(6, 3), [(X, Y)], policy=Gate(score="el2n"), epochs=1).run(),
        r"Gate remembers samples, but .*pass the data set itself .* or let .*indexed\(data\)",
    ),
    "no name": (lambda: as_policy({"rate": 0.1}), r"policy is \{'rate': 0.1\}: pass a policy"),
    "a class": (lambda: as_policy(RandomSubset), r"policy is <class .*: pass a policy such as"),  # type: ignore[arg-type]
    "unknown": (lambda: as_policy("best"), "^unknown policy 'best': choose one of .*gate, .*random"),
    "no rate": (
        lambda: as_policy("random"),
        r"'random' cannot be made .*missing.*'rate'.* its arguments are rate, seed$",
    ),
    "no argument": (lambda: as_policy({"name": "gate", "rate": 1}), "'gate' .*its arguments are"),
    "no outputs": (watching, r"Watching needs to know .*outputs=outputs, targets=y\)"),
    "no targets": (lambda: watching(outputs=X), r"outputs=outputs, targets=y\)"),
    "plans": (
        lambda: RandomSubset(0.5)(nn.Linear(6, 3), X, Y),
        r"RandomSubset chooses before loading: pass sampler=policy.sampler\(data, epochs=...\)",
    ),
    "chooses": (
        lambda: Gate().sampler(DATA, epochs=1),
        r"Gate chooses after scoring: call chosen = policy\(model, x, y\) on each batch instead",
    ),
    "no sampler": (
        lambda: RandomSubset(0.5).mean(torch.ones(3), torch.arange(3)),
        "RandomSubset has drawn nothing: give the DataLoader sampler=policy.sampler",
    ),
    "no length": (lambda: RandomSubset(0.5).sampler(iter([1]), 1), "without a length.*map-style"),
    "no length, indexed": (lambda: indexed(iter([1])), "has no length, so its rows have no index"),
    "no epochs": (lambda: RandomSubset(0.5).sampler(DATA, epochs=0), "epochs is 0: give the"),
    "nothing to steer": (lambda: RandomSubset(0.5).steer("rate", 1), "RandomSubset has no setting"),
}


def test_an_error_is_one_sentence_with_the_remedy() -> None:
    for call, words in ERRORS.values():
        with pytest.raises(ValueError, match=words) as caught:
            call()
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert not re.search(r"[^.]\. ", sentence)
        assert len(sentence) < 300


def test_helper_models_draw_from_the_runs_seed_alone() -> None:
    def weights(global_seed: int) -> Tensor:
        torch.manual_seed(global_seed)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
            data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
        before = torch.get_rng_state()
        Trainer(model, data, policy=Rho(), epochs=2, batch_size=16, device="cpu").run()
        assert torch.equal(torch.get_rng_state(), before)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(0), weights(1))
