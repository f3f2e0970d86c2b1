"""Which labels are likely wrong: rows by their losses, or by features of a trained model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astkit import rng

PENALTY = 1.0  # of standardised features, for each row


def suspects(losses: Any, labels: Any = None, features: Any = None) -> Tensor:
    """Rows by how likely their label is wrong, the likeliest first: int64 ``[n]``.

    Example::

        import torch

        losses = torch.rand(3, 100)  # of three epochs
        losses[:, 7] = 5.0
        rows = suspects(losses, labels=torch.arange(100) % 10)
        print(int(rows[0]))

    Networks fit consistent samples first, so wrong labels keep a high loss for long (Arpit et al.,
    "A Closer Look at Memorization in Deep Networks", 2017): rows are ranked by the mean over a
    training. With ``features`` they are ranked by a ridge regression of the labels, fitted without
    the row itself: by how much its prediction for another class exceeds that for the label. On
    random wrong labels that found most; on labels of people it and the losses of the last quarter
    alone found more than the mean, and neither more than the other (docs/measured.md).

    Args:
        losses: ``[parts, N]``, of each row in equal parts of a training, such as epochs; rows
            without a finite loss are left out. With ``features`` they are not looked at: give
            ``None``.
        labels: int64 ``[N]``; rows of negative ones, which do not count, are left out.
        features: ``[N, d]``, such as the inputs of the last layer of a trained model.

    Raises ``ValueError`` for arrays of other shapes.
    """
    given = None if labels is None else torch.as_tensor(labels).long()
    if features is not None:
        if given is None:
            raise ValueError("features need labels=, one class number a row, to be compared with")
        score = label_doubt(torch.as_tensor(features), given)
    else:
        losses = torch.as_tensor(losses)
        if losses.ndim != 2:
            raise ValueError(
                f"losses have the shape {list(losses.shape)}: give [parts, N], a line for each"
                " epoch or part of a training"
            )
        score = excess_loss(losses)
    if given is not None and given.shape != score.shape:
        raise ValueError(f"labels are {list(given.shape)} for {len(score)} rows: give one a row")
    if given is not None:
        score = score.where(given >= 0, torch.nan)
    order = highest_first(score)
    return order[~score[order].isnan()]


def excess_loss(losses: Tensor) -> Tensor:
    """Loss above that of the average row in the same part, mean over the parts: float ``[N]``.

    ``losses``: ``[parts, N]``; NaN for rows without a finite one.
    """
    known = losses.where(losses.isfinite(), torch.nan)
    return (known - known.nanmean(1, keepdim=True)).nanmean(0)


def highest_first(values: Tensor) -> Tensor:
    """Rows by falling value, int64 ``[N]``, equal ones at random; those without one (NaN) last."""
    order = rng.permutation(len(values), 0, "rows of equal loss")
    falling = values[order].nan_to_num(-torch.inf, torch.inf).argsort(descending=True, stable=True)
    return order[falling]


def label_doubt(features: Tensor, labels: Tensor) -> Tensor:
    """Largest prediction for another class less that for the label, float64 ``[N]``.

    Of a ridge regression of the classes on standardised ``features [N, d]``, fitted without the row
    itself, by the leverages: Allen, "The relationship between variable selection and data
    augmentation and a method for prediction", Technometrics 16 (1974). Rows of negative labels are
    NaN.
    """
    if features.ndim != 2 or len(features) != len(labels):
        raise ValueError(
            f"features have the shape {list(features.shape)} for {len(labels)} labels: give [N, d]"
        )
    used = labels >= 0
    x, y = features[used].double(), torch.nn.functional.one_hot(labels[used]).double()
    x = (x - x.mean(0)) / x.std(0, correction=0).clamp_min(1e-12)
    count, columns = x.shape
    penalty = PENALTY * count * torch.eye(columns, dtype=torch.float64)
    inverse = torch.linalg.solve(x.T @ x + penalty, x.T)
    leverage = 1 / count + (x * inverse.T).sum(1)
    fitted = y.mean(0) + x @ (inverse @ (y - y.mean(0)))
    without = y - (y - fitted) / (1 - leverage)[:, None]
    of_label = (without * y).sum(1)
    others = without.masked_fill(y > 0, -torch.inf).amax(1)
    doubt = torch.full((len(labels),), torch.nan, dtype=torch.float64)
    doubt[used] = others - of_label
    return doubt
