"""The bench of controllers: score streams, the answers to them, and where loops turn unstable.

A stream is a function of (step, seed), so no model is trained for each trial. Its draws are keyed
by family, seed and step: streams of one family differ in nothing but their shape in time.

Stability: `LogIntegral` moves ``x = log threshold`` by ``gain * (S(x) - target)``, with ``S`` the
share of scores above the threshold. Close to the set point an error is multiplied by
``1 - gain * f`` a step, ``f = -S'`` being the density of log-scores there: the loop is stable for
``gain * f < 2``.
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
NUDGE = 1e-3  # a start this far from the set point, in log-threshold, is close to it
CONTRAST = 0.06  # standard deviation of the logarithm of the digits' contrast
# an update needs a score that is left to admit; the rate says how many there are
_LEFT = torch.tensor([1e-20])


# --- streams ---------------------------------------------------------------------------------


class Family(NamedTuple):
    """A distribution of positive scores.

    ``draw``: ``(rows, generator) -> [rows]``, float32. ``survival``: share of the scores above
    ``x > 0``; ``threshold`` is its inverse. ``density``: of the logarithm of the scores at
    ``log x``, which is ``x`` times the density at ``x``.
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
    """Scores ``[batch]`` by (step, seed), and what is known of them beforehand.

    ``change``: the step at which their scale jumps; ``drift``: what their logarithm loses a step;
    ``length``: how many steps there are, ``None`` for no end.
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
    """Scores of one distribution for ever."""
    return Stream(f"{name}, stationary", _scaled(name, batch, lambda step: 1.0))


def ramp(name: str = "gamma2", tau: float = 200.0, batch: int = 128) -> Stream:
    """Scores whose scale decays as ``exp(-step / tau)``, as losses do while a model learns."""
    scores = _scaled(name, batch, lambda step: math.exp(-step / tau))
    return Stream(f"{name}, ramp", scores, drift=1 / tau)


def shock(name: str = "gamma2", scale: float = 4.0, change: int = 100, batch: int = 128) -> Stream:
    """Scores whose scale is multiplied by ``scale`` from step ``change`` on."""
    scores = _scaled(name, batch, lambda step: scale if step >= change else 1.0)
    return Stream(f"{name}, scale x {scale:g}", scores, change)


def relative(name: str = "gamma2", tau: float = 200.0, batch: int = 128) -> Stream:
    """The original's score of losses that decay as in `ramp`, beside a contrast that stays.

    The score holds both against their batch's mean, so the decay cancels: apart from the 1e-6 that
    keeps it from dividing by zero, the stream is stationary by construction.
    """
    losses, score = ramp(name, tau, batch).scores, LossAndContrast()

    def scores(step: int, seed: int) -> Tensor:
        contrasts = torch.empty(batch)
        contrasts.log_normal_(0, CONTRAST, generator=rng.generator(seed, "contrast", step))
        features = torch.stack([losses(step, seed), contrasts], dim=1)
        return score.combine(features, score.reference(features))

    return Stream(f"{name}, ramp, held against the batch", scores)


def recorded(target_rate: float = 0.1, epochs: float = 15) -> Stream:
    """The losses of every batch of a real run for each seed, played back.

    Played back, they do not answer to the controller under test, as they would in training. The
    last batch of an epoch is smaller, as in training.
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

    # top-k leaves no trace of a controller
    gate = {"score": noting, "controller": "top_k"}
    task = arms.task("digits", target_rate, device="cpu", epochs=epochs, gate=gate)
    work = arms.trainer(task, "batched gate", seed)
    work.validation = None
    work.run()
    return noted


# --- answers ---------------------------------------------------------------------------------


