"""The policy `Aim`: draws rows as a forecast decides, and asks the model about images."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from astkit import rng
from astkit.aim.differ import LEVEL, TESTS, input_ratio, input_test
from astkit.aim.forecast import (
    FEWEST,
    FEWEST_OLD,
    FITS,
    Forecast,
    TooCostlyError,
    forecast_of,
    foretell,
)
from astkit.aim.rows import IMAGES, UNKNOWN, FeaturesOf, Rows
from astkit.aim.sides import Sides, sides_of
from astkit.datasets.facts import read_alike
from astkit.gating.policies.draws import draw_systematic
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection, check_samples
from astkit.progress import warn

ASKED = 2000  # training rows of a test with the features of the model
MOST = 0.25  # share of the FLOPs of a run that a forecast may take
PASSES, FORWARD = 0.05, 1 / 3
"""Share of the FLOPs of a run that may go into passes on the model; share of a step's FLOPs that
its forward pass takes, about."""


class Aim(Policy):
    """Draws as many rows as dense training, in the shares that a forecast found best.

    Example::

        trainer = Trainer(model, train, validation, policy=Aim(), epochs=5)

    1. The target are rows that may be trained on, see `astkit.joined`; else the validation data,
       which weigh old rows and are not trained on.
    2. `astkit.forecast` decides, once for all runs on the same data: old rows, both, target rows
       counted four times, the target alone, or old rows weighted by p_target(x, y) / p_old(x, y).
    3. Rows are drawn in proportion to its weights; the loss is their plain mean.
    4. With images and validation data the model is asked again in the first epoch, unless a pass
       over all rows would take more than `PASSES` of the run.
    5. A run books the FLOPs of its forecast. Beside one of which this would take more than `MOST`,
       both kinds of rows are trained on, or the old ones. Trees of tables are timed.

    Rows that depend on each other, as several of one patient, are judged together: give both data
    sets an attribute ``groups`` with a number or name a row. Random transforms are left out of the
    comparison where both data sets have the attribute ``transform``.

    Args:
        features: computes features ``[n, d]`` of the inputs of n rows, for data other than images,
            texts and tables.

    Raises ``ValueError`` during training without a target, or with validation data of fewer than
    `FEWEST` rows in its place.
    """

    card = PolicyCard(
        source="Xie et al., DSIR, NeurIPS 2023, and Fang et al., dynamic importance weighting,"
        " NeurIPS 2020; the decisions, the test and abstention are from this package",
        cost="none for skipped rows; a forecast before training; for images with validation data a"
        " pass over 2,000 rows and, where the model sees a difference, over all: at most 5 % of the"
        " run",
        bias="towards the target; intended, not corrected",
        avoid="if the validation data are not like the data that count",
    )
    rounds = 4
    draws_target = True
    state: ClassVar[tuple[str, ...]] = ("drawn_by", "power", "stage")
    drawn_by: Tensor | None = None  # float64 [N], of joined data [N + M]; None: all old rows
    power: float = 0.0  # to which the ratio was taken for it
    stage: int = 0  # 0: no forecast yet, 1: the model is to be asked, 2: settled

    def __init__(self, features: FeaturesOf | None = None, seed: int = 0) -> None:
        self.features, self.seed = features, seed

    def plan(self, run: RunInfo) -> Selection | None:
        if self.stage == 0:
            self._draw_by_forecast(run)
        elif self.stage == 1 and run.round == self.rounds - 1:
            self._ask_the_model(run)
        if self.drawn_by is None:
            return None
        check_samples(self, self.drawn_by, run)
        weights = self.drawn_by
        if self.stage == 1:  # the model is to be asked about rows that it has not learnt
            weights = weights.index_fill(0, rows_to_ask(weights, run.seed), 0.0)
        epoch = draw_systematic(weights, run.draws, rng.generator(run.seed, "aim", run.epoch))
        first = run.draws * run.round // self.rounds
        return Selection(epoch[first : first + len(run.rows)])

    def check(self, run: RunInfo) -> None:
        if run.joined:
            return
        sides = sides_of(run.data, run.validation, self.features, run.classes)
        both = (("target has", sides.target, FEWEST), ("training data have", sides.old, FEWEST_OLD))
        for name, side, least in both:
            if len(side) < least:
                raise ValueError(
                    f"the {name} {len(side)} rows, too few to compare the training data with the"
                    f" target: pass at least {least}"
                )
            if side.kind != UNKNOWN or run.features is None:
                side.features(torch.zeros(1, dtype=torch.int64))

    def _draw_by_forecast(self, run: RunInfo) -> None:
        """Draw rows by the forecast for the data, before the first step."""
        self.stage = 2
        if not run.joined and run.features is not None:
            kind = Rows(run.data, self.features, classes=run.classes).kind
            self.stage = 1 if kind in (IMAGES, UNKNOWN) else 2
            if kind == UNKNOWN:
                return
        target = None if run.joined else run.validation
        found = forecast_of(run.data, target, self.features, run.classes, flops_allowed(run))
        if found.sentence.startswith("forecast: cannot tell"):
            warn(found.sentence)
        self._use(found)

    def _ask_the_model(self, run: RunInfo) -> None:
        """Compare rows that are to be trained on next with the target, as the model sees them."""
        assert run.features is not None
        self.stage, features = 2, run.features
        data = read_alike(run.data, run.validation)  # as the trainer reads it for its features
        old = Rows(data, by_row=lambda rows: features(rows, "data"), classes=run.classes)
        target = Rows(
            run.validation, by_row=lambda rows: features(rows, "validation"), classes=run.classes
        )
        if share_of_passes(run, self.rounds, len(target)) > PASSES:
            warn(
                f"asking the model which rows are like the target would take more than {PASSES:.0%}"
                " of the run: it is not asked; train for more epochs"
            )
            return
        sides = Sides(old, target, run.seed)
        try:
            if self.drawn_by is None:
                self._use(foretell(sides, False, flops_allowed(run), unseen=run.rows[:ASKED]))
            else:
                self.drawn_by = sharpen(sides, self.drawn_by, self.power, flops_allowed(run))
                self.flops += sides.total_flops()
        except TooCostlyError as reason:
            self.flops += sides.total_flops()
            warn(f"the model is not asked which rows are like the target: {reason}")

    def _use(self, found: Forecast) -> None:
        self.flops += found.flops
        if found.lines or found.decision.times:  # else no gain was judged
            self.drawn_by, self.power = found.weights, found.decision.power


def share_of_passes(run: RunInfo, rounds: int, target: int) -> float:
    """Share of a run that passes take over all its rows, those asked about, and the target.

    By what the training steps so far took; ``target``: rows of it.
    """
    trained = run.draws * (run.epoch + run.round / rounds)
    rows = run.draws + min(ASKED, len(run.rows)) + target
    return FORWARD * rows / trained * run.progress


def flops_allowed(run: RunInfo) -> float:
    """FLOPs that estimators may take in a run."""
    return math.inf if run.budget is None else MOST * run.budget


def rows_to_ask(drawn_by: Tensor, seed: int) -> Tensor:
    """At most `ASKED` rows drawn in proportion to ``drawn_by [N]``, in random order: int64 ``[n]``.

    They are so few that none comes twice, since copies of fitted rows would be recognised, and half
    as many as that, so that there are others to train on before the model is asked about them.
    """
    once = float(drawn_by.sum() / drawn_by.max())
    count = min(ASKED, len(drawn_by) // 4, math.floor(once / 2))
    return draw_systematic(drawn_by, count, rng.generator(seed, "aim", "asked"))


def sharpen(sides: Sides, drawn_by: Tensor, power: float, most: float = math.inf) -> Tensor:
    """Weights ``drawn_by [N]`` times the ratio of the target to rows drawn by them, to a ``power``.

    The weights themselves where a test does not tell `rows_to_ask` from the target.
    """
    rows = rows_to_ask(drawn_by, sides.seed)
    sides.find_units()
    if len(rows) < FEWEST_OLD or sides.worth < FEWEST:
        return drawn_by
    if input_test(sides, torch.ones_like(drawn_by), rows=rows).p > LEVEL / TESTS:
        return drawn_by
    if (cost := FITS * sides.flops * sides.sampled / len(rows)) > most:
        raise TooCostlyError(cost)
    whole = torch.arange(len(sides.old))
    left = input_ratio(sides, drawn_by, None, sides.everything, whole)
    sharper = drawn_by * left**power
    return sharper / sharper.mean()
