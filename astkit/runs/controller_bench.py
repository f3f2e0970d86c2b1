"""Benchmark of controllers: simulated score streams, responses to them, and stability.

A stream is a function of (step, seed), so no model is trained. Streams of one family use the same
random numbers for the same step and seed, and differ only in scale.

Stability: `LogIntegral` moves ``x = log threshold`` by ``gain * (S(x) - target)``, with ``S`` the
share of scores above the threshold. Close to the set point an error is multiplied by
``1 - gain * f`` per step, where ``f = -S'`` is the density of log-scores there: the loop is stable
for ``gain * f < 2``.
"""

from __future__ import annotations

import cmath
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import Tensor

from astkit import rng
from astkit.gating import (
    Controller,
    Gate,
    LogIntegral,
    LossAndContrast,
    OriginPI,
    cross_entropy_rows,
)
from astkit.names import resolve
from astkit.runs import arms
from astkit.runs.intervals import mean_interval

Make = str | Callable[[float], Controller]  # a registered name, or target rate -> controller

SHARES = (0.25, 0.5, 1.0, 1.5, 1.8, 1.95, 2.05, 2.2, 2.5)
NUDGE = 1e-3  # initial distance from the set point, in log-threshold
CONTRAST = 0.06  # standard deviation of the logarithm of the digits' contrast
_LEFT = torch.tensor([1e-20])  # an update needs at least one unselected score


class Family(NamedTuple):
    """A distribution of positive scores.

    ``draw``: ``(rows, generator) -> [rows]``, float32. ``survival``: share of scores above ``x``;
    ``threshold`` is its inverse. ``density``: density of log-scores at ``log x``.
    """

    draw: Callable[[int, torch.Generator], Tensor]
    survival: Callable[[float], float]
    threshold: Callable[[float], float]
    density: Callable[[float], float]


def _exponential(rows: int, random: torch.Generator) -> Tensor:
    return torch.empty(rows).exponential_(generator=random)


FAMILIES: dict[str, Family] = {
    "gamma2": Family(  # shape 2, scale 1
        lambda rows, random: _exponential(2 * rows, random).view(2, rows).sum(0),
        lambda x: (1 + x) * math.exp(-x),
        lambda share: float(special.gammainccinv(2, share)),
        lambda x: x**2 * math.exp(-x),
    ),
    "lognormal": Family(  # of a standard normal
        lambda rows, random: torch.empty(rows).log_normal_(0, 1, generator=random),
        lambda x: math.erfc(math.log(x) / math.sqrt(2)) / 2,
        lambda share: math.exp(-special.ndtri(share)),
        lambda x: math.exp(-(math.log(x) ** 2) / 2) / math.sqrt(2 * math.pi),
    ),
    "exponential": Family(
        _exponential,
        lambda x: math.exp(-x),
        lambda share: -math.log(share),
        lambda x: x * math.exp(-x),
    ),
}


class Stream(NamedTuple):
    """Scores ``[batch]`` as a function of (step, seed).

    ``change``: step at which the scale jumps; ``drift``: decrease of the log-score per step;
    ``length``: number of steps, ``None`` if unlimited.
    """

    name: str
    scores: Callable[[int, int], Tensor]
    change: int = 0
    drift: float = 0.0
    length: int | None = None


def _scaled(name: str, batch: int, scale: Callable[[int], float]) -> Callable[[int, int], Tensor]:
    draw = FAMILIES[name].draw
    return lambda step, seed: draw(batch, rng.generator(seed, "stream", name, step)) * scale(step)


def stationary(name: str = "gamma2", batch: int = 128) -> Stream:
    """Scores with a constant distribution."""
    return Stream(f"{name}, stationary", _scaled(name, batch, lambda step: 1.0))


def ramp(name: str = "gamma2", tau: float = 200.0, batch: int = 128) -> Stream:
    """Scores whose scale decays as ``exp(-step / tau)``, like losses during training."""
    scores = _scaled(name, batch, lambda step: math.exp(-step / tau))
    return Stream(f"{name}, ramp", scores, drift=1 / tau)


def shock(name: str = "gamma2", scale: float = 4.0, change: int = 100, batch: int = 128) -> Stream:
    """Scores whose scale is multiplied by ``scale`` from step ``change``."""
    scores = _scaled(name, batch, lambda step: scale if step >= change else 1.0)
    return Stream(f"{name}, scale x {scale:g}", scores, change)


def relative(name: str = "gamma2", tau: float = 200.0, batch: int = 128) -> Stream:
    """The original's score of losses that decay as in `ramp`, with a contrast that does not decay.

    The score divides both by their batch means, so the decay cancels except for the 1e-6 in the
    denominator.
    """
    losses, score = ramp(name, tau, batch).scores, LossAndContrast()

    def scores(step: int, seed: int) -> Tensor:
        contrasts = torch.empty(batch)
        contrasts.log_normal_(0, CONTRAST, generator=rng.generator(seed, "contrast", step))
        features = torch.stack([losses(step, seed), contrasts], dim=1)
        return score.combine(features, score.reference(features))

    return Stream(f"{name}, ramp, held against the batch", scores)


