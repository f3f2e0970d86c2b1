"""Where the loop of gate and controller stops being stable: predicted, and measured.

`LogIntegral` moves ``x = log threshold`` by ``gain * (S(x) - target)``, with ``S`` the share of
scores above the threshold. Close to the set point an error is multiplied by ``1 - gain * f`` a
step, ``f = -S'`` being the density of log-scores there: the loop is stable for ``gain * f < 2``.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from astkit import rng
from astkit.gating import LogIntegral, OriginPI
from astkit.runs import streams
from astkit.runs.response import Make, binomial_floor, responses, rmse

SHARES = (0.25, 0.5, 1.0, 1.5, 1.8, 1.95, 2.05, 2.2, 2.5)
NUDGE = 1e-3  # a start this far from the set point, in log-threshold, is close to it
# an update wants to see a score that is left to admit; how many there are is for the rate to say
_LEFT = torch.tensor([1e-20])


def loop(
    family: str,
    target: float,
    gain: float,
    batch: int | None = None,
    steps: int = 3000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """The rates ``[steps]`` of `LogIntegral` on stationary scores, started by its set point.

    Given its threshold, a batch's rate is binomial around the exact share of scores above it, so it
    is drawn as such; without ``batch`` it is that share, and nothing is left to chance.
    """
    scores = streams.family(family)
    start = scores.threshold(target) * math.exp(NUDGE)
    controller = LogIntegral(target, gain)
    threshold = controller.threshold(torch.tensor([start], dtype=torch.float64), 0)
    random = np.random.default_rng(rng.derive(seed, "loop", family, batch or 0))
    rates = np.empty(steps)
    for step in range(steps):
        share = scores.survival(threshold)
        rates[step] = share if batch is None else random.binomial(batch, share) / batch
        controller.update(float(rates[step]), _LEFT)
        threshold = controller.threshold(_LEFT, 0)
    return rates


def is_stable(
    family: str,
    target: float,
    gain: float,
    batch: int | None = None,
    steps: int = 3000,
    seed: int = 0,
) -> bool:
    """Whether the swing of the rate comes from outside of the loop and not from itself.

    Without noise: the small displacement at the start is larger than any at the end. With noise:
    the swing of a stable loop is noise, so four times the batch halves it; the swing of an unstable
    loop is its own, bounded by saturation alone, and stays. The line is drawn in between, at a
    ratio of 1.5. Close to the bound it blurs in small batches, where noise and swing are alike.
    """
    rates = loop(family, target, gain, batch, steps, seed)
    if batch is None:
        return bool(np.abs(rates[-50:] - target).max() < abs(rates[0] - target))
    larger = loop(family, target, gain, 4 * batch, steps, seed)
    return rmse(rates[100:], target) / rmse(larger[100:], target) > 1.5


def critical_gain(
    family: str, target: float, batch: int | None = None, steps: int = 3000, seed: int = 0
) -> tuple[float, float]:
    """The gain beyond which `LogIntegral` is unstable: predicted ``2 / f``, and measured.

    Measured by bisection of `is_stable` over gains from 0.1 to 100, to 1 %.
    """
    scores = streams.family(family)
    low, high = 0.1, 100.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        stable = is_stable(family, target, middle, batch, steps, seed)
        low, high = (middle, high) if stable else (low, middle)
    return 2 / scores.density(scores.threshold(target)), math.sqrt(low * high)


def stability(
    family: str,
    target: float,
    gains: Sequence[float] | None = None,
    batches: Sequence[int] = (128, 4096),
    steps: int = 3000,
    seed: int = 0,
) -> pd.DataFrame:
    """How much noise the loop adds as its gain grows; one row a batch size and gain.

    ``RMSE / floor`` is beside its prediction ``sqrt(2 / (2 - gain f))``, which is what the linear
    loop makes of independent errors and ends at the bound; ``stable`` is `is_stable`.

    Args:
        gains: by default `SHARES` of 1 / f, so that the bound stands at 2.
    """
    scores = streams.family(family)
    density = scores.density(scores.threshold(target))
    rows = []
    for batch in batches:
        for gain in gains or [share / density for share in SHARES]:
            rates = loop(family, target, gain, batch, steps, seed)[100:]
            left = 2 - gain * density
            rows.append(
                {
                    "family": family,
                    "target": target,
                    "batch": batch,
                    "gain": gain,
                    "gain x f": gain * density,
                    "RMSE / floor": rmse(rates, target) / binomial_floor(target, batch),
                    "predicted": math.sqrt(2 / left) if left > 0 else math.inf,
                    "stable": is_stable(family, target, gain, batch, steps, seed),
                }
            )
    return pd.DataFrame(rows)


class Rhythm(NamedTuple):
    """How a loop swings back: steps a period, and steps in which the swing falls to 1/e."""

    period: float
    decay: float


def origin_rhythm(
    density: float, kp: float = 0.0015, ki: float = 0.00005, alpha: float = 0.3
) -> Rhythm:
    """The swing of `OriginPI` around its set point where scores have ``density`` (a unit of score).

    From the largest eigenvalue of its own update, linearised in (threshold, EMA, integral). As the
    threshold accumulates, ``ki`` acts twice integrated: about ``2 pi / sqrt(ki * density)`` steps a
    period. ``decay`` is negative where the swing grows.
    """
    error = np.array([-alpha * density, 1 - alpha, 0.0])  # the new EMA's distance to the target
    update = np.array([np.array([1.0, 0.0, ki]) + kp * error, error, np.array([0, 0, 1.0]) + error])
    root = max(np.linalg.eigvals(update), key=abs)
    angle = abs(cmath.phase(root))
    return Rhythm(2 * math.pi / angle if angle else math.inf, -1 / math.log(abs(root)))


def origin_on_both_scores(
    target: float = 0.1, steps: int = 4000, tau: float = 2000.0, seeds: Sequence[int] = (0,)
) -> pd.DataFrame:
    """`OriginPI` as published, on the origin's own score and on raw losses: rows of `responses`.

    Both scores come from the same losses, which decay with ``tau``, and from one recorded run on
    the digits, which is far shorter. Beside it stand a threshold that is held where the origin's
    starts, which tells its steering from the scores' own rest, and `LogIntegral`.
    """
    controllers: dict[str, Make] = {
        "origin_pi": OriginPI,
        "held at its start": lambda rate: OriginPI(rate, kp=0.0, ki=0.0),
        "log_integral": LogIntegral,
    }
    both = [
        streams.relative("gamma2", tau),
        streams.ramp("gamma2", tau),
        streams.recorded("loss_and_contrast", target),
        streams.recorded("loss", target),
    ]
    return responses(controllers, both, target, seeds, steps)
