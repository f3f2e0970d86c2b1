"""Class-balanced sampling: every class has the same share of each epoch."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.last_loss import labels_of_run
from astkit.gating.policy import Policy, PolicyCard
from astkit.gating.sampler import RunInfo
from astkit.gating.selection import Selection


class ClassBalanced(Policy):
    """The same number of samples of each class: those of rare classes repeat.

    Within a class every sample comes equally often, up to one visit; what does not divide by the
    number of classes goes to classes at random. Source: class-balanced sampling in Kang et al.,
    "Decoupling Representation and Classifier for Long-Tailed Recognition", ICLR 2020.

    Args:
        rate: samples of an epoch over those of the data set, in (0, 1].
        seed: of the draws.

    Raises ``ValueError`` for an impossible rate, and in training for data without class labels.
    """

    card = PolicyCard(
        law="rate * N samples an epoch, equally many of each class; rare ones repeat",
        source="class-balanced sampling in Kang et al., Decoupling, ICLR 2020",
        cost="nothing: a sample that is left out is never loaded",
        bias="towards rare classes, uncorrected: the loss is the mean of the classes' losses",
        avoid="where the classes of the test data are as unequal as those of the training data",
    )

    def __init__(self, rate: float = 1.0, seed: int = 0) -> None:
        self.rate, self.seed = check_rate("rate", rate), seed

    def plan(self, run: RunInfo) -> Selection:
        key, n = (run.seed, "class_balanced", run.epoch, run.round), len(run.rows)
        rows = run.rows[rng.permutation(n, *key)]
        labels = labels_of_run(self, run)[rows]
        rows = rows[labels.argsort(stable=True)]  # one class after the other, each in random order
        sizes = labels.bincount()
        sizes = sizes[sizes > 0]
        classes, total = len(sizes), max(1, round(self.rate * n))
        extra = rng.permutation(classes, *key, "extra") < total % classes
        quotas = total // classes + extra.long()
        which = torch.arange(classes).repeat_interleave(quotas)
        turn = torch.arange(total) - (quotas.cumsum(0) - quotas)[which]
        drawn = rows[(sizes.cumsum(0) - sizes)[which] + turn % sizes[which]]
        drawn = drawn[rng.permutation(total, *key, "order")]
        return Selection(drawn, candidates=n, rate=total / n)
