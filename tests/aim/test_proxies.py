"""Quick models equal literal ones, and which is used follows from the data."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit.aim import proxies
from astkit.aim.proxies import Linear, NGrams, Trees, proxy_of
from tests import build
from tests.aim.pairs import sides, sides_of_data

RANDOM = torch.Generator().manual_seed(0)
CLASSES = torch.arange(300) % 3
X = torch.randn(300, 20, generator=RANDOM)
X[:, 0] += 2 * CLASSES
IMAGES = torch.randn(300, 1, 8, 8, generator=RANDOM) + CLASSES[:, None, None, None]
TOKENS = (torch.randint(0, 9, (300, 1), generator=RANDOM) + 2 * torch.arange(8)) % 9
NUMBERS = X.sum(1, keepdim=True)
MANY = X[:, :1] + torch.randn(300, 60, generator=RANDOM)


def proxy(x: Tensor, y: Tensor, **options: Any) -> Any:
    """That of the first 200 rows beside the others."""
    return proxy_of(sides(x[:200], x[200:], y[:200], y[200:], **options))


@pytest.mark.parametrize(
    ("x", "y", "kind", "name", "unit"),
    [
        (X, NUMBERS, Trees, "boosted trees", "% of the RMSE"),
        (X, CLASSES, Trees, "boosted trees", "points"),
        (X, NUMBERS.repeat(1, 6), Trees, "boosted trees", "% of the RMSE"),
        (X, MANY, Linear, "a linear model", "% of the RMSE"),
        (IMAGES, CLASSES, Linear, "a head on features", "points"),
        (IMAGES, NUMBERS, Linear, "a head on features", "% of the RMSE"),
        (TOKENS, TOKENS, NGrams, "an n-gram model", "bits a token"),
        (TOKENS, CLASSES, Linear, "a head on features", "points"),
    ],
)
def test_the_proxy_follows_from_the_data(
    x: Tensor, y: Tensor, kind: type, name: str, unit: str
) -> None:
    found = proxy(x, y)
    assert type(found) is kind
    assert (found.name, found.unit) == (name, unit)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, torch.randint(0, 9, (300, 5))),  # may be five classes or five counts
        (X, torch.randn(300, 80)),
        (X, torch.randint(0, 5, (300, 9, 9))),  # as of pixels
        (X, torch.randn(300, 1, dtype=torch.complex64)),
        (TOKENS, TOKENS[:, :5]),
    ],
)
def test_there_is_no_proxy_of_other_targets(x: Tensor, y: Tensor) -> None:
    assert proxy(x, y) is None


CASES = {
    "trees": (X, NUMBERS, -NUMBERS),
    "trees of classes": (X, CLASSES, 2 - CLASSES),
    "linear": (X, MANY, -MANY),
    "head": (IMAGES, CLASSES, 2 - CLASSES),
    "n-grams": (TOKENS[:, :-1], TOKENS[:, 1:], TOKENS[:, 1:].flip(1)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_of_weight_zero_leave_no_trace(case: str) -> None:
    """Whatever their inputs and targets are."""
    x, y, others = CASES[case]
    found = []
    for changed in (False, True):
        inputs, targets = x.clone(), y.clone()
        if changed:
            inputs[100:200], targets[100:200] = x[:100].flip(0), others[100:200]
        made = proxy(inputs, targets)
        weights = np.append((made.sides.sample < 100).double().numpy(), np.zeros(100))
        weights[200:250] = 2.0
        found.append(made.losses(weights, np.arange(50, 100)))
    assert found[0].tolist() == pytest.approx(found[1].tolist())
    assert len(found[0]) == 50


def test_classes_are_judged_by_accuracy_also_where_a_value_is_missing() -> None:
    data = build.rows(300, 2)
    data.tensors[0][::50, 0] = torch.nan
    made = proxy(*data.tensors)
    found = made.losses(np.ones(300), np.arange(100))
    assert set(found) <= {0.0, 100.0}
    assert found.mean() < 20
    one = (data.tensors[1][made.sides.sample] == 1).double().numpy()
    alone = made.losses(np.append(one, np.zeros(100)), np.arange(100))  # fitted to one class
    assert alone.tolist() == (100.0 * (data.tensors[1][200:] != 1)).tolist()


WHOLE = {
    "": lambda y: y.round().long()[:, 0],
    "column": lambda y: y.round().long(),
    "ages": lambda y: (18 + 3 * y).round().clamp_min(0).to(torch.uint8)[:, 0],
    "three": lambda y: (y.repeat(1, 3) > 0).long(),  # labels of 0 and 1
}


@pytest.mark.parametrize("form", WHOLE)
def test_whole_numbers_are_judged_as_decimals_are(form: str) -> None:
    y = WHOLE[form](NUMBERS)
    whole, decimal = proxy(X, y), proxy(X, y.float())
    assert whole.unit == decimal.unit == "% of the RMSE"
    weights = np.linspace(1, 2, 300)
    found = [each.losses(weights, np.arange(100)).tolist() for each in (whole, decimal)]
    assert found[0] == found[1]


def test_the_model_of_tokens_equals_a_literal_one() -> None:
    random = torch.Generator().manual_seed(0)
    old, target = (torch.randint(0, 5, (n, 7), generator=random) for n in (40, 15))
    weights = torch.rand(40, generator=random, dtype=torch.float64).numpy()
    data = [TensorDataset(part[:, :-1], part[:, 1:]) for part in (old, target)]
    seen: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]
    followed: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]

    def contexts(row: list[int], place: int) -> list[tuple[int, ...]]:
        """The tokens before the next one; before the first there is token 0."""
        padded = [0, *row]
        return [(), (padded[place + 1],), (padded[place + 1], padded[place])]

    for row, weight in zip(old.tolist(), weights / weights.mean(), strict=True):
        for place in range(6):
            for order, context in enumerate(contexts(row, place)):
                seen[order][context] += weight
                followed[order][(*context, row[place + 1])] += weight
    expected = []
    for row in target.tolist():
        bits = 0.0
        for place in range(6):
            p = 1 / 5
            for order, context in enumerate(contexts(row, place)):
                count = followed[order][(*context, row[place + 1])]
                p = (count + proxies.PRIOR * p) / (seen[order][context] + proxies.PRIOR)
            bits -= math.log2(p) / 6
        expected.append(bits)
    labelled = [TensorDataset(part, part) for part in (old, target)]  # as in transformers
    for parts in (data, labelled):
        made = proxy_of(sides_of_data(*parts))
        assert isinstance(made, NGrams)
        own = np.append(weights[made.sides.sample], np.zeros(15))
        assert made.losses(own, np.arange(15)).tolist() == pytest.approx(expected)


def test_ignored_tokens_do_not_count() -> None:
    y = torch.randint(0, 9, (300, 8), generator=torch.Generator().manual_seed(1))
    y[:, 3:] = -100
    losses = [
        proxy(inputs, targets).losses(np.ones(300), np.arange(100))
        for inputs, targets in ((TOKENS, y), (TOKENS[:, :3], y[:, :3]))
    ]
    assert losses[0] == pytest.approx(losses[1])
