"""Importance sampling by gradient norm, enabled when the variance reduction justifies it."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.checks import SHARE, check_count, check_number
from astkit.gating.policy import Policy, PolicyCard, Scored, Selection
from astkit.gating.scores import gradient_norm


class GradNormIS(Policy):
    """Draws ``b = rate * B`` of B rows with ``p`` proportional to ``||softmax(z) - y||``.

    Example::

        Trainer(model, train, policy=GradNormIS(1 / 3), epochs=4).run()

    Rows are drawn with replacement and weighted by ``1 / (B p)``, which makes the gradient an
    unbiased estimate of the batch gradient. ``tau = 1 / sqrt(1 - sum((p - 1 / B)**2) /
    sum(p**2))``, averaged over batches, estimates the factor by which a uniform batch would have to
    grow for the same variance. While it is at most ``(B + 3 b) / (3 b)``, b rows are drawn
    uniformly without replacement, and only one batch in ``every`` is scored to update ``tau``
    (published: every batch, from the training outputs). The published setting is B = 3 b.

    Args:
        momentum: decay of the average of ``tau``, in [0, 1).
        every: interval, in batches, between tests while drawing uniformly.
    """

    card = PolicyCard(
        source="Katharopoulos and Fleuret, Not All Samples Are Created Equal, ICML 2018, and code",
        cost="one forward pass per candidate row when enabled, else in one batch of `every`",
        bias="none with respect to the batch gradient: draws are weighted by 1 / (B p)",
        avoid="with noisy labels; it stays disabled early in training, when all norms are similar",
    )
    state = ("tau", "batches")

    def __init__(
        self, rate: float = 1 / 3, momentum: float = 0.9, every: int = 10, seed: int = 0
    ) -> None:
        self.rate, self.every = check_number("rate", rate), check_count("every", every)
        self.momentum, self.seed = check_number("momentum", momentum, SHARE), seed
        self.tau, self.batches = 0.0, 0

    def choose(self, batch: Scored) -> Selection:
        n, number = batch.rows, self.batches
        count = max(1, round(self.rate * n))
        on = self.tau > (n + 3 * count) / (3 * count)
        self.batches += 1
        random = rng.generator(self.seed, "gradnorm_is", number)
        if on or number % self.every == 0:
            batch.score()
            norms = gradient_norm(batch.outputs, batch.targets, batch.inputs).cpu().double()
            total = float(norms.sum())
            p = norms / total if total > 0 else torch.full_like(norms, 1 / n)
            # sum((p - 1/n)**2) = sum(p**2) - 1/n, so tau simplifies to
            tau = float((n * p.square().sum()).sqrt())
            self.tau = self.momentum * self.tau + (1 - self.momentum) * tau
        if not on:
            return batch.select(torch.randperm(n, generator=random)[:count])
        drawn = torch.multinomial(p, count, replacement=True, generator=random)
        return batch.select(drawn, 1 / (n * p[drawn]), normaliser=count)
