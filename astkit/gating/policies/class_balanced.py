"""Class-balanced sampling: each epoch contains equally many samples of every class."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.controllers import check_number
from astkit.gating.policies.last_loss import labels_of_run
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection


class ClassBalanced(Policy):
    """Draws ``rate * N`` samples, equally many from each class; those of rare classes repeat.

    Within a class, the sample counts differ by at most one; a remainder that does not divide by
    the number of classes is assigned to random classes.
    """

    card = PolicyCard(
        source="class-balanced sampling in Kang et al., Decoupling, ICLR 2020",
        cost="none: skipped samples are not loaded",
        bias="towards rare classes; not corrected: the loss is the mean over classes",
        avoid="if the test data are as imbalanced as the training data",
    )

    def __init__(self, rate: float = 1.0, seed: int = 0) -> None:
        self.rate, self.seed = check_number("rate", rate), seed

    def plan(self, run: RunInfo) -> Selection:
        key, n = (run.seed, "class_balanced", run.epoch, run.round), len(run.rows)
        rows = run.rows[rng.permutation(n, *key)]
        labels = labels_of_run(self, run)[rows]
        rows = rows[labels.argsort(stable=True)]  # grouped by class, in random order within it
        sizes = labels.bincount()
        sizes = sizes[sizes > 0]
        classes, total = len(sizes), max(1, round(self.rate * n))
        extra = rng.permutation(classes, *key, "extra") < total % classes
        quotas = total // classes + extra.long()
        which = torch.arange(classes).repeat_interleave(quotas)
        turn = torch.arange(total) - (quotas.cumsum(0) - quotas)[which]
        drawn = rows[(sizes.cumsum(0) - sizes)[which] + turn % sizes[which]]
        return Selection(drawn[rng.permutation(total, *key, "order")])
