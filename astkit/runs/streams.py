"""Score streams: what a controller is tried out on, without training a model for each trial.

A stream is a function of (step, seed). Its draws are keyed by family, seed and step, so streams of
one family differ in nothing but their shape in time. Recorded scores come from a real run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from astkit import rng
from astkit.gating import LossAndContrast, cross_entropy_rows
from astkit.names import resolve
from astkit.runs import arms


@dataclass(frozen=True)
class Family:
    """A distribution of positive scores.

    Attributes:
        draw: ``(rows, generator) -> [rows]``, float32.
        survival: share of the scores above ``x > 0``.
        density: of the logarithm of the scores at ``log x``: ``x`` times the density at ``x``.
    """

    draw: Callable[[int, torch.Generator], Tensor]
    survival: Callable[[float], float]
    density: Callable[[float], float]

    def threshold(self, target: float) -> float:
        """The score that a share ``target`` in (0, 1) of all scores exceeds, by bisection."""
        low, high = -50.0, 50.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.survival(math.exp(middle)) > target else (low, middle)
            )
        return math.exp(low)


def _exponential(rows: int, random: torch.Generator) -> Tensor:
    return torch.empty(rows).exponential_(generator=random)


FAMILIES: dict[str, Family] = {
    "gamma2": Family(  # shape 2, scale 1
        lambda rows, random: _exponential(2 * rows, random).view(2, rows).sum(0),
        lambda x: (1 + x) * math.exp(-x),
        lambda x: x**2 * math.exp(-x),
    ),
    "lognormal": Family(  # of a standard normal
        lambda rows, random: torch.empty(rows).log_normal_(0, 1, generator=random),
        lambda x: math.erfc(math.log(x) / math.sqrt(2)) / 2,
        lambda x: math.exp(-(math.log(x) ** 2) / 2) / math.sqrt(2 * math.pi),
    ),
    "exponential": Family(
        _exponential, lambda x: math.exp(-x), lambda x: x * math.exp(-x)
    ),  # scale 1
}


@dataclass(frozen=True)
class Stream:
    """Scores by step and seed, and what is known of them beforehand.

    Attributes:
        name: for tables.
        scores: ``(step, seed) -> [batch]``.
        change: the step at which scale or set point jump; 0 where nothing does but the start.
        factor: what the set point is multiplied by from ``change`` on.
        drift: what the logarithm of the scores loses a step, ``1 / tau``.
        length: how many steps there are; ``None`` for no end.
    """

    name: str
    scores: Callable[[int, int], Tensor]
    change: int = 0
    factor: float = 1.0
    drift: float = 0.0
    length: int | None = None

    def target(self, step: int, target: float) -> float:
        """The set point at ``step`` of a run whose first set point is ``target``."""
        return target * self.factor if step >= self.change else target


def family(name: str) -> Family:
    """The family called ``name``; ``ValueError`` for one that is not there."""
    if name not in FAMILIES:
        raise ValueError(f"unknown family {name!r}: choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _draws(name: str, batch: int) -> Callable[[int, int], Tensor]:
    draw = family(name).draw
    if batch < 1:
        raise ValueError(f"batch is {batch}: give the number of scores a step, 1 or more")
    return lambda step, seed: draw(batch, rng.generator(seed, "stream", name, step))


def stationary(name: str = "gamma2", batch: int = 128) -> Stream:
    """Scores of one distribution for ever."""
    return Stream(f"{name}, stationary", _draws(name, batch))


def ramp(name: str = "gamma2", tau: float = 200.0, batch: int = 128) -> Stream:
    """Scores whose scale decays as ``exp(-step / tau)``, as losses do while a model learns."""
    draw = _draws(name, batch)
    if not tau > 0:
        raise ValueError(f"tau is {tau}: give the steps in which scores fall to 1/e, such as 200")
    return Stream(
        f"{name}, ramp",
        lambda step, seed: draw(step, seed) * math.exp(-step / tau),
        drift=1 / tau,
    )


def shock(name: str = "gamma2", scale: float = 4.0, change: int = 100, batch: int = 128) -> Stream:
    """Scores whose scale is multiplied by ``scale`` from step ``change`` on."""
    draw = _draws(name, batch)
    if not scale > 0:
        raise ValueError(f"scale is {scale}: give a factor above 0, such as 4 or 0.25")
    return Stream(
        f"{name}, scale x {scale:g}",
        lambda step, seed: draw(step, seed) * (scale if step >= change else 1.0),
        change,
    )


def set_point(
    name: str = "gamma2", factor: float = 2.0, change: int = 100, batch: int = 128
) -> Stream:
    """Stationary scores; the target rate is multiplied by ``factor`` at step ``change``."""
    return Stream(f"{name}, target x {factor:g}", _draws(name, batch), change, factor)


def relative(
    name: str = "gamma2", tau: float = 200.0, contrast: float = 0.06, batch: int = 128
) -> Stream:
    """The origin's score of losses that decay as in `ramp`, beside a contrast that stays.

    The score holds both against their batch's mean, so the decay cancels: apart from the 1e-6 that
    keeps it from dividing by zero, the stream is stationary by construction.

    Args:
        contrast: standard deviation of the contrast's logarithm.
    """
    losses, score = ramp(name, tau, batch).scores, LossAndContrast()

    def scores(step: int, seed: int) -> Tensor:
        contrasts = torch.empty(batch)
        contrasts.log_normal_(0, contrast, generator=rng.generator(seed, "contrast", step))
        features = torch.stack([losses(step, seed), contrasts], dim=1)
        return score.combine(features, score.reference(features))

    return Stream(f"{name}, ramp, held against the batch", scores)


class Recorder:
    """A score that decides by the first of ``names`` and notes the scores of all of them.

    Attributes:
        noted: by name, one tensor ``[batch]`` a batch.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.scores = {name: resolve("score", name)(cross_entropy_rows) for name in names}
        self.noted: dict[str, list[Tensor]] = {name: [] for name in names}

    def __call__(self, outputs: Tensor, targets: Tensor, inputs: Tensor) -> Tensor:
        for name, score in self.scores.items():
            self.noted[name].append(score(outputs, targets, inputs).detach().cpu())
        return next(iter(self.noted.values()))[-1].to(outputs.device)


@functools.cache
def record(
    names: tuple[str, ...] = ("loss", "loss_and_contrast"),
    target_rate: float = 0.1,
    epochs: float = 15,
    seed: int = 0,
) -> dict[str, list[Tensor]]:
    """Scores ``[batch]`` of every batch of one gated run on the digits, by name of the score.

    The run decides by the first of ``names`` and by top-k, which leaves no trace of a controller
    in what it records. A pass ends with a small batch, as it does in training. Kept in memory.
    """
    recorder = Recorder(names)
    gate = {"score": recorder, "controller": "top_k"}
    task = arms.task("digits", target_rate, device="cpu", epochs=epochs, gate=gate)
    work = arms.trainer(task, "batched gate", seed)
    work.validation = None
    work.run()
    return recorder.noted


def recorded(score: str = "loss", target_rate: float = 0.1, epochs: float = 15) -> Stream:
    """The scores of a real run for each seed, played back.

    Played back, scores do not answer to the controller under test, as they would in training.
    """
    both = ("loss", "loss_and_contrast")
    names = both if score in both else (score,)

    def noted(seed: int) -> list[Tensor]:
        return record(names, target_rate, epochs, seed)[score]

    return Stream(f"digits, {score}", lambda step, seed: noted(seed)[step], length=len(noted(0)))
