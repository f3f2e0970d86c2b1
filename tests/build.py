"""The one builder of what tests train on and with: seeded, small, on the CPU, in milliseconds.

Data: `rows` of classes that can be told apart, `numbers` of a linear law, `images` of noise,
a `table`; `as_dataset` makes any list a data set, `computed` any function, `as_stream`
one without a length.
Models: `network`, and `seeded` around any other. Runs: `trainer`, `gated`, `comparison`.
Misuse: `refused` holds calls to the sentences that they raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from astkit import Gate, rng
from astkit.datasets import Images, Loader
from astkit.trainers import TrainConfig, Trainer

if TYPE_CHECKING:
    import pandas as pd

    from astkit import Comparison

Made = TypeVar("Made")

# --- data ---


def rows(
    count: int = 96,
    inputs: int | Sequence[int] = 4,
    classes: int = 3,
    seed: int = 0,
    spread: float = 1.0,
) -> TensorDataset:
    """Inputs ``[count, *inputs]`` around the centre of their class; the classes come in turn.

    All seeds have the same centres. ``spread``: how far rows lie from them; 0 puts them there.
    """
    shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
    centres = 2 * torch.randn(classes, *shape, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % classes
    noise = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(centres[labels] + spread * noise, labels)


def numbers(
    count: int = 96, inputs: int = 4, seed: int = 0, flipped: float = 0.0, noise: float = 0.1
) -> TensorDataset:
    """Columns, and their sum ``[count, 1]``; of the first share ``flipped`` its opposite."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=random)
    y = x.sum(1, keepdim=True) + noise * torch.randn(count, 1, generator=random)
    y[: round(flipped * count)] *= -1
    return TensorDataset(x, y)


def images(
    count: int = 24, shape: Sequence[int] = (1, 8, 8), classes: int = 2, seed: int = 0
) -> Images:
    """Images of noise, whose classes ``"a"``, ``"b"``, ... come in turn."""
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, *shape), generator=random).to(torch.uint8)
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:classes])
    return Images(pixels, torch.arange(count) % classes, names, "noise")


def table(
    count: int = 200, seed: int = 0, law: float = 1.0, shift: float = 0.0, **columns: Any
) -> pd.DataFrame:
    """Rows of which ``y`` is ``law * size``, plus what the place adds, plus noise.

    ``shift`` moves the sizes; ``columns`` are added, or replace others.
    """
    import pandas as pd  # only tables need it

    draw = np.random.default_rng(seed)
    size = draw.normal(shift, 1, count)
    place = draw.choice(["town", "field", "coast"], count, p=[0.5, 0.3, 0.2])
    y = law * size + 0.5 * (place == "town") + 0.3 * draw.normal(size=count)
    made = {"size": size, "place": place, "noise": draw.normal(size=count), "y": y}
    return pd.DataFrame(made).assign(**columns)


class _Computed(Dataset[Any]):
    def __init__(self, count: int, row: Callable[[int], Any], attributes: dict[str, Any]) -> None:
        self.count, self.row = count, row
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return self.row(row)


class _Stream(IterableDataset[Any]):
    def __init__(self, given: Iterable[Any]) -> None:
        self.given = given

    def __iter__(self) -> Iterator[Any]:
        return iter(self.given)


def as_dataset(given: Sequence[Any], **attributes: Any) -> Dataset[Any]:
    """A map-style data set of these rows, with ``attributes`` such as ``groups``."""
    return _Computed(len(given), given.__getitem__, {"given": given, **attributes})


def computed(count: int, row: Callable[[int], Any], **attributes: Any) -> Dataset[Any]:
    """A map-style data set that calls ``row(number)`` at each reading, with ``attributes``."""
    return _Computed(count, row, attributes)


def as_stream(given: Iterable[Any]) -> IterableDataset[Any]:
    """These rows as a data set that cannot say how long it is."""
    return _Stream(given)


# --- models ---


def seeded(make: Callable[[], Made], seed: int = 0) -> Made:
    """What ``make()`` returns, with random weights that depend on ``seed`` alone."""
    with rng.isolated("cpu", seed):
        return make()


def network(
    inputs: int = 4,
    outputs: int = 3,
    hidden: int = 8,
    *between: nn.Module,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    """A perceptron of flattened inputs; ``hidden=0``: linear.

    ``between``: modules after the first layer, in place of a ReLU, such as ``nn.Tanh()``.
    """

    def make() -> nn.Sequential:
        if not hidden:
            return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))
        first, last = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        return nn.Sequential(nn.Flatten(), first, *(between or (nn.ReLU(),)), last)

    return seeded(make, seed).to(dtype)


class Spectral(nn.Linear):
    """Its Fourier transform has no formula for its FLOPs, but a name: ``_fft_r2c``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.fft.fft(x).abs())


# --- runs ---


def trainer(
    model: nn.Module | None = None,
    train: Any = None,
    validation: Any = None,
    *,
    kind: Callable[..., Any] = Trainer,
    **options: Any,
) -> Any:
    """A `Trainer`, or another ``kind`` of it: 2 epochs in batches of 8, unless options say so.

    Without data it trains a `network` on `rows`, in 24 steps, and validates it.
    """
    if train is None:
        train, validation = rows(), validation or rows(24, seed=1)
    if "budget" not in options:
        options.setdefault("epochs", 2)
    if "config" not in options and not isinstance(train, Loader | DataLoader | list):
        options.setdefault("batch_size", 8)
    options.setdefault("device", "cpu")
    return kind(network() if model is None else model, train, validation, **options)


def gated(rate: float = 0.3, **options: Any) -> Any:
    """`trainer` with a `Gate` of this rate."""
    return trainer(policy=Gate(rate), **options)


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.SGD:
    """Plain SGD of all parameters."""
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def with_dropout() -> nn.Module:
    """A fresh perceptron with dropout, for calls that make their models."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def comparison(**options: Any) -> Comparison:
    """Two policies and two seeds compared on `rows`, unless ``options`` say otherwise."""
    from astkit import Budget, compare  # takes a second that other tests need not wait for

    usual: dict[str, Any] = {
        "make_model": with_dropout,
        "train": rows(64),
        "validation": rows(24, seed=1),
        "test": rows(24, seed=2),
        "policies": ["cached_loss", {"name": "gate", "rate": 0.25}],
        "budget": Budget(epochs=2),
        "seeds": range(2),
        "config": TrainConfig(lr=0.02),
        "batch_size": 16,
        "check_baseline": False,
        "device": "cpu",
    }
    return compare(**{**usual, **options})


# --- misuse ---


def refused(*cases: tuple[Callable[[], Any], str]) -> None:
    """Each call raises one sentence in which its words, a regular expression, are found."""
    for call, words in cases:
        with pytest.raises((ValueError, TypeError), match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
