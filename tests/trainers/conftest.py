"""Small, fast pieces that the tests of the trainers share."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from astkit import models
from astkit.datasets import Batch, Images, Loader, load


class Doubled(Loader):
    """A `Loader` that delivers float64 inputs: what still differs then is no rounding."""

    def batches(self, epoch: int, order: Tensor | None = None, *rest: Any) -> Iterator[Batch]:
        for batch in super().batches(epoch, order, *rest):
            yield batch._replace(x=batch.x.double())


@pytest.fixture(scope="session")
def digits() -> Images:
    return load("digits")[0]


@pytest.fixture(scope="session")
def double_loader(digits: Images) -> Callable[..., Doubled]:
    def make(rows: int = 160, batch_size: int = 32, **options: Any) -> Doubled:
        return Doubled(digits.subset(range(rows)), batch_size, **options)

    return make


@pytest.fixture(scope="session")
def cnn() -> Callable[..., nn.Module]:
    """The digits CNN, float64 unless told otherwise."""

    def make(
        seed: int = 0, batch_norm: bool = False, dtype: torch.dtype = torch.float64
    ) -> nn.Module:
        model = models.build("digits_cnn", (1, 8, 8), 10, seed)
        if batch_norm:
            first, second, *rest = model.children()
            model = nn.Sequential(first, nn.BatchNorm2d(16), second, rest[0], nn.BatchNorm2d(32))
            model.extend(rest[1:])
        return model.to(dtype)

    return make


@pytest.fixture(scope="session")
def difference() -> Callable[[nn.Module, nn.Module], float]:
    """The largest absolute difference between two models' parameters; NaN if one holds NaN."""

    def measure(first: nn.Module, second: nn.Module) -> float:
        pairs = zip(first.parameters(), second.parameters(), strict=True)
        return float(torch.stack([(a - b).detach().abs().max() for a, b in pairs]).max())

    return measure


@pytest.fixture(scope="session")
def unchanged() -> Callable[[nn.Module], Any]:
    """A block that must leave every parameter and buffer of a model as it was, bit for bit."""

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        before = copy.deepcopy(model.state_dict())
        yield
        after = model.state_dict()
        assert before.keys() == after.keys()
        changed = [name for name in before if not torch.equal(before[name], after[name])]
        assert not changed

    return watch
