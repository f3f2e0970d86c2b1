"""A classifier equals a literal ridge regression, and its price is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from astkit.aim import estimators
from astkit.aim.features import Rows
from astkit.aim.pair import Pair
from tests.aim.pairs import pair


def test_features_of_a_model_are_told_apart_with_the_label_by_a_literal_ridge_regression() -> None:
    random = torch.Generator().manual_seed(0)
    seen = [torch.randn(n, 3, generator=random) for n in (90, 30)]
    labels = [torch.randint(4, (n,), generator=random) for n in (90, 30)]
    rows = [
        Rows(TensorDataset(x, y), by_row=x.__getitem__) for x, y in zip(seen, labels, strict=True)
    ]
    factor = torch.rand(90, dtype=torch.float64, generator=random)
    fitted = torch.arange(0, 90, 2), torch.arange(20)
    found = estimators.Classifier(Pair(*rows), *fitted, factor)
    scores = found.scores(rows[0], torch.arange(90))

    views = [np.hstack([x, np.eye(4)[y]]) for x, y in zip(seen, labels, strict=True)]
    x = np.vstack([view[which] for view, which in zip(views, fitted, strict=True)])
    kinds = np.repeat([0.0, 1.0], [45, 20])
    weight = np.concatenate([factor[::2], np.full(20, float(factor[::2].sum()) / 20)])
    middle, spread = x.mean(0), x.std(0)
    a = (x - middle) / spread
    means = [np.average(part, 0, weight) for part in (a, kinds)]
    a, centred = a - means[0], kinds - means[1]
    penalty = estimators.SHRINK * weight.sum() * 7 / 20
    slope = np.linalg.solve((a.T * weight) @ a + penalty * np.eye(7), (a.T * weight) @ centred)
    expected = ((views[0] - middle) / spread - means[0]) @ slope + means[1]
    assert scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shape", [(4,), (1, 8, 8)])
def test_the_least_price_of_a_fit_is_near_the_price(shape: tuple[int, ...]) -> None:
    both = pair(torch.randn(900, *shape), torch.randn(240, *shape))
    least = estimators.least_fit(both)
    estimators.Classifier(both, torch.arange(660), torch.arange(240), torch.ones(900))
    assert least == pytest.approx(both.flops, rel=0.05)


def test_the_price_of_a_fit_to_texts_is_not_known_before() -> None:
    assert estimators.least_fit(pair(*torch.arange(200).reshape(2, 20, 5))) == 0
