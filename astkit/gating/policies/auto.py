"""Selection that asks what is wrong with the data, and trains on all rows where nothing is."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor

from astkit import rng
from astkit.datasets.facts import distinct_rows, paired_groups
from astkit.gating.features import UNKNOWN, Rows
from astkit.gating.policies.aim import FEWEST, FEWEST_TRAINED, Aim, Aimed
from astkit.gating.policies.draws import draw_weighted
from astkit.gating.policies.last_loss import LastLoss
from astkit.gating.policy import PolicyCard, RunInfo, Selection, Visit

SHORT, LONG = 12.0, 24.0
"""Epochs: up to `SHORT`, high losses are preferred most; from `LONG` on, not."""
SURE, NOISE = 0.1, 0.05
"""Share of the samples, the surest ones, that are judged; smallest share of wrong labels there."""
TRAINED, CHANCE, LIKELY = 0.75, 0.75, 1.75
"""Smallest confidence by accuracy of a trained model; its largest error by that of the commonest
class; largest likelihood of random labels."""
LEAST = 0.05  # smallest trust in a label
LOOKED_AT = 16
"""Rows that are read to see whether they can be stacked."""


class Auto(Aim, LastLoss):
    """Draws rows by the target, trust in the labels or difficulty, where a test finds a reason.

    Three questions in this order; no settings.

    1. *Are the class shares of the target others? Is the input another, given the class?* Then
       rows are drawn as by `Aim`, if its proxy gains by it.
    2. *Are labels wrong?* Each sample has a label, and predictions at its latest training step. Of
       the `SURE` * N samples of highest confidence, a share of more than `NOISE` has another label
       than the predicted one. If these labels are random ones, the model finds them no likelier
       than other classes; where they are more than `LIKELY` times as likely, they are classes that
       it or people confuse. Random labels are trusted less, see `trust`; with confused ones, which
       difficulty would prefer, all rows are trained on.
    3. Otherwise *difficulty*: in runs of up to `SHORT` epochs, p proportional to ``loss**b`` with
       b = 1/2, which falls linearly to 0 at `LONG`. The length of the run is estimated from the
       budget spent so far; with repeated samples it is that in epochs of the distinct ones.

    Data without class labels use 1 alone: there, preferring high losses raised the error.

    Nothing is judged before the model is better than the class shares, and sure of what it gets
    right: its error on the surest samples is at most `CHANCE` times that of the commonest class,
    and its mean confidence there at least `TRAINED` times its accuracy. Until then, and where none
    of the three has an effect, all rows are trained on.

    For 2 and 3, each quarter of an epoch draws N / 4 of all N samples without replacement, so that
    an epoch has as many steps as in dense training. The first question needs scikit-learn and a
    target of `FEWEST` rows.
    """

    card = PolicyCard(
        source="this package",
        cost="that of aim's tests; skipped samples are not loaded",
        bias="towards the target, towards high losses in short runs and towards trusted labels; not"
        " corrected",
        avoid="if an unbiased gradient is required",
    )
    needs_outputs = True
    state: ClassVar[tuple[str, ...]] = (*Aim.state, *LastLoss.state, "known")
    known: Tensor | None = None  # [3, samples]: confidence, correctness, probability of the label

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._distinct: int | None = None  # different rows of the data; 0: not known

    def check(self, run: RunInfo) -> None:
        if can_ask(run):
            super().check(run)

    def plan(self, run: RunInfo) -> Selection | None:
        self.recall(run)
        if self.stage == 0 and not can_ask(run):
            self.stage = 2
        aimed = super().plan(run)
        if aimed is not None or run.labels is None:
            return aimed
        assert self.losses is not None
        known = self.losses.isfinite()
        if known.float().mean() < 0.9:
            return None
        trust = self.trust(run)
        if trust is None:
            return None
        weight = self.losses.clamp_min(0) ** self.difficulty(run) * trust
        weight[~known] = 1e30  # not seen yet: first
        if bool((weight == 1).all()):
            return None
        random = rng.generator(run.seed, "auto", run.epoch, run.round)
        drawn = draw_weighted(weight, len(run.rows), random)
        return Selection(drawn[torch.randperm(len(drawn), generator=random)])

    def _settle(self, choice: Aimed) -> None:
        judged = bool(choice.forecast.unit)  # else drawing may well be worse
        super()._settle(choice if judged else replace(choice, weights=None))

    def difficulty(self, run: RunInfo) -> float:
        """Exponent of the loss."""
        length = (run.epoch + run.round / self.rounds) / max(run.progress, 1e-9)
        if self._distinct is None:
            self._distinct = distinct_rows(run.data) or 0
        length *= run.samples / (self._distinct or run.samples)
        return 0.5 * min(1.0, max(0.0, (LONG - length) / (LONG - SHORT)))

    def trust(self, run: RunInfo) -> Tensor | float | None:
        """Probability that each label is right, ``[samples]``; 1 without wrong labels.

        For C classes, of whose labels a share e is replaced by random ones, it is
        ``max(LEAST, 1 - e / C / p)`` with the label's probability p, by Bayes' rule: p is
        ``(1 - e) * q + e / C``, where q is that of the true label. e is estimated as the error rate
        on the surest samples, times C / (C - 1). ``None`` if the model is not trained enough to
        judge, if its outputs tell no class, or if wrong labels are no random ones.
        """
        if self.known is None:
            return None
        assert run.labels is not None
        classes = max(2, int(run.labels.max()) + 1)
        sure = self.known[0].topk(max(1, round(SURE * run.samples)), sorted=False).indices
        confidence, correct, probability = self.known[:, sure]
        wrong = correct == 0
        error = float(wrong.float().mean())
        commonest = int(run.labels.unique(return_counts=True)[1].max()) / run.samples
        if error > CHANCE * (1 - commonest) or confidence.mean() < TRAINED * correct.mean():
            return None
        share = error * classes / (classes - 1)
        if share < NOISE:
            return 1.0
        others = (1 - confidence[wrong]).sum() / (classes - 1)
        likely = probability[wrong].sum() > LIKELY * others
        if likely or classes == 2:  # of two classes, the other one is no likelier than itself
            return None
        of_all = self.known[2].clamp_min(1e-12)
        return (1 - min(1.0, share) / classes / of_all).clamp(LEAST, 1.0)

    def observe(self, visit: Visit) -> None:
        super().observe(visit)
        if visit.confidence is None or visit.correct is None or visit.label_probability is None:
            return
        assert self.losses is not None
        if self.known is None:
            self.known = torch.zeros(3, len(self.losses), dtype=torch.float32)
        facts = (visit.confidence, visit.correct, visit.label_probability)
        self.known[:, visit.index] = torch.stack([part.float() for part in facts])


def can_ask(run: RunInfo) -> bool:
    """Whether the data can be compared with the target."""
    if run.target is None or find_spec("sklearn") is None:
        return False
    paired_groups(run.data, run.target)  # what is wrong with them is said
    try:
        train, target = Rows(run.data), Rows(run.target)
        train.inputs(torch.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).long())
    except ValueError:  # rows that are read in order only, or that cannot be stacked
        return False
    enough = len(target) >= FEWEST and len(train) >= FEWEST_TRAINED
    return enough and (run.features is not None or train.kind != UNKNOWN)
