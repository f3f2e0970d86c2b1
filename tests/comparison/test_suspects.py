"""Rows whose labels are likely wrong, from arrays."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import astkit
from astkit.comparison.suspects import PENALTY, label_doubt
from tests.build import refused

NAN = float("nan")


def test_rows_are_ranked_by_their_loss_above_the_average_of_each_part() -> None:
    losses = [[1.0, 5.0, 3.0, NAN, NAN], [0.0, 0.5, 4.0, NAN, 2.0]]
    assert astkit.suspects(losses).tolist() == [2, 1, 4, 0]
    assert astkit.suspects(np.array(losses), labels=[0, 1, -100, 1, 0]).tolist() == [1, 4, 0]


def test_features_leave_the_row_itself_out_as_refitting_does() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (40,), generator=random)
    x = (torch.randn(40, 5, generator=random) + 2 * torch.eye(5)[labels]).double()
    wrong = labels.clone()
    wrong[:4] = (wrong[:4] + 1) % 3
    found = label_doubt(x, wrong)
    scaled = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    y = np.eye(3)[wrong.numpy()]
    for row in range(40):
        others = np.arange(40) != row
        model = Ridge(PENALTY * 40).fit(scaled[others], y[others])
        predicted = model.predict(scaled[row : row + 1])[0]
        own = int(wrong[row])
        literal = np.delete(predicted, own).max() - predicted[own]
        assert float(found[row]) == pytest.approx(literal)
    first = astkit.suspects(None, wrong, features=x)
    assert len(set(first[:5].tolist()) & {0, 1, 2, 3}) >= 3
    ignored = wrong.where(torch.arange(40) != 9, -100)
    assert 9 not in astkit.suspects(None, ignored, features=x)


def test_arrays_of_other_shapes_are_refused() -> None:
    doubt, ones = astkit.suspects, torch.ones(2, 5)
    refused(
        (lambda: doubt(ones[0]), r"losses have the shape \[5\]: give \[parts, N\]"),
        (lambda: doubt(ones, torch.zeros(4)), r"labels are \[4\] for 5 rows"),
        (lambda: doubt(None, features=ones.T), "features need labels="),
        (
            lambda: doubt(None, torch.zeros(5), features=ones[0]),
            r"features have the shape \[5\] for 5 labels",
        ),
    )
