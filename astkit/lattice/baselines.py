"""Retrieval metrics of predicted embeddings, and simple baselines.

A prediction is judged by the rank of its own target among all targets of the validation part,
ordered by their cosine to the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit import rng
from astkit.lattice.tasks import Pairs, Task

CHUNK = 4096  # predictions per chunk
LAMBDAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
HELD_OUT = 0.15  # share of the training part used to choose lambda


@dataclass(frozen=True)
class Retrieval:
    """Retrieval metrics of predictions.

    Attributes:
        samples: number of predictions, and of targets to choose among.
        cosine: mean cosine of a prediction and its target.
        top1, top5: share of predictions whose target ranks first, or among the first five.
        mrr: mean reciprocal rank (Voorhees, TREC-8, 1999); ties share their mean rank.
    """

    samples: int
    cosine: float
    top1: float
    top5: float
    mrr: float


def retrieval(predicted: Tensor, targets: Tensor) -> Retrieval:
    """Metrics of ``predicted [N, dim]`` against ``targets [N, dim]``, row by row.

    Raises ``ValueError`` for other shapes, or non-finite predictions.
    """
    if predicted.ndim != 2 or predicted.shape != targets.shape or not len(predicted):
        raise ValueError(
            f"predicted has shape {list(predicted.shape)} and targets {list(targets.shape)}: give"
            " [N, dim] for both, with at least one row"
        )
    if not bool(predicted.isfinite().all()):
        raise ValueError("predicted contains a value that is not finite: the model has diverged")
    predicted, targets = F.normalize(predicted.float()), F.normalize(targets.float())
    ranks, cosines = [], []
    for rows in torch.arange(len(predicted), device=predicted.device).split(CHUNK):
        similar = predicted[rows] @ targets.T
        own = similar.gather(1, rows[:, None])
        ranks.append((similar > own).sum(1) + ((similar == own).sum(1) + 1) / 2)
        cosines.append(own)
    # float64 on the CPU, since MPS has none
    rank, cosine = (torch.cat(values).cpu().double() for values in (ranks, cosines))
    found = (cosine, rank <= 1, rank <= 5, 1 / rank)
    return Retrieval(len(rank), *(float(values.double().mean()) for values in found))


def ridge(train: Pairs) -> Any:
    """Ridge regression in float64 (scikit-learn), lambda chosen by MRR on a part of ``train``."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    if len(train) < 2:
        raise ValueError(f"train has {len(train)} pairs: give 2 or more, to hold one out")
    order = rng.permutation(len(train), 0, "ridge").numpy()
    held = max(1, int(HELD_OUT * len(train)))

    def mrr(fitted: Ridge, x: Any, y: Any) -> float:
        return retrieval(*map(torch.from_numpy, (fitted.predict(x), y))).mrr

    split = (order[held:], order[:held])
    options: Any = {"scoring": mrr, "cv": [split], "error_score": "raise"}
    search = GridSearchCV(Ridge(), {"alpha": LAMBDAS}, **options)
    return search.fit(*(side.double().numpy() for side in train.whole())).best_estimator_


def baselines(task: Task) -> dict[str, Retrieval]:
    """Validation metrics of the mean training target, a copy of the source, and `ridge`."""
    x, y = task.validation.whole()
    mean = task.train.whole()[1].double().mean(0)
    predicted = torch.from_numpy(ridge(task.train).predict(x.double().numpy()))
    return {
        "train mean": retrieval(mean.expand_as(y), y),
        "copy input": retrieval(x, y),
        "ridge": retrieval(predicted, y),
    }
