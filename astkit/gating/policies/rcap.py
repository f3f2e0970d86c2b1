"""RCAP: class sizes depend on the class losses; within a class, high losses are preferred."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from astkit import rng
from astkit.gating.controllers import ABOVE_0, check_number
from astkit.gating.policies.last_loss import LastLoss, draw_weighted, labels_of_run
from astkit.gating.policy import PolicyCard, RunInfo, Selection


class RCAP(LastLoss):
    """Draws ``rate * N`` samples per epoch, by class quota and a softmax of losses within a class.

    In a class of n samples, a sample's importance is the softmax of ``loss / beta`` over the class;
    the latest losses are used, clipped at ln(classes), which is also the value of samples without a
    loss. The class quota is ``rate * N * v / sum(v)``, rounded up, 1 to n, where ``v =
    sqrt(n / N * s)`` and s is the total importance of its samples selected in the last epoch;
    samples are drawn without replacement in proportion to their importance. The published code
    (datacull) has no default for ``beta``; unlike there, the samples of exhausted classes are
    subtracted from the total.

    Args:
        beta: temperature of the softmax, in units of the loss, above 0.
    """

    card = PolicyCard(
        source="reconstructed from abstract and published code of Hassan et al., RCAP, 2026",
        cost="none: skipped samples are not loaded",
        bias="towards rare classes and high losses; not corrected",
        avoid="with noisy labels: high losses are clipped at ln(classes) but still preferred",
    )
    state: ClassVar[tuple[str, ...]] = ("losses", "chosen")
    chosen: Tensor | None = None

    def __init__(self, rate: float = 0.5, beta: float = 1.0, seed: int = 0) -> None:
        self.rate, self.beta = check_number("rate", rate), check_number("beta", beta, ABOVE_0)
        self.seed = seed

    def plan(self, run: RunInfo) -> Selection:
        losses, n = self.recall(run), len(run.rows)
        labels = labels_of_run(self, run)
        if self.chosen is None:
            self.chosen = torch.ones(run.samples, dtype=torch.bool)
        losses = losses.clamp(0, math.log(max(2, int(labels.max()) + 1)))
        order = labels[run.rows].argsort(stable=True)
        places = [part for part in order.split(labels[run.rows].bincount().tolist()) if len(part)]
        importance = [(losses[part].double() / self.beta).softmax(0) for part in places]
        last = self.chosen[run.rows]
        mass = [float(p[last[part]].sum()) for p, part in zip(importance, places, strict=True)]
        sizes = class_sizes([len(part) for part in places], mass, self.rate * n)
        random = rng.generator(run.seed, "rcap", run.epoch, run.round)
        drawn = torch.cat(
            [
                part[draw_weighted(p, size, random)]
                for p, part, size in zip(importance, places, sizes, strict=True)
            ]
        )
        rows = run.rows[drawn[torch.randperm(len(drawn), generator=random)]]
        self.chosen[run.rows] = False
        self.chosen[rows] = True
        return Selection(rows)


def class_sizes(counts: list[int], mass: list[float], total: float) -> list[int]:
    """Number of samples per class, proportional to ``sqrt(count * mass)``, 1 to ``count``."""
    sizes, left = [0] * len(counts), set(range(len(counts)))
    share = [math.sqrt(count / sum(counts) * m) for count, m in zip(counts, mass, strict=True)]
    while left:
        whole = sum(share[c] for c in left)
        want = {c: total * share[c] / whole if whole else total / len(left) for c in left}
        full = {c for c in left if want[c] >= counts[c]}
        for c in full or left:
            sizes[c] = counts[c] if c in full else max(1, math.ceil(want[c]))
        if not full:
            break
        total, left = max(0.0, total - sum(counts[c] for c in full)), left - full
    return sizes
