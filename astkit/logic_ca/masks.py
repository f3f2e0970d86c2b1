"""Which cells fire and which gates are hard: drawn before a rollout and passed as data.

So a batch, its chunks and its samples one by one all see the same, on every device, and hard
rollouts the same fires as soft ones.
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


def hard_gates(share: float, gates: int, *, seed: int, iteration: int) -> Tensor:
    """Bool ``[gates]`` on the CPU: each gate is hard with probability ``share``.

    Trained so, a gate cannot count on values in between from those before it, with which a hard
    automaton does not follow the soft one. Source of the random share: Fan et al., "Training with
    Quantization Noise for Extreme Model Compression", ICLR 2021.

    Raises ``ValueError`` for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"hard_share is {share}: give a share in [0, 1]")
    return torch.rand(gates, generator=rng.generator(seed, "hard", iteration)) < share
