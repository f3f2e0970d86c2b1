"""Blocks of neighbouring rows that depend on each other, which are compared as a whole."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from astkit.aim.features import TABLE, Matrix, Rows
from astkit.datasets.dependence import (
    Array,
    autocorrelation_time,
    block_length,
    centred,
    sorted_by,
)

TRACED = 4000  # rows of which it is asked whether neighbours depend on each other, at most
STRETCHES = 3  # of training rows, as long as the target, of which the same is asked
COLUMNS = 32  # of features that are looked at for it; of more a quarter as many components
OUTPUTS = 4  # of a target, at most, that are looked at


def find_blocks(train: Rows, target: Rows, labels: tuple[Tensor, Tensor] | None) -> float:
    """Independent rows that the target is worth; infinite where groups say what depends.

    ``labels``: of both, where they are classes. Where neighbouring rows of the target depend on
    each other, in their inputs or targets, ``block`` of both is set. The autocorrelation time is
    that of the target, or the median of stretches of training rows of the same length if that is
    longer: a change within the training data is not in most of them.
    """
    if train.groups is not None or target.groups is not None:
        return math.inf
    of_train, of_target = (None, None) if labels is None else labels
    count = len(target)
    if target.kind != TABLE:  # of a table columns may be left out later
        target.keep(torch.arange(count))
    length = min(count, TRACED)
    time = autocorrelation_time(columns_of(target, of_target, 0, length))
    if time > 1 and not train.of_model:
        length = min(length, len(train))
        starts = np.linspace(0, len(train) - length, STRETCHES).astype(int).tolist()
        parts = [columns_of(train, of_train, start, length) for start in starts]
        time = max(time, float(np.median([autocorrelation_time(part) for part in parts])))
    train.block = target.block = block_length(time, count)
    return count / time


def columns_of(rows: Rows, labels: Tensor | None, start: int, length: int) -> Array:
    """What is known of consecutive rows, ``[length, d]``.

    Features, or their principal components where they are many, and targets; without columns that
    only rise or fall, such as dates, which say how rows are sorted.
    """
    which = torch.arange(start, start + length)
    x, y = principal(rows.features(which)), np.empty((length, 0))
    if labels is None:
        targets = rows.targets(which)
        if targets is not None and targets[0].numel() <= OUTPUTS:
            y = targets.reshape(length, -1).double().numpy()
    elif sorted_by(labels.numpy()):
        x = centred(x, labels[which].numpy())
    else:
        y = labels[which].numpy()[:, None] == np.unique(labels[which])
    columns = np.hstack([x, y])
    steps = np.diff(columns, axis=0)
    both: Array = columns[:, (steps > 0).any(0) & (steps < 0).any(0)]
    return both


def principal(x: Matrix) -> Array:
    """``x [n, d]`` itself, if it has at most `COLUMNS` columns; else its principal components."""
    if x.shape[1] <= COLUMNS:
        return np.nan_to_num(np.asarray(x, np.float64), posinf=0.0, neginf=0.0)
    from sklearn.decomposition import TruncatedSVD

    if isinstance(x, np.ndarray):
        x = np.nan_to_num(x, posinf=0.0, neginf=0.0)
        x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
    count = min(COLUMNS // 4, *(size - 1 for size in x.shape))
    components: Array = TruncatedSVD(max(1, count), random_state=0).fit_transform(x)
    return components
