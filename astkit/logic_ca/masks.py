"""Which cells fire: drawn before a rollout and passed as data.

So a batch, its chunks, its samples one by one and their hard rollouts all see the same masks, on
every device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from astkit import rng


def fire_masks(
    fire_rate: float,
    steps: int,
    samples: Iterable[int],
    height: int,
    width: int,
    *,
    seed: int,
    iteration: int,
) -> Tensor:
    """Masks bool ``[steps, batch, 1, height, width]`` on the CPU, true where a cell fires.

    A sample's masks depend on (seed, iteration, its number in ``samples``) alone; all channels of a
    cell share one.

    Raises ``ValueError`` for a rate outside (0, 1] or no samples.
    """
    if not 0 < fire_rate <= 1:
        raise ValueError(f"fire_rate is {fire_rate}: give a share in (0, 1]")
    drawn = [
        torch.rand(steps, 1, height, width, generator=rng.generator(seed, "fire", iteration, i))
        for i in map(int, samples)
    ]
    if not drawn:
        raise ValueError("samples is empty: give the number of each sample of the batch")
    # of numbers in [0, 1): at a rate of 1 every cell fires
    return torch.stack(drawn, 1) < fire_rate
