"""Forecasts: their proxies, their errors, and when they say that they cannot tell."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from astkit.aim.features import Rows
from astkit.aim.gains import PRIOR, ExpectedGain
from astkit.aim.pair import Pair
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit.aim import gains


def pair(train: TensorDataset, target: TensorDataset) -> Pair:
    return Pair(Rows(train), Rows(target))


def test_a_forecast_is_one_sentence() -> None:
    said = ExpectedGain(9.04, 0.75, "points", 1.0, seconds=14.2).sentence
    assert said == "forecast: +9.0 +- 1.5 points from choosing by the target; 14 s"
    unsure = ExpectedGain(0.4, 0.9, "points", 0.0, seconds=2.0).sentence
    assert unsure == "forecast: cannot tell, +0.4 +- 1.8 points; 2 s"
    bits = ExpectedGain(0.363, 0.01, "bits a token", 1.0, seconds=9.0).sentence
    assert bits == "forecast: +0.36 +- 0.02 bits a token from choosing by the target; 9 s"
    assert ExpectedGain(0, 0, "", 0.0, "nothing", 2.0).sentence == "forecast: nothing; 2 s"


def test_a_gain_is_paired_and_that_of_an_rmse_relative() -> None:
    random = np.random.default_rng(0)
    dense, noise = 100.0 * (random.random(400) < 0.4), random.random(400)
    chosen = np.where(noise < 0.1, 0.0, dense)
    found, error = gains.gain(dense, chosen, "points", np.arange(400))
    assert found == pytest.approx((dense - chosen).mean())
    assert error == pytest.approx((dense - chosen).std(ddof=1) / 20)
    squares = random.random((2, 300)) * [[4.0], [1.0]]
    found, error = gains.gain(*squares, "% of the RMSE", np.arange(300))
    assert found == pytest.approx(100 * (1 - (squares[1].mean() / squares[0].mean()) ** 0.5))
    draws = []
    for _ in range(2000):  # bootstrap
        rows = random.integers(0, 300, 300)
        draws.append(gains.gain(*squares[:, rows], "% of the RMSE", np.arange(300))[0])
    assert error == pytest.approx(np.std(draws), rel=0.1)
    groups = random.permutation(np.arange(400) % 20)  # 20 rows each: the error is that of 20 means
    means = np.array([(dense - chosen)[groups == each].mean() for each in range(20)])
    _, error = gains.gain(dense, chosen, "points", groups)
    assert error == pytest.approx(means.std(ddof=1) / 20**0.5)
    assert gains.gain(dense, chosen, "points", 0 * groups)[1] == np.inf


def regression(rows: int, seed: int, wrong: float, outputs: int = 1) -> TensorDataset:
    """A law, and for a share of the rows another one; the same for several outputs."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=random)
    sign = 1 - 2 * (torch.arange(rows) < wrong * rows).float()
    return TensorDataset(
        x, (x.sum(1) * sign + 0.3 * torch.randn(rows, generator=random))[:, None].repeat(1, outputs)
    )


@pytest.mark.parametrize("outputs", [1, 3, 6])
def test_weights_that_help_are_taken_and_others_are_not(outputs: int) -> None:
    """The half of the target that shapes weights is never the one that judges them."""
    two = pair(regression(400, 0, 0.5, outputs), regression(200, 1, 0.0, outputs))
    asked: list[Tensor] = []

    def right(of_target: Tensor, rows: Tensor) -> Tensor:
        asked.append(of_target)
        return (rows >= 200).double() + 1e-3

    gain, error, unit, power = gains.best_power(two, right)[:4]
    assert (power, unit) == (1.0, "% of the RMSE")
    assert gain > 50
    assert gain > 10 * error
    assert torch.cat(asked).sort().values.equal(torch.arange(200))

    def useless(of_target: Tensor, rows: Tensor) -> Tensor:
        random = torch.Generator().manual_seed(len(rows))
        return torch.rand(len(rows), generator=random, dtype=torch.float64) + 0.5

    gain, error, _, power = gains.best_power(two, useless)[:4]
    assert power == 0
    assert abs(gain) < 3 * error + 2


def test_classes_are_judged_by_accuracy_and_other_targets_not() -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    data = TensorDataset(y[:, None] + 0.1 * torch.randn(300, 2, generator=random), y)

    def flat(of_target: Tensor, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), dtype=torch.float64)

    assert gains.best_power(pair(data, data), flat) == ExpectedGain(0.0, 0.0, "points", 0.0)
    data.tensors[0][::50, 0] = torch.nan  # a missing value of three classes, in a table
    assert gains.best_power(pair(data, data), flat).unit == "points"
    bare = TensorDataset(torch.rand(60, 2))
    assert gains.best_power(pair(bare, bare), flat)[:4] == (0.0, 0.0, "", 1.0)


