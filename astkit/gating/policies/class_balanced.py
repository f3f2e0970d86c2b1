"""Class-balanced sampling: each epoch contains equally many samples of every class."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.checks import check_number
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection


class ClassBalanced(Policy):
    """Draws ``rate * N`` samples, equally many from each class; those of rare classes repeat.

    Example::

        Trainer(model, train, policy=ClassBalanced(), epochs=4).run()

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
        name = type(self).__name__
        if run.classes is False:
            raise ValueError(
                f"{name} chooses by class, but the criterion takes the targets as numbers: use a"
                " policy that needs no classes, such as InfoBatch, or a criterion over classes"
            )
        own = None if run.labels is None else run.labels[run.rows]
        if own is None or bool((own < 0).any()):
            held = "no class labels" if own is None else f"the label {int(own.min())}"
            raise ValueError(
                f"{name} chooses by class, but the data set holds {held}: give it an attribute"
                " labels with one class number of 0 or more for each sample"
            )
        labels = own.unique(return_inverse=True)[1]  # numbered without gaps
        count = max(1, round(self.rate * len(run.rows)))
        key = (run.seed, "class_balanced", run.epoch, run.round)
        order = rng.permutation(len(labels), *key)
        order = order[labels[order].argsort(stable=True)]  # by class, in random order within it
        sizes = labels.bincount()
        sizes = sizes[sizes > 0]
        classes = len(sizes)
        extra = rng.permutation(classes, *key, "extra") < count % classes
        quotas = count // classes + extra.long()
        which = torch.arange(classes).repeat_interleave(quotas)
        turn = torch.arange(count) - (quotas.cumsum(0) - quotas)[which]
        drawn = order[(sizes.cumsum(0) - sizes)[which] + turn % sizes[which]]
        return Selection(run.rows[drawn[rng.permutation(count, *key, "order")]])
