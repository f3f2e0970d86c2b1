"""Selection that asks what is wrong with the data, and trains on all rows where nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from astkit import rng
from astkit.aim.forecast import FEWEST, FEWEST_OLD
from astkit.aim.policy import Aim
from astkit.aim.rows import UNKNOWN, Rows
from astkit.datasets.batch import IGNORED
from astkit.datasets.facts import paired_groups
from astkit.gating.policies.draws import draw_weighted
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection, Visit, check_samples

SEEN = 0.9  # share of the samples that are known before labels are judged
SURE, NOISE = 0.1, 0.05
"""Share of the samples, the surest ones, that are judged; smallest share of wrong labels there."""
TRAINED, CHANCE, LIKELY = 0.75, 0.75, 1.75
"""Smallest confidence by accuracy of a trained model; its largest error by that of the commonest
class; largest likelihood of random labels."""
LEAST = 0.05  # smallest trust in a label
LOOKED_AT = 16
"""Rows that are read to see whether they can be stacked."""


class Auto(Policy):
    """Draws rows by the target or by trust in their labels, where a test finds a reason.

    Example::

        trainer = Trainer(model, train, validation, policy=Auto(), epochs=5)

    Two questions in this order; no settings.

    1. *Which data?* Rows are drawn as by `Aim`: target rows and old ones in the shares of its
       forecast, or by validation data, if these have other class shares or inputs and it gains.
    2. *Are labels wrong?* Each sample has a label, and predictions at its latest training step. Of
       the `SURE` * N samples of highest confidence, a share of more than `NOISE` has another label
       than the predicted one. If these labels are random ones, the model finds them no likelier
       than other classes; where they are more than `LIKELY` times as likely, they are classes that
       it or people confuse. Random labels are trusted less, see `trust`.

    Where neither has an effect, all rows are trained on, as without class labels or class outputs
    for 2. No label is judged before the model is better than the class shares, and sure of what it
    gets right: its error on the surest samples is at most `CHANCE` times that of the commonest
    class, and its mean confidence there at least `TRAINED` times its accuracy.

    For 2, each quarter of an epoch draws N / 4 of all N samples without replacement, so that an
    epoch has as many steps as in dense training. The first question needs scikit-learn and a target
    of `FEWEST` rows.
    """

    card = PolicyCard(
        source="this package",
        cost="that of aim's tests; skipped samples are not loaded",
        bias="towards the target and towards trusted labels; not corrected",
        avoid="if an unbiased gradient is required",
    )
    needs_index = needs_outputs = draws_target = True
    rounds = Aim.rounds
    state: ClassVar[tuple[str, ...]] = ("known",)
    #: Confidence (0 until seen), correctness and probability of the label, float32 [3, N].
    known: Tensor | None = None

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.aim = seed, Aim(seed=seed)

    def check(self, run: RunInfo) -> None:
        if can_ask(run):
            self.aim.check(run)

    def plan(self, run: RunInfo) -> Selection | None:
        if self.known is None:
            self.known = torch.zeros(3, run.samples, dtype=torch.float32)
        check_samples(self, self.known[0], run)
        if self.aim.stage == 0 and not can_ask(run):
            self.aim.stage = 2
        by_target = self.aim.plan(run)
        self.flops += self.aim.flops
        self.aim.flops = 0.0
        if by_target is not None or run.labels is None:
            return by_target
        labels, known = run.labels[: run.draws], self.known[:, : run.draws]  # of old rows
        real, seen = labels != IGNORED, known[0] > 0
        if seen[real].float().mean() < SEEN:
            return None
        trusted = trust(known[:, real], labels[real])
        if trusted is None:
            return None
        weight = torch.zeros_like(known[0])
        weight[real] = trusted
        weight[real & ~seen] = 1e30  # first
        random = rng.generator(run.seed, "auto", run.epoch, run.round)
        drawn = draw_weighted(weight, len(run.rows), random)
        return Selection(drawn[torch.randperm(len(drawn), generator=random)])

    def observe(self, visit: Visit) -> None:
        if visit.confidence is None or visit.correct is None or visit.label_probability is None:
            return
        assert self.known is not None
        facts = (visit.confidence, visit.correct, visit.label_probability)
        self.known[:, visit.index] = torch.stack([part.float() for part in facts])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "aim": self.aim.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.aim.load_state_dict(state.get("aim", {}))


def trust(known: Tensor, labels: Tensor) -> Tensor | None:
    """Probability that each label is right, ``[samples]``; ``None`` if there is none to doubt.

    For C classes, of whose labels a share e is replaced by random ones, it is ``max(LEAST, 1 - e /
    C / p)`` with the label's probability p, by Bayes' rule: p is ``(1 - e) * q + e / C``, where q
    is that of the true label. e is estimated as the error rate on the surest samples, times C / (C
    - 1). ``None`` also if the model is not trained enough to judge, or if wrong labels are no
    random ones.

    Args:
        known: ``[3, samples]``, the confidence, correctness and probability of the label.
        labels: int64 ``[samples]``.
    """
    samples, classes = len(labels), max(2, int(labels.max()) + 1)
    sure = known[0].topk(max(1, round(SURE * samples)), sorted=False).indices
    confidence, correct, probability = known[:, sure]
    wrong = correct == 0
    error = float(wrong.float().mean())
    commonest = int(labels.unique(return_counts=True)[1].max()) / samples
    if error > CHANCE * (1 - commonest) or confidence.mean() < TRAINED * correct.mean():
        return None
    share = error * classes / (classes - 1)
    others = (1 - confidence[wrong]).sum() / (classes - 1)
    likely = probability[wrong].sum() > LIKELY * others
    if share < NOISE or likely or classes == 2:  # of two, the other one is no likelier than itself
        return None
    return (1 - min(1.0, share) / classes / known[2].clamp_min(1e-12)).clamp(LEAST, 1.0)


def can_ask(run: RunInfo) -> bool:
    """Whether the data can be compared with the target."""
    if run.joined:
        return find_spec("sklearn") is not None
    if run.validation is None or find_spec("sklearn") is None:
        return False
    paired_groups(run.data, run.validation)  # what is wrong with them is said
    try:
        train, target = Rows(run.data), Rows(run.validation)
        train.inputs(torch.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).long())
    except ValueError:  # rows that are read in order only, or that cannot be stacked
        return False
    enough = len(target) >= FEWEST and len(train) >= FEWEST_OLD
    return enough and (run.features is not None or train.kind != UNKNOWN)