WHOLE = {
    "": lambda y: y.round().long()[:, 0],
    "column": lambda y: y.round().long(),
    "ages": lambda y: (18 + 3 * y).round().clamp_min(0).to(torch.uint8)[:, 0],
    "three": lambda y: (y.repeat(1, 3) > 0).long(),  # labels of 0 and 1
}


@pytest.mark.parametrize("form", WHOLE)
def test_whole_numbers_are_judged_as_decimals_are(form: str) -> None:
    """Rows of another law are left out, as where the same numbers are decimals."""
    (x, y), (z, w) = (regression(*each).tensors for each in ((400, 0, 0.5), (200, 1, 0.0)))

    def right(of_target: Tensor, rows: Tensor) -> Tensor:
        return (rows >= 200).double() + 1e-3

    found = []
    for change in (lambda y: y, Tensor.float):
        given = [(x, change(WHOLE[form](y))), (z, change(WHOLE[form](w)))]
        found.append(gains.best_power(pair(*(TensorDataset(*part) for part in given)), right))
    assert found[0] == found[1]
    assert (found[0].unit, found[0].power) == ("% of the RMSE", 1.0)


def test_targets_that_no_proxy_knows_are_no_reason_to_choose() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=random)
    for y in (
        torch.randint(0, 9, (300, 5), generator=random),  # may be five classes or five counts
        torch.randn(300, 80, generator=random),
        torch.randint(0, 5, (300, 9, 9), generator=random),  # as of pixels
    ):
        found = gains.best_power(pair_of(x, y, 100), lambda of_target, rows: 1.0 + rows.double())
        assert (found.power, found.unit) == (0.0, "")
        assert "no proxy knows such targets" in found.reason
    assert gains.best_power(
        Pair(*(Rows(TensorDataset(x, x[:, :3].long()), classes=False) for _ in range(2))),
        lambda of_target, rows: torch.ones(len(rows), dtype=torch.float64),
    ).unit


def test_the_model_of_tokens_equals_a_literal_one() -> None:
    random = torch.Generator().manual_seed(0)
    train, held = (torch.randint(0, 5, (n, 7), generator=random) for n in (40, 15))
    weights = torch.rand(40, generator=random, dtype=torch.float64).numpy()
    data, target = (TensorDataset(part[:, :-1], part[:, 1:]) for part in (train, held))
    fit = gains._language_model(pair(data, target), torch.arange(40), train[:, 1:])
    seen: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]
    followed: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]

    def contexts(row: list[int], place: int) -> list[tuple[int, ...]]:
        """The tokens before the next one; before the first there is token 0."""
        padded = [0, *row]
        return [(), (padded[place + 1],), (padded[place + 1], padded[place])]

    for row, weight in zip(train.tolist(), weights / weights.mean(), strict=True):
        for place in range(6):
            for order, context in enumerate(contexts(row, place)):
                seen[order][context] += weight
                followed[order][(*context, row[place + 1])] += weight
    expected = []
    for row in held.tolist():
        bits = 0.0
        for place in range(6):
            p = 1 / 5
            for order, context in enumerate(contexts(row, place)):
                count = followed[order][(*context, row[place + 1])]
                p = (count + PRIOR * p) / (seen[order][context] + PRIOR)
            bits -= math.log2(p) / 6
        expected.append(bits)
    assert fit(weights).tolist() == pytest.approx(expected)
    labelled = pair(*(TensorDataset(part, part) for part in (train, held)))  # as in transformers
    fit = gains._language_model(labelled, torch.arange(40), train)
    assert fit(weights).tolist() == pytest.approx(expected)


def pair_of(x: Tensor, y: Tensor, of_target: int) -> Pair:
    """The last ``of_target`` rows as target of the others."""
    parts = [
        TensorDataset(x[rows], y[rows]) for rows in (slice(-of_target), slice(-of_target, None))
    ]
    return Pair(*map(Rows, parts))


def test_ignored_tokens_do_not_count() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 9, (300, 8), generator=random)
    y = torch.randint(0, 9, (300, 8), generator=random)
    y[:, 3:] = -100
    losses = []
    for inputs, targets in ((x, y), (x[:, :3], y[:, :3])):
        pair = pair_of(inputs, targets, 100)
        fit = gains._language_model(pair, torch.arange(200), targets[:200])
        losses.append(fit(np.ones(200)))
    assert losses[0] == pytest.approx(losses[1])


def test_a_column_of_integers_beside_tokens_is_no_text() -> None:
    x = torch.randint(0, 9, (300, 8), generator=torch.Generator().manual_seed(0))
    found = gains.proxy_of(pair_of(x, x[:, :5], 100), torch.arange(200))
    assert found is None


def test_nothing_can_be_gained_where_no_error_is_left() -> None:
    assert gains.gain(np.zeros(9), np.zeros(9), "% of the RMSE", np.arange(9)) == (0.0, 0.0)