def respond(
    controller: Make, stream: Stream, target: float, steps: int = 400, seed: int = 0
) -> pd.DataFrame:
    """Drive a gate with ``stream`` for ``steps`` batches, or to its end, as a trainer would.

    Returns one row a step: ``step``, ``rows`` (scores in the batch), ``rate``, ``threshold``,
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
    """The rows of `respond` for every controller, stream and seed, with those three as columns."""
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
    """Steps after ``change`` until the rate ``[steps]`` is back at ``target`` and stays there.

    The first step from which ``hold`` means in a row, each over ``window`` successive steps, lie
    within 20 % of the target; counted from ``change``, infinity where there is none. Single runs at
    small targets may never hold, for noise alone: average seeds beforehand.
    """
    after = np.asarray(rates, dtype=float)[change:]
    means = np.convolve(after, np.ones(window) / window, mode="valid")
    inside = np.abs(means - target) <= 0.2 * target
    held = np.convolve(inside, np.ones(hold, dtype=int), mode="valid") == hold
    return float(held.argmax()) if len(inside) >= hold and held.any() else math.inf


def rmse(rates: ArrayLike, target: ArrayLike) -> float:
    """Root of the mean squared difference between rates and their targets."""
    return math.sqrt(float(np.mean((np.asarray(rates) - np.asarray(target)) ** 2)))


def binomial_floor(target: float, rows: ArrayLike) -> float:
    """The RMSE that a fixed, exact threshold has by chance: ``sqrt(mean(p (1 - p) / B))``.

    Held thresholds cannot do better on independent scores; top-k can, since it looks first.
    """
    return math.sqrt(float(np.mean(target * (1 - target) / np.asarray(rows, dtype=float))))


def ramp_bias(tau: float, gain: float) -> float:
    """Predicted error of `LogIntegral` on scores that decay as ``exp(-step / tau)``.

    The log-threshold has to fall by ``1 / tau`` a step, and moves by ``gain * error``: so
    ``error = -1 / (tau * gain)``, as long as the target is larger than that.
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
    """One row a stream, target and controller.

    Settling time (steps) is of the rate averaged over the ``n`` seeds. ``error`` (mean rate minus
    target, with its 95 % interval) and ``RMSE`` are means over seeds of what one seed has from
    ``skip`` steps after the stream's change on; ``predicted error`` is known for `LogIntegral` with
    a fixed gain alone.
    """
    rows = []
    for stream, target, (name, make) in itertools.product(streams, targets, controllers.items()):
        runs = responses({name: make}, [stream], target, seeds, steps)
        first = stream.change + skip
        if runs["step"].max() < first:
            raise ValueError(
                f"steps is {steps}, but the error is taken from step {first} on (change + skip):"
                " run for longer, or lower skip"
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
    recorded = stream.length is not None  # how recorded scores move is unknown
    if recorded or not isinstance(controller, LogIntegral) or controller.auto:
        return math.nan
    return ramp_bias(1 / stream.drift, controller.gain) if stream.drift else 0.0


# --- stability -------------------------------------------------------------------------------


def loop(
    family: str, target: float, gain: float, batch: int | None = None, steps: int = 3000
) -> NDArray[np.float64]:
    """The rates ``[steps]`` of `LogIntegral` on stationary scores, started by its set point.

    Given its threshold, a batch's rate is binomial around the exact share of scores above it, so it
    is drawn as such; without ``batch`` it is that share, and nothing is left to chance.
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
    """The gain beyond which `LogIntegral` is unstable: predicted ``2 / f``, and measured.

    Measured on the loop without noise, by bisection over gains from 0.1 to 100, to 1 %: it is
    stable where the small displacement at the start is larger than any at the end.
    """
    scores = FAMILIES[family]
    low, high = 0.1, 100.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        errors = np.abs(loop(family, target, middle, steps=steps) - target)
        low, high = (middle, high) if errors[-50:].max() < errors[0] else (low, middle)
    return 2 / scores.density(scores.threshold(target)), math.sqrt(low * high)


def stability(family: str, target: float, batches: Sequence[int] = (128, 4096)) -> pd.DataFrame:
    """How much noise the loop adds as its gain grows: one row a batch size and share of ``1 / f``.

    ``RMSE / floor`` is beside its prediction ``sqrt(2 / (2 - gain f))``, which is what the linear
    loop makes of independent errors and ends at the bound.
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
    """`OriginPI` as published, on the original's own score and on raw losses: as `responses`.

    Both scores come from the same losses, which decay with ``tau``. Beside it stand a threshold
    that is held where the original's starts, which tells its steering from the scores' own rest,
    and `LogIntegral`.
    """
    controllers: dict[str, Make] = {
        "origin_pi": OriginPI,
        "held at its start": lambda rate: OriginPI(rate, kp=0.0, ki=0.0),
        "log_integral": LogIntegral,
    }
    return responses(controllers, [relative(tau=tau), ramp(tau=tau)], target, seeds, steps)
