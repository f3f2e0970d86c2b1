"""How good a prediction is, and what the simplest predictions reach.

A prediction is judged by where the right target stands among all targets of the validation part,
ordered by their cosine to the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit import rng
from astkit.lattice.tasks import CHUNK, Pairs, Task

LAMBDAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
HELD_OUT = 0.15  # of the training part, to choose lambda on


@dataclass(frozen=True)
class Retrieval:
    """How well predictions find their targets.

    Attributes:
        samples: predictions, and targets to choose among.
        cosine: mean cosine of a prediction and its target.
        top1, top5: share of predictions whose target ranks first, or among the first five.
        mrr: mean of 1 / rank (Voorhees, TREC-8, 1999). Targets that tie share their mean rank, so
            a constant prediction gains nothing.
    """

    samples: int
    cosine: float
    top1: float
    top5: float
    mrr: float

    def to_dict(self) -> dict[str, float]:
        """The fields as plain values."""
        return asdict(self)


def retrieval(predicted: Tensor, targets: Tensor) -> Retrieval:
    """Metrics of ``predicted [N, dim]`` against ``targets [N, dim]``, of which row i is i's own.

    Raises ``ValueError`` for other shapes, or for a prediction that is not finite.
    """
    if predicted.ndim != 2 or predicted.shape != targets.shape or not len(predicted):
        raise ValueError(
            f"predicted has shape {list(predicted.shape)} and targets {list(targets.shape)}: give"
            " [N, dim] for both, with at least one row"
        )
    if not bool(predicted.isfinite().all()):
        raise ValueError("predicted holds a value that is not finite: the model has diverged")
    predicted, targets = F.normalize(predicted.float()), F.normalize(targets.float())
    ranks, cosines = [], []
    for rows in torch.arange(len(predicted), device=predicted.device).split(CHUNK):
        similar = predicted[rows] @ targets.T
        own = similar.gather(1, rows[:, None])
        ranks.append((similar > own).sum(1) + ((similar == own).sum(1) + 1) / 2)
        cosines.append(own)
    rank, cosine = torch.cat(ranks).double(), torch.cat(cosines).double()
    found = (cosine, rank <= 1, rank <= 5, 1 / rank)
    return Retrieval(len(rank), *(float(values.double().mean()) for values in found))


def targets_of(pairs: Pairs) -> Tensor:
    """All targets, float32 ``[K, dim]``."""
    return torch.cat([y for _, y in pairs.chunks()])


class Ridge:
    """Linear regression with an intercept and a penalty of ``lam`` on the squared weights.

    Solves ``(Xc'Xc + lam I) W = Xc'Yc`` for centred X and Y (Hoerl and Kennard, Technometrics
    12(1), 1970) in float64, from sums over chunks of rows.
    """

    def __init__(self, weight: Tensor, mean_x: Tensor, mean_y: Tensor, lam: float) -> None:
        self.weight, self.mean_x, self.mean_y, self.lam = weight, mean_x, mean_y, lam

    @classmethod
    def path(cls, pairs: Pairs, lambdas: Sequence[float]) -> Iterator[Ridge]:
        """One fit to ``pairs`` for each of ``lambdas``, from sums that are taken once."""
        dim, n = pairs.x.shape[1], len(pairs)
        sum_x, sum_y = torch.zeros(dim).double(), torch.zeros(dim).double()
        gram, cross = torch.zeros(dim, dim).double(), torch.zeros(dim, dim).double()
        for x, y in pairs.chunks():
            x, y = x.double(), y.double()
            sum_x += x.sum(0)
            sum_y += y.sum(0)
            gram += x.T @ x
            cross += x.T @ y
        mean_x, mean_y = sum_x / n, sum_y / n
        gram -= n * mean_x[:, None] * mean_x
        cross -= n * mean_x[:, None] * mean_y
        for lam in lambdas:
            weight = torch.linalg.solve(gram + lam * torch.eye(dim).double(), cross)
            yield cls(weight, mean_x, mean_y, lam)

    @classmethod
    def choose(cls, train: Pairs, lambdas: Sequence[float] = LAMBDAS, seed: int = 0) -> Ridge:
        """The lambda with the highest MRR on a part of ``train``, fitted to the whole of it.

        Raises ``ValueError`` for no lambda, one below 0, or fewer than two pairs.
        """
        if not lambdas or min(lambdas) < 0:
            raise ValueError(f"lambdas is {lambdas}: give at least one number, none below 0")
        if len(train) < 2:
            raise ValueError(f"train has {len(train)} pairs: give 2 or more, to hold one out")
        order = rng.permutation(len(train), seed, "ridge")
        held = max(1, int(HELD_OUT * len(train)))
        out, fit = (replace(train, rows=train.rows[o]) for o in (order[:held], order[held:]))
        scores = {ridge.lam: ridge.score(out).mrr for ridge in cls.path(fit, lambdas)}
        return next(cls.path(train, [max(scores, key=scores.__getitem__)]))

    def __call__(self, x: Tensor) -> Tensor:
        """Predictions float64 ``[B, dim]`` for sources ``[B, dim]``."""
        return (x.double() - self.mean_x) @ self.weight + self.mean_y

    def score(self, pairs: Pairs) -> Retrieval:
        """Metrics of the predictions for ``pairs``."""
        predicted = torch.cat([self(x) for x, _ in pairs.chunks()])
        return retrieval(predicted, targets_of(pairs))


def baselines(task: Task) -> dict[str, Retrieval]:
    """Metrics on the validation part of: the mean of the training targets, a copy of the source,
    and `Ridge`. The fourth baseline, the bypass, is a `train` with ``lattice=False``."""
    held = task.validation
    targets = targets_of(held)
    mean = sum(y.double().sum(0) for _, y in task.train.chunks()) / len(task.train)
    return {
        "train mean": retrieval(torch.as_tensor(mean).expand_as(targets), targets),
        "copy input": retrieval(torch.cat([x for x, _ in held.chunks()]), targets),
        "ridge": Ridge.choose(task.train).score(held),
    }
