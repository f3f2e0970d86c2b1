"""Importance sampling by gradient norm, where a test of the variance says that it pays."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.helper_models import choice
from astkit.gating.last_loss import check_count, check_share
from astkit.gating.policy import Cost, Policy, PolicyCard
from astkit.gating.scored import Scored
from astkit.gating.selection import Selection
from astkit.gating.uncertainty import gradient_norm


class GradNormIS(Policy):
    """``b = rate * B`` draws from each batch of B, in proportion ``p`` to ``||softmax(z) - y||``.

    Draws repeat rows and weigh ``1 / (B p)``, so that the mean of the weighted losses has the
    gradient of the whole batch as its expectation. ``tau = 1 / sqrt(1 - sum((p - 1 / B)**2) /
    sum(p**2))``, averaged over batches, estimates by which factor a uniform batch would have to
    grow for the same variance. While it is at most ``(B + 3 b) / (3 b)``, b rows are drawn
    uniformly without repeats, and only one batch in ``every`` is scored to test again (published:
    each, from the outputs in training). Load batches of B = 3 b rows for the published setting.
    Source: Katharopoulos and Fleuret, "Not All Samples Are Created Equal", ICML 2018, and its code.

    Args:
        rate: draws over rows of a batch, in (0, 1].
        momentum: of the average of ``tau``, in [0, 1).
        every: batches between tests while drawing uniformly.
        seed: of the draws.

    Raises ``ValueError`` for impossible arguments, and in training for a model without class
    outputs.
    """

    card = PolicyCard(
        law="b of B rows with repeats, in proportion to ||softmax(z) - y||, while tau exceeds"
        " (B + 3 b) / (3 b); else b uniform rows",
        source="Katharopoulos and Fleuret, Not All Samples Are Created Equal, ICML 2018",
        cost="one forward pass a candidate row while it is on, and for one batch in `every` else",
        bias="none for the gradient of the loaded batch: draws weigh 1 / (B p)",
        avoid="where labels are wrong; early in training, when all norms are alike, it stays off",
    )
    cost = Cost(1.0)
    state = ("tau", "batches")

    def __init__(
        self, rate: float = 1 / 3, momentum: float = 0.9, every: int = 10, seed: int = 0
    ) -> None:
        self.rate, self.momentum = check_rate("rate", rate), check_share("momentum", momentum)
        self.every, self.seed = check_count("every", every), seed
        self.tau, self.batches = 0.0, 0

    def choose(self, batch: Scored) -> Selection:
        n, number = batch.rows, self.batches
        count = max(1, round(self.rate * n))
        on = self.tau > (n + 3 * count) / (3 * count)
        self.batches += 1
        random = rng.generator(self.seed, "gradnorm_is", number)
        if on or number % self.every == 0:
            norms = gradient_norm(batch.outputs, batch.targets, batch.inputs).double().cpu()
            total = float(norms.sum())
            p = norms / total if total > 0 else torch.full_like(norms, 1 / n)
            # (p - 1/n)**2 sums to p**2 - 1/n, so that tau is:
            tau = float((n * p.square().sum()).sqrt())
            self.tau = self.momentum * self.tau + (1 - self.momentum) * tau
        if not on:
            return choice(batch, torch.randperm(n, generator=random)[:count])
        drawn = torch.multinomial(p, count, replacement=True, generator=random)
        return choice(batch, drawn, 1 / (n * p[drawn]), normaliser=count)
