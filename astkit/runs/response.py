"""How a controller answers a score stream: runs, figures of merit, and a table. Needs pandas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from astkit.gating import Controller, Gate, LogIntegral
from astkit.names import resolve
from astkit.profiling import bootstrap_interval
from astkit.runs.streams import Stream

Make = str | Callable[[float], Controller]  # a registered name, or target rate -> controller


def respond(
    controller: Make, stream: Stream, target: float, steps: int = 400, seed: int = 0
) -> pd.DataFrame:
    """Drive a gate with ``stream`` for ``steps`` batches, as a trainer would.

    Returns one row a step: ``step``, ``rows`` (scores in the batch), ``rate``, ``threshold``,
    ``target`` (the set point at that step). Raises ``ValueError`` where the stream is too short.
    """
    if stream.length is not None and steps > stream.length:
        raise ValueError(
            f"steps is {steps}, but stream {stream.name!r} ends after {stream.length}: ask for"
            " fewer steps or record more epochs"
        )
    gate = Gate(target, controller=_build(controller, target), seed=seed)
    rows = []
    for step in range(steps):
        wanted = stream.target(step, target)
        if wanted != gate.target_rate:  # a controller may take being told as an event
            gate.target_rate = wanted
        chosen = gate.select(stream.scores(step, seed))
        rows.append((step, chosen.candidates, chosen.rate, chosen.threshold, wanted))
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
    """The rows of `respond` for every controller, stream and seed, with those three as columns.

    A recorded stream that is shorter than ``steps`` is played to its end.
    """
    return pd.concat(
        respond(make, stream, target, min(steps, stream.length or steps), seed).assign(
            controller=name, stream=stream.name, seed=seed
        )
        for stream in streams
        for name, make in controllers.items()
        for seed in seeds
    )


def settling_time(
    rates: ArrayLike,
    target: float,
    change: int = 0,
    *,
    window: int = 5,
    tolerance: float = 0.2,
    hold: int = 20,
) -> float:
    """Steps after ``change`` until the rate is back at ``target`` and stays there.

    The first step from which ``hold`` means in a row, each over ``window`` successive steps, lie
    within ``tolerance * target`` of the target; counted from ``change``, infinity where there is
    none. Single runs at small targets may never hold, for noise alone: average seeds beforehand.

    Args:
        rates: ``[steps]``, of one run or averaged over seeds.
    """
    means = _moving_mean(rates, change, window)
    inside = np.abs(means - target) <= tolerance * target
    held = np.convolve(inside, np.ones(hold, dtype=int), mode="valid") == hold
    return float(held.argmax()) if len(inside) >= hold and held.any() else math.inf


def overshoot(
    rates: ArrayLike, target: float, change: int = 0, *, window: int = 5, tolerance: float = 0.2
) -> float:
    """How far the rate swings beyond ``target``, as a share of the step that it had to make.

    The step is the error at ``change``; the swing is the largest mean of ``window`` successive
    errors of the other sign, 0 where there is none. Noise adds to it: average seeds beforehand.
    NaN where the step is within ``tolerance * target``, since then there is nothing to overshoot.

    Args:
        rates: ``[steps]``, of one run or averaged over seeds.
    """
    step = float(np.asarray(rates, dtype=float)[change]) - target
    if abs(step) <= tolerance * target:
        return math.nan
    errors = _moving_mean(rates, change, window) - target
    return max(0.0, float((-np.sign(step) * errors).max())) / abs(step)


def _moving_mean(rates: ArrayLike, change: int, window: int) -> NDArray[np.float64]:
    after = np.asarray(rates, dtype=float)[change:]
    if len(after) < window:
        raise ValueError(
            f"only {len(after)} steps follow step {change}, fewer than the window of {window}: run"
            " for longer"
        )
    return np.convolve(after, np.ones(window) / window, mode="valid")


def rmse(rates: ArrayLike, target: ArrayLike) -> float:
    """Root of the mean squared difference between rates and their targets."""
    return math.sqrt(float(np.mean((np.asarray(rates) - np.asarray(target)) ** 2)))


def binomial_floor(target: ArrayLike, rows: ArrayLike) -> float:
    """The RMSE that a fixed, exact threshold has by chance: ``sqrt(mean(p (1 - p) / B))``.

    Held thresholds cannot do better on independent scores; top-k can, since it looks first.
    """
    p, size = np.asarray(target, dtype=float), np.asarray(rows, dtype=float)
    return math.sqrt(float(np.mean(p * (1 - p) / size)))


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

    Settling time (steps) and overshoot (share of the step) are of the rate averaged over the ``n``
    seeds. ``error`` (mean rate minus target) and ``RMSE`` are means over seeds of what one seed has
    from ``skip`` steps after the stream's change on, the error with its 95 % bootstrap interval;
    ``predicted error`` is known for `LogIntegral` with a fixed gain alone.
    """
    rows = [
        {
            "controller": name,
            "stream": stream.name,
            "target": target,
            **_figures(responses({name: make}, [stream], target, seeds, steps), stream, skip),
            "predicted error": _predicted(_build(make, target), stream),
        }
        for stream in streams
        for target in targets
        for name, make in controllers.items()
    ]
    return pd.DataFrame(rows)


def _figures(runs: pd.DataFrame, stream: Stream, skip: int) -> dict[str, Any]:
    n, steps = runs["seed"].nunique(), int(runs["step"].max()) + 1
    steady = runs[runs["step"] >= stream.change + skip]
    if steady.empty:
        raise ValueError(
            f"steps is {steps}, but the error is taken from step {stream.change + skip} on (change"
            " + skip): run for longer, or lower skip"
        )
    mean, target = runs.groupby("step")["rate"].mean(), float(runs["target"].iloc[-1])
    by_seed = [run for _, run in steady.groupby("seed")]
    errors = [float((run["rate"] - run["target"]).mean()) for run in by_seed]
    low, high = bootstrap_interval(errors, "mean") if n > 1 else (math.nan, math.nan)
    found = float(np.mean([rmse(run["rate"], run["target"]) for run in by_seed]))
    floor = binomial_floor(steady["target"], steady["rows"])
    return {
        "n": n,
        "steps": steps,
        "settling": settling_time(mean, target, stream.change),
        "overshoot": overshoot(mean, target, stream.change),
        "error": float(np.mean(errors)),
        "error low": low,
        "error high": high,
        "RMSE": found,
        "floor": floor,
        "RMSE / floor": found / floor,
    }


def _predicted(controller: Controller, stream: Stream) -> float:
    recorded = stream.length is not None  # nobody knows how recorded scores move
    if recorded or not isinstance(controller, LogIntegral) or controller.auto:
        return math.nan
    return ramp_bias(1 / stream.drift, controller.gain) if stream.drift else 0.0
