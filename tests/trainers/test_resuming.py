"""A run that is stopped after each of its records, and resumed from files, ends as one that is not.

Each part is resumed by a trainer of its own, whose model has other weights at first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit import Gate, Policy, TrainConfig
from astkit.profiling import EnergyMeter
from tests import build as builder
from tests.gating.policies import test_every_policy as policies
from tests.trainers.states import Records, leave_after, outcome, same
from tests.trainers.test_first_batch import LAZY
from tests.trainers.test_optimisation import UNUSUAL
from tests.trainers.test_trainer import KINDS, build, finish, network


class Convolution(nn.Module):
    """Its weights may lie in memory in channels_last order, and so do their moments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(144, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.cat([x, x.flip(3)], 1))


class Transposed(nn.Module):
    """Its first weight lies in memory column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        weight = self.layers[1].weight
        self.layers[1].weight = nn.Parameter(weight.detach().T.contiguous().T)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Bag(nn.Module):
    """Its gradient is sparse, and its state holds more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(17, 4, sparse=True), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.bag((16 * x).long().clamp(0, 16).flatten(1)))

    def get_extra_state(self) -> Any:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": 1}


class Remembering(Policy):
    """Has no past before it chooses."""

    state = ("past",)

    def __init__(self) -> None:
        self.past: list[float] | None = None

    def choose(self, batch: Any) -> None:
        self.past = [*(self.past or []), 1.0]


def parted(model: Any) -> torch.optim.Optimizer:
    """Its parameters have different state."""
    first, second = model[1].parameters(), model[4].parameters()
    return torch.optim.Adam([{"params": first, "amsgrad": True}, {"params": second}])


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def of(data: TensorDataset, model: Callable[[], nn.Module], **options: Any) -> dict[str, Any]:
    """Options of a run on other data, which it validates too."""
    return {"train": data, "validation": data, "batch_size": 8, "make": model, **options}


def unusual(name: str) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 20, (24, 6), generator=random)
    if "sparse" not in name:
        x = torch.randn(24, 6, generator=random).double()
    return of(TensorDataset(x, torch.arange(24) % 4), lambda: UNUSUAL[name](False))


def registered(name: str) -> dict[str, Any]:
    options = {"policy": policies.policy_of(name), "validation": policies.TARGET}
    return of(policies.DATA, policies.model_of, **options)


def lazy(name: str, optimizer: Any) -> dict[str, Any]:
    make, data = LAZY[name]
    return of(data, make, config=TrainConfig(channels_last=True), optimizer=optimizer)


def frozen() -> nn.Module:
    model: Any = network()
    model[1].bias.requires_grad_(False)  # one without a gradient
    return model


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **KINDS,
    "factored": lambda: {"optimizer": lambda model: torch.optim.Adafactor(model.parameters())},
    "two groups": lambda: {"optimizer": parted},
    "channels last": lambda: {"make": Convolution, "config": TrainConfig(channels_last=True)},
    "gradients that wait": lambda: {
        "make": Transposed,
        "config": TrainConfig(lr=1e-2, accumulation_steps=3),
    },
    "a loss scale": lambda: {
        "make": frozen,
        "config": TrainConfig(precision="fp16", accumulation_steps=4),
    },
    "sparse gradients that wait": lambda: {
        "make": lambda: Bag().double(),
        "config": TrainConfig(lr=1e-2, accumulation_steps=3, clip_norm=None),
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    },
    "a past": lambda: {"policy": Remembering()},
    **{name: lambda name=name: unusual(name) for name in UNUSUAL},
    **{f"lazy {name}": lambda name=name: lazy(name, momentum) for name in LAZY},
    **{name: lambda name=name: registered(name) for name in policies.NAMES},
    "lazy, the kit's optimizer": lambda: lazy("images", None),
}


def made(case: str, seed: int = 0, **more: Any) -> Any:
    options = {**CASES[case](), **more}
    make, optimizer = options.pop("make", network), options.pop("optimizer", None)
    model = builder.seeded(make, seed)
    if optimizer is not None:
        options["optimizer"] = optimizer(model)
    return build("dense", model=model, **options)


@pytest.mark.filterwarnings("error", "ignore:a batch of .* active rows")
@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(case: str, tmp_path: Path) -> None:
    whole = made(case)
    finish(whole)
    run, parts = made(case, checkpoints=tmp_path), 1
    leave_after(run, 1)
    while not run.done:
        run = made(case, 9, checkpoints=tmp_path, resume=True)
        leave_after(run, 1)
        parts += 1
    assert parts > whole.step > 2
    if case == "sparse gradients that wait":  # they are added up at other times
        found, expected = (list(each.model.parameters()) for each in (run, whole))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    else:
        assert same(outcome(run), outcome(whole))


def test_what_a_new_run_does_not_have_yet_is_resumed(tmp_path: Path) -> None:
    """A steered controller, a meter, an observer."""
    whole, first = build(policy=Gate(0.4)), build(policy=Gate(0.4), checkpoints=tmp_path)
    for run in (whole, first):
        run.steer("controller", "top_k")
    finish(whole)
    leave_after(first, 5)
    more = {"meter": EnergyMeter(), "observers": [Records()]}
    resumed = build(policy=Gate(0.4), checkpoints=tmp_path, resume=True, **more)
    finish(resumed)
    assert same(outcome(resumed)["weights"], outcome(whole)["weights"])
