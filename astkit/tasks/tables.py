"""Tables of scikit-learn: a regression, and a classification with a rare class."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from astkit.gating.losses import class_outputs
from astkit.tasks.parts import Arguments, Labelled, divided, mlp, regression, small, standardised
from astkit.trainers import Metric

RARE, COMMON = 170, 1530
"""Rows of "imbalanced" that show an 8, and others: each part has one in ten."""


def diabetes() -> Arguments:
    """scikit-learn's diabetes data: 10 numbers of 442 patients, and the disease a year later.

    Inputs and target are standardised, so that predicting the mean has a squared error of 1.
    """
    from sklearn.datasets import load_diabetes

    values, target = load_diabetes(return_X_y=True)
    x = torch.tensor(values, dtype=torch.float32)
    y = torch.tensor(target, dtype=torch.float32)
    rows = divided(torch.zeros(len(y), dtype=torch.int64))
    data = Labelled(standardised(x, rows[0]), standardised(y, rows[0]))
    return small(data, rows, partial(mlp, x.shape[1], 1), epochs=20, lr=1e-3) | regression()


def imbalanced() -> Arguments:
    """Is a digit of 8x8 pixels an 8? scikit-learn's digits as a table; one row in ten is.

    The metric is the balanced accuracy, the mean of both classes' recall.
    """
    from sklearn.datasets import load_digits

    values, digit = load_digits(return_X_y=True)
    labels = torch.tensor(digit == 8).long()
    counts = {1: RARE, 0: COMMON}
    kept = torch.cat([(labels == each).nonzero().squeeze(1)[:n] for each, n in counts.items()])
    x, y = torch.tensor(values, dtype=torch.float32)[kept], labels[kept]
    arguments = small(Labelled(x / 16, y), divided(y, 0.3, 1 / 7), partial(mlp, 64, 2), epochs=20)
    metric = Metric("balanced accuracy", balanced, higher_is_better=True)
    return {**arguments, "metrics": metric}


def balanced(outputs: Any, targets: Any) -> Tensor:
    """Rows ``[rows]`` whose mean over a part is the mean of both classes' recall."""
    pair = class_outputs(outputs, targets)
    assert pair is not None
    logits, labels = pair
    share = torch.tensor([COMMON, RARE]) / (COMMON + RARE)
    return (logits.argmax(1) == labels) / (2 * share.to(labels.device)[labels])
