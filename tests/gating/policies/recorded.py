"""A recorded stream of losses, and how a policy follows it; shared by the tests of the policies."""

from typing import Any

import torch
from torch import Tensor, nn

from astkit.gating import Policy, RunInfo, Scored, Selection, Visit

N, EPOCHS = 60, 10
LABELS = torch.arange(N) % 7 % 3  # classes of unequal size


def losses_of(epochs: int = EPOCHS, samples: int = N, seed: int = 0) -> Tensor:
    """Losses that fall at a pace of their own for each sample, ``[epochs, samples]``."""
    random = torch.Generator().manual_seed(seed)
    first = torch.randn(samples, generator=random).exp()
    pace = torch.rand(samples, generator=random)
    return first * (-pace * torch.arange(epochs)[:, None] / 3).exp()


def info(epoch: int, samples: int = N, epochs: int = EPOCHS, **options: Any) -> RunInfo:
    """What a policy knows at the start of an epoch; its candidates in order."""
    rows = options.pop("rows", torch.arange(samples))
    return RunInfo(samples, rows, epoch, 0, epoch / epochs, **{"labels": LABELS, **options})


def planned(chosen: Selection | None, samples: int = N) -> tuple[list[int], list[float], float]:
    """Rows, weights and normaliser; ``None`` is everything."""
    if chosen is None:
        return list(range(samples)), [1.0] * samples, float(samples)
    return chosen.index.tolist(), chosen.weight.tolist(), float(chosen.total)


def follow(policy: Policy, losses: Tensor, batch: int = N) -> list[Any]:
    """What the policy plans in each epoch, told the losses of what it chose in batches.

    A sample is correct if its class has more than half of the probability, ``exp(-loss)``.
    """
    found = []
    for epoch, values in enumerate(losses):
        found.append(planned(policy.plan(info(epoch, epochs=len(losses)))))
        for rows in torch.tensor(found[-1][0]).split(batch):
            shares = (-values[rows]).exp()
            policy.observe(Visit(rows, values[rows], shares > 0.5, shares, trained=True))
    return found


def drawn_shares(weight: list[float], count: int = 2) -> Tensor:
    """Probability of each row in ``count`` draws without replacement, one after the other."""
    found = [0.0] * len(weight)

    def draw(left: list[int], p: float, more: int) -> None:
        whole = sum(weight[i] for i in left)
        for i in left if more and whole else ():
            found[i] += p * weight[i] / whole
            draw([j for j in left if j != i], p * weight[i] / whole, more - 1)

    draw(list(range(len(weight))), 1.0, count)
    return torch.tensor(found)


def close(found: Tensor, p: Tensor, plans: int) -> bool:
    """Whether shares of ``plans`` are those of the probabilities ``p``, but for chance."""
    return bool(((found - p).abs() <= 4.5 * (p * (1 - p) / plans).sqrt() + 1e-6).all())


def linear(seed: int = 1) -> nn.Linear:
    """A model of six inputs and three classes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(6, 3)


def scored(outputs: Tensor, targets: Tensor) -> Scored:
    """A batch whose outputs are known."""
    return Scored(outputs, targets, outputs)