def recorded(target_rate: float = 0.1, epochs: float = 15) -> Stream:
    """Losses recorded in a training run on the digits dataset, for each seed.

    They do not depend on the controller under test. The last batch of an epoch is smaller.
    """

    def losses(step: int, seed: int) -> Tensor:
        return _record(target_rate, epochs, seed)[step]

    return Stream("digits, loss", losses, length=len(_record(target_rate, epochs, 0)))


@functools.cache
def _record(target_rate: float, epochs: float, seed: int) -> list[Tensor]:
    noted = []

    def noting(outputs: Tensor, targets: Tensor, _inputs: Tensor) -> Tensor:
        noted.append(cross_entropy_rows(outputs, targets).detach().cpu())
        return noted[-1].to(outputs.device)

    # top-k is stateless, so it does not affect the record
    gate = {"score": noting, "controller": "top_k"}
    task = arms.task("digits", target_rate, device="cpu", epochs=epochs, gate=gate)
    work = arms.trainer(task, "batched gate", seed)
    work.validation = None
    work.run()
    return noted


def respond(
    controller: Make, stream: Stream, target: float, steps: int = 400, seed: int = 0
) -> pd.DataFrame:
    """A gate's decisions on the first ``steps`` batches of ``stream``.

    Returns one row per step: ``step``, ``rows`` (scores in the batch), ``rate``, ``threshold``,
    ``target``.
    """
    gate = Gate(target, controller=_build(controller, target), seed=seed)
    rows = []
    for step in range(min(steps, stream.length or steps)):
        chosen = gate.select(stream.scores(step, seed))
        rows.append((step, chosen.candidates, chosen.rate, chosen.threshold, target))
    return pd.DataFrame(rows, columns=["step", "rows", "rate", "threshold", "target"])


def _build(controller: Make, target: float) -> Controller:
    made = resolve("controller", controller) if isinstance(controller, str) else controller
    return made(target)


def responses(
    controllers: Mapping[str, Make],
    streams: Iterable[Stream],
    target: float,
    seeds: Sequence[int],
    steps: int = 400,
) -> pd.DataFrame:
    """The rows of `respond` for every controller, stream and seed, which are added as columns."""
    return pd.concat(
        respond(make, stream, target, steps, seed).assign(
            controller=name, stream=stream.name, seed=seed
        )
        for stream in streams
        for name, make in controllers.items()
        for seed in seeds
    )


def settling_time(
    rates: ArrayLike, target: float, change: int = 0, *, window: int = 5, hold: int = 20
) -> float:
    """Steps after ``change`` until the rate ``[steps]`` returns to ``target`` and stays there.

    The first step from which ``hold`` consecutive means, each over ``window`` steps, are within
    20 % of the target; infinity if there is none. At small targets, noise alone may prevent
    a single run from settling: average over seeds first.
    """
    after = np.asarray(rates, dtype=float)[change:]
    means = np.convolve(after, np.ones(window) / window, mode="valid")
    inside = np.abs(means - target) <= 0.2 * target
    held = np.convolve(inside, np.ones(hold, dtype=int), mode="valid") == hold
    return float(held.argmax()) if len(inside) >= hold and held.any() else math.inf


def rmse(rates: ArrayLike, target: ArrayLike) -> float:
    """Root mean square difference between rates and targets."""
    return math.sqrt(float(np.mean((np.asarray(rates) - np.asarray(target)) ** 2)))


def binomial_floor(target: float, rows: ArrayLike) -> float:
    """The RMSE of a fixed, exact threshold on independent scores: ``sqrt(mean(p (1 - p) / B))``."""
    return math.sqrt(float(np.mean(target * (1 - target) / np.asarray(rows, dtype=float))))


def ramp_bias(tau: float, gain: float) -> float:
    """Predicted error of `LogIntegral` on scores that decay as ``exp(-step / tau)``.

    The log-threshold has to fall by ``1 / tau`` per step, and moves by ``gain * error``.
    """
    return -1 / (tau * gain)


def table(
    controllers: Mapping[str, Make],
    streams: Sequence[Stream],
    targets: Sequence[float],
    seeds: Sequence[int],
    steps: int = 400,
    skip: int = 100,
) -> pd.DataFrame:
    """One row per stream, target and controller.

    Settling time (steps) is that of the rate averaged over the ``n`` seeds. ``error`` (mean rate
    minus target, with its 95 % interval) and ``RMSE`` are means over seeds, from ``skip`` steps
    after the stream's change; ``predicted error`` is given for `LogIntegral` with fixed gain only.
    """
    rows = []
    for stream, target, (name, make) in itertools.product(streams, targets, controllers.items()):
        runs = responses({name: make}, [stream], target, seeds, steps)
        first = stream.change + skip
        if runs["step"].max() < first:
            raise ValueError(
                f"steps is {steps}, but the error is computed from step {first} on (change + skip):"
                " increase steps, or decrease skip"
            )
        steady = runs[runs["step"] >= first]
        rates = [run["rate"] for _, run in steady.groupby("seed")]
        error, low, high, n = mean_interval(float(rate.mean()) - target for rate in rates)
        found = float(np.mean([rmse(rate, target) for rate in rates]))
        row = {"controller": name, "stream": stream.name, "target": target, "n": n}
        mean = runs.groupby("step")["rate"].mean()
        row |= {"settling": settling_time(mean, target, stream.change)}
        row |= {"error": error, "error low": low, "error high": high, "RMSE": found}
        row["RMSE / floor"] = found / binomial_floor(target, steady["rows"])
        rows.append({**row, "predicted error": _predicted(_build(make, target), stream)})
    return pd.DataFrame(rows)


