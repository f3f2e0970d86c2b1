"""What holds for every policy in the registry."""

import io
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from astkit.datasets import indexed
from astkit.gating import Policy, RunInfo, Visit, as_policy
from astkit.names import REGISTRIES
from astkit.trainers import TrainConfig, Trainer
from tests import build
from tests.build import refused
from tests.gating.policies.cells import SelectiveBackprop

N, SIZE = 48, 8
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
OPTIONS: dict[str, dict[str, Any]] = {
    "random": {"rate": 0.5},
    "weighted": {"weights": torch.arange(N)},
}
CELL = "selective_backprop"  # of docs, for those that draw within a batch
NAMES = [*REGISTRIES["policy"], CELL]


class Labelled(TensorDataset):
    labels = Y


DATA = Labelled(X, Y)
TARGET = TensorDataset(X.repeat(3, 1), Y.repeat(3))  # of which "aim" needs some rows


def policy_of(name: str, seed: int = 0) -> Policy:
    if name == CELL:
        return SelectiveBackprop(start=0.25, seed=seed)
    made = as_policy({"name": name, **OPTIONS.get(name, {})}, seed)
    assert made is not None
    return made


def model_of(seed: int = 0) -> nn.Module:
    return build.network(6, 3, 8, nn.LayerNorm(8), nn.Dropout(0.1), seed=seed)


criterion = nn.CrossEntropyLoss(reduction="none")


def train(policy: Policy, model: nn.Module, epochs: range, total: int = 4) -> list[Any]:
    """The loop of its kind, with torch's DataLoader: rows and loss of each step."""
    found: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    draws = torch.Generator().manual_seed(0)
    if policy.plans:
        sampler = policy.sampler(DATA, epochs=total, validation=TARGET)
        loader = DataLoader(indexed(DATA), SIZE, sampler=sampler, generator=draws)
    else:
        order = torch.Generator().manual_seed(epochs[0])
        loader = DataLoader(indexed(DATA), SIZE, shuffle=True, generator=order)
    for epoch in epochs:
        for step, (index, (x, y)) in enumerate(loader):
            with torch.random.fork_rng():  # dropout
                torch.manual_seed(100 * epoch + step)
                if policy.chooses:
                    chosen = policy(model, x, y, index)
                    rows = index[chosen.index]
                    loss = chosen.mean(criterion(model(x[chosen.index]), y[chosen.index]))
                else:
                    rows, outputs = index, model(x)
                    loss = policy.mean(criterion(outputs, y), index, outputs, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            found.append((rows.tolist(), loss.item()))
    return found


@cache
def trained(name: str, seed: int = 0) -> list[Any]:
    return train(policy_of(name, seed), model_of(), range(4))


def leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


@pytest.mark.parametrize("name", NAMES)
def test_resume_is_exact_and_nothing_global_is_drawn(name: str) -> None:
    before = torch.get_rng_state()
    expected = trained(name)
    assert torch.get_rng_state().equal(before)
    first, model = policy_of(name), model_of()
    found = train(first, model, range(2))
    state = first.state_dict()
    for leaf in leaves(state):
        assert leaf is None or isinstance(leaf, bool | int | float | str | Tensor)
    file = io.BytesIO()
    torch.save({"policy": state, "model": model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    resumed, again = policy_of(name), model_of(1)
    resumed.load_state_dict(saved["policy"])
    again.load_state_dict(saved["model"])
    if resumed.plans:  # the order of the other loops begins anew
        assert found + train(resumed, again, range(2, 4)) == expected
    else:
        assert train(resumed, again, range(2, 4)) == train(first, model, range(2, 4))


@pytest.mark.parametrize("name", NAMES)
def test_two_seeds_differ(name: str) -> None:
    if name == "gate" or "seed" not in policy_of(name).config():  # a gate draws only what ties
        return
    assert trained(name) != trained(name, seed=1)


SHORT = ("infobatch", "gate")  # skip rows within three epochs, as all with a rate below 1 do


@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_takes_it(name: str) -> None:
    policy = policy_of(name)
    config = policy.config()
    before = torch.get_rng_state()
    trainer = Trainer(
        model_of(),
        DATA,
        TARGET,
        policy=policy,
        epochs=3,
        batch_size=SIZE,
        config=TrainConfig(lr=0.05),
        device="cpu",
    )
    trainer.run()
    assert torch.get_rng_state().equal(before)
    assert policy.config() == config  # such as a rate
    counts = trainer.ledger.counts
    assert 0 < counts.trained <= 3 * N + 3
    assert counts.trained < 3 * N or (getattr(policy, "rate", 1.0) == 1 and name not in SHORT)
    assert (counts.scored > 0) == policy.chooses
    assert (trainer.ledger.flops.helper > 0) == (name == "learned")  # aim's trees are timed


RATED = ("random", "cached_loss", "class_balanced", "infobatch", "learned")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"rate": 1.1}, "a share above 0 and") for name in RATED),
    ("infobatch", {"delta": 1.1}, "a share of 0 or more and at"),
]


def test_impossible_arguments_are_refused() -> None:
    for name, options, words in REFUSED:
        *_, (argument, value) = options.items()
        call = partial(as_policy, {"name": name, **options})
        refused((call, f"^{argument} is {value!r}.* {words}"))
    for labels, words in ((None, "no class labels"), (-torch.ones(9).long(), "the label -1")):
        run = RunInfo(9, torch.arange(9), 0, 0, 0.0, labels)
        refused(
            (partial(policy_of("class_balanced").plan, run), f"ClassBalanced chooses by .* {words}")
        )


REMEMBERING = ("infobatch", "cached_loss", "auto", "learned")


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_losses_of_any_type_are_kept_in_float32(name: str, default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        policy = policy_of(name)
        for epoch, dtype in enumerate((torch.float64, torch.bfloat16, torch.float32)):
            policy.plan(RunInfo(9, torch.arange(9), epoch, 0, epoch / 9, torch.arange(9) % 2))
            shares = torch.linspace(0.1, 0.9, 9)
            visit = Visit(torch.arange(9), torch.ones(9, dtype=dtype), shares > 0, shares, shares)
            policy.observe(visit)
    finally:
        torch.set_default_dtype(torch.float32)
    kept = [each for each in policy.state_dict().values() if isinstance(each, Tensor)]
    assert {each.dtype for each in kept} <= {torch.float32, torch.bool}


@pytest.mark.parametrize("name", ["learned", "class_balanced"])
def test_labels_may_be_any_numbers(name: str) -> None:
    found = []
    for labels in (torch.arange(12) % 3, torch.tensor([7, 9, 10**10]).repeat(4)):
        policy, rows = policy_of(name), []
        for epoch in range(4):
            plan = policy.plan(RunInfo(12, torch.arange(12), epoch, 0, epoch / 4, labels))
            assert plan is not None
            rows.append(plan.index.tolist())
            policy.observe(Visit(plan.index, 1 / (1 + plan.index)))
        found.append(rows)
    assert found[0] == found[1]
