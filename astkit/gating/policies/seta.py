"""SeTa: trains on a sliding window over groups of similar loss, from easy to hard."""

from __future__ import annotations

import torch
from torch import Tensor

from astkit import rng
from astkit.checks import PART, check_count, check_number
from astkit.gating.policies.last_loss import LastLoss, ending
from astkit.gating.policy import PolicyCard, RunInfo, Selection


class SeTa(LastLoss):
    """Draws a random fraction of the samples and trains on a window of their loss groups.

    Example::

        Trainer(model, train, policy=SeTa(0.9, groups=5), epochs=4).run()

    The latest losses of ``floor(rate * N)`` random samples are clustered into ``groups`` groups
    by k-means; epoch t trains on ``round(window * groups)`` adjacent groups, starting at number
    ``t mod (groups - round(window * groups) + 1)``. The first epoch and those from ``floor(delta *
    epochs)`` on train on all groups. The loss of samples without one is 3, as published; k-means
    is initialised at quantiles of the losses (published: at random). Defaults as for CIFAR.

    Args:
        rate: fraction of the samples drawn at random in each epoch, in (0, 1].
        groups: number of groups, 1 or more.
        window: fraction of the groups to train on, above 0 and at most 1.
        delta: fraction of the epochs that use the window, in [0, 1].
    """

    card = PolicyCard(
        source="Zhou et al., Scale Efficient Training (SeTa), CVPR 2025",
        cost="none: skipped samples are not loaded",
        bias="towards the groups in the window; not corrected; over a full cycle the middle groups"
        " are used more often",
        avoid="for short training that ends before the window has covered all groups",
    )
    unseen = 3.0

    def __init__(
        self,
        rate: float = 0.9,
        groups: int = 5,
        window: float = 0.9,
        delta: float = 0.875,
        seed: int = 0,
    ) -> None:
        self.groups, self.window = check_count("groups", groups), check_number("window", window)
        if not round(groups * window):
            raise ValueError(
                f"window is {window} of {groups} groups, which is 0: give a window that holds a"
                " group, such as groups=5, window=0.9"
            )
        self.rate = check_number("rate", rate)
        self.delta, self.seed = check_number("delta", delta, PART), seed

    def plan(self, run: RunInfo) -> Selection:
        losses, rows = self.recall(run), len(run.rows)
        order = rng.permutation(rows, run.seed, "seta", run.epoch, run.round)
        kept = order[: max(1, int(self.rate * rows + 1e-9))]
        if run.epoch and not ending(run, self.rounds, self.delta):
            width = round(self.groups * self.window)
            first = run.epoch % (self.groups - width + 1)
            group = loss_groups(losses[kept], self.groups)
            inside = kept[(group >= first) & (group < first + width)]
            kept = inside if len(inside) else kept[:1]
        return Selection(run.rows[kept])


def loss_groups(losses: Tensor, groups: int) -> Tensor:
    """Group of each loss by k-means, 0 for the lowest: int64 ``[n]``. Equal losses: by position.

    In one dimension, groups are intervals of the sorted losses: each k-means iteration needs one
    search per boundary.
    """
    n, values = len(losses), losses.double()
    ordered = values.sort().values
    if ordered[0] == ordered[-1]:
        return torch.arange(n) // -(-n // groups)
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    centres = ordered[((torch.arange(groups) + 0.5) * n / groups).long()]
    for _ in range(300):
        middles = (centres[1:] + centres[:-1]) / 2
        inner = torch.searchsorted(ordered, middles)
        ends = torch.cat([inner.new_zeros(1), inner, inner.new_tensor([n])])
        sizes = ends.diff()
        means = torch.where(sizes > 0, sums[ends].diff() / sizes, centres)
        if torch.equal(means, centres):
            break
        centres = means
    return torch.bucketize(values, middles, right=True)
