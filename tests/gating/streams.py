"""Streams of scores that the tests of the controllers share, and how a controller follows them."""

import json
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from astkit.gating import Controller

BATCH = 128


def gamma2(seed: int, steps: int, batch: int = BATCH) -> Tensor:
    """Gamma scores of shape 2, ``[steps, batch]``: sums of two exponential ones."""
    random = torch.Generator().manual_seed(seed)
    return -torch.rand(2, steps, batch, generator=random, dtype=torch.float64).log().sum(0)


def follow(controller: Controller, stream: Iterable[Tensor]) -> list[float]:
    """The rate of each batch."""
    found = []
    for scores in stream:
        active = scores > controller.threshold(scores, quota=0)
        found.append(float(active.double().mean()))
        controller.update(found[-1], scores)
    return found


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` as it comes back from a file."""
    return json.loads(json.dumps(state, allow_nan=False))


def slow_loss(logits: list[float], label: int) -> float:
    """Cross-entropy in plain Python."""
    top = max(logits)
    return top + math.log(sum(math.exp(logit - top) for logit in logits)) - logits[label]