def _predicted(controller: Controller, stream: Stream) -> float:
    recorded = stream.length is not None  # the drift of recorded scores is unknown
    if recorded or not isinstance(controller, LogIntegral) or controller.auto:
        return math.nan
    return ramp_bias(1 / stream.drift, controller.gain) if stream.drift else 0.0


def loop(
    family: str, target: float, gain: float, batch: int | None = None, steps: int = 3000
) -> NDArray[np.float64]:
    """The rates ``[steps]`` of `LogIntegral` on stationary scores, started near its set point.

    Given its threshold, a batch's rate is binomial around the exact share of scores above it;
    if ``batch`` is ``None``, it is that share.
    """
    scores = FAMILIES[family]
    start = scores.threshold(target) * math.exp(NUDGE)
    controller = LogIntegral(target, gain)
    threshold = controller.threshold(torch.tensor([start], dtype=torch.float64), 0)
    random = np.random.default_rng(rng.derive(0, "loop", family, batch or 0))
    rates = np.empty(steps)
    for step in range(steps):
        share = scores.survival(threshold)
        rates[step] = share if batch is None else random.binomial(batch, share) / batch
        controller.update(float(rates[step]), _LEFT)
        threshold = controller.threshold(_LEFT, 0)
    return rates


def critical_gain(family: str, target: float, steps: int = 3000) -> tuple[float, float]:
    """The gain above which `LogIntegral` is unstable: predicted ``2 / f``, and measured.

    Measured without noise, by bisection over gains from 0.1 to 100, to 1 %: the loop is stable
    if the first error is larger than the last ones.
    """
    scores = FAMILIES[family]
    low, high = 0.1, 100.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        errors = np.abs(loop(family, target, middle, steps=steps) - target)
        low, high = (middle, high) if errors[-50:].max() < errors[0] else (low, middle)
    return 2 / scores.density(scores.threshold(target)), math.sqrt(low * high)


def stability(family: str, target: float, batches: Sequence[int] = (128, 4096)) -> pd.DataFrame:
    """Noise of the loop by gain: one row per batch size and multiple of ``1 / f``.

    The prediction for ``RMSE / floor`` is the linear loop's: ``sqrt(2 / (2 - gain f))``.
    """
    density = FAMILIES[family].density(FAMILIES[family].threshold(target))
    rows = []
    for batch, share in itertools.product(batches, SHARES):
        rates = loop(family, target, share / density, batch)[100:]
        found = rmse(rates, target) / binomial_floor(target, batch)
        predicted = math.sqrt(2 / (2 - share)) if share < 2 else math.inf
        rows.append((family, target, batch, share / density, share, found, predicted))
    columns = ["family", "target", "batch", "gain", "gain x f", "RMSE / floor", "predicted"]
    return pd.DataFrame(rows, columns=columns)


def origin_rhythm(
    density: float, kp: float = 0.0015, ki: float = 0.00005, alpha: float = 0.3
) -> tuple[float, float]:
    """Oscillation of `OriginPI` around its set point: period, and decay to 1/e, both in steps.

    ``density`` is that of the scores at the threshold. From the largest eigenvalue of the update,
    linearised in (threshold, EMA, integral). The threshold is a sum, so ``ki`` is integrated twice:
    a period of about ``2 pi / sqrt(ki * density)``. A negative decay means growth.
    """
    error = np.array([-alpha * density, 1 - alpha, 0.0])  # the new EMA's distance to the target
    update = np.array([np.array([1.0, 0.0, ki]) + kp * error, error, np.array([0, 0, 1.0]) + error])
    root = max(np.linalg.eigvals(update), key=abs)
    angle = abs(cmath.phase(root))
    return 2 * math.pi / angle if angle else math.inf, -1 / math.log(abs(root))


def origin_on_both_scores(
    target: float = 0.1, steps: int = 4000, tau: float = 2000.0, seeds: Sequence[int] = (0,)
) -> pd.DataFrame:
    """`responses` of `OriginPI` as published, on the original's own score and on raw losses.

    Both scores are computed from the same losses, which decay with ``tau``. Controls are a
    constant threshold at the original's initial value, and `LogIntegral`.
    """
    controllers: dict[str, Make] = {
        "origin_pi": OriginPI,
        "held at its start": lambda rate: OriginPI(rate, kp=0.0, ki=0.0),
        "log_integral": LogIntegral,
    }
    return responses(controllers, [relative(tau=tau), ramp(tau=tau)], target, seeds, steps)
