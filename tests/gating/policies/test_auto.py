"""`auto`: each of its three answers against a literal reference, and when it does nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from astkit.gating import RunInfo, Visit
from astkit.gating.policies.aim import FEWEST, Aim
from astkit.gating.policies.auto import LEAST, LIKELY, Auto
from tests.gating.policies import recorded
from tests.gating.policies.recorded import drawn_shares
from tests.gating.policies.test_aim import BALANCED, TAIL, run_info

N, PLANS = 12, 800
LABELS = torch.arange(N) % 4
LOSSES = torch.tensor([0.01, 0.02, 0.1, 0.3, 0.5, 0.8, 1.1, 1.4, 1.8, 2.3, 2.9, 5.0])


def info(epoch: int, epochs: float, part: int = 0, **options: object) -> RunInfo:
    """The start of a quarter of an epoch."""
    progress = (epoch + part / 4) / epochs
    rows = torch.arange(N)[part * 3 : part * 3 + 3]
    return replace(RunInfo(N, rows, epoch, part, progress, LABELS), **options)  # type: ignore[arg-type]


def told(correct: Tensor | None, seed: int = 0) -> Auto:
    """A policy that has seen each sample; without ``correct`` its outputs were no classes."""
    policy = Auto(seed)
    assert policy.plan(info(0, 8)) is None
    known = (
        () if correct is None else (correct, torch.linspace(0.8, 1, N), torch.linspace(0.8, 1, N))
    )
    policy.observe(Visit(torch.arange(N), LOSSES, *known))
    return policy


def shares(policy: Auto, **options: object) -> Tensor:
    """Share of the plans that hold each sample, in a run of eight epochs."""
    found = torch.zeros(N)
    for seed in range(PLANS):
        chosen = policy.plan(info(4, 8, seed=seed, **options))
        assert chosen is not None
        assert len(chosen) == 3
        found += chosen.index.bincount(minlength=N)
    return found / PLANS


def expected(weight: list[float]) -> Tensor:
    return drawn_shares(weight, count=3)


def close(found: Tensor, p: Tensor) -> bool:
    return recorded.close(found, p, PLANS)


def test_high_losses_are_preferred_in_short_runs() -> None:
    roots = [math.sqrt(loss) for loss in LOSSES.tolist()]
    right = torch.ones(N, dtype=torch.bool)
    found = shares(told(right))
    assert close(found, expected(roots))
    assert not close(found, expected(LOSSES.tolist()))
    for labels in (LABELS, None):
        assert told(None).plan(info(4, 8, labels=labels)) is None


def test_the_preference_ends_with_the_length_of_the_run() -> None:
    policy = told(torch.ones(N, dtype=torch.bool))
    for epochs, factor in ((5, 1), (12, 1), (18, 0.5)):
        for part in (0, 3):
            chosen = policy.plan(info(2, epochs, part))
            assert chosen is not None
            random = policy.plan(info(2, epochs, part))
            assert random is not None
            assert chosen.index.equal(random.index)  # by the seed and the place alone
        found = torch.zeros(N)
        for seed in range(PLANS):
            found += policy.plan(info(2, epochs, seed=seed)).index.bincount(minlength=N)  # type: ignore[union-attr]
        assert close(found / PLANS, expected([x ** (0.5 * factor) for x in LOSSES.tolist()]))
    assert policy.plan(info(2, 24)) is None
    assert policy.plan(info(30, 48)) is None


def test_the_length_of_a_run_counts_distinct_samples() -> None:
    def repeated(distinct: int) -> TensorDataset:
        return TensorDataset(torch.arange(N).remainder(distinct)[:, None], LABELS)

    right = torch.ones(N, dtype=torch.bool)
    assert told(right).plan(info(4, 8, data=repeated(4))) is None  # 24 epochs of four samples
    longer = [loss ** (1 / 3) for loss in LOSSES.tolist()]  # 16 epochs of six
    assert close(shares(told(right), data=repeated(6)), expected(longer))
    assert not close(shares(told(right)), expected(longer))


ROWS, CLASSES = 2000, 5
MANY = RunInfo(ROWS, torch.arange(ROWS), 1, 0, 0.25, torch.arange(ROWS) % CLASSES)


def judged(wrong: float, likely: float = 1.0, confidence: float = 0.8) -> Auto:
    """A policy of a model that contradicts a share of the labels of its 200 surest samples.

    Such a label is ``likely`` times as probable as the other classes are on average.
    """
    policy = Auto()
    policy.plan(replace(MANY, epoch=0, progress=0.0))
    sure = torch.arange(ROWS) < 0.1 * ROWS
    correct = torch.arange(ROWS) >= wrong * 0.1 * ROWS
    top = torch.where(sure, confidence, 0.9 * confidence)
    own = torch.where(correct, top, likely * (1 - top) / (CLASSES - 1))
    policy.observe(Visit(torch.arange(ROWS), -own.log(), correct, top, own))
    return policy


def test_random_labels_are_trusted_less() -> None:
    policy = judged(0.3)
    trust = policy.trust(MANY)
    assert isinstance(trust, Tensor)
    share = 0.3 * CLASSES / (CLASSES - 1)
    own = [0.05] * 60 + [0.8] * 140 + [0.72] * 1800
    expected = [max(LEAST, 1 - share / CLASSES / p) for p in own]
    assert trust.tolist() == pytest.approx(expected)
    chosen = policy.plan(MANY)
    assert chosen is not None
    assert policy.plan(replace(MANY, epoch=10, progress=10 / 24)) is not None  # of any length


def test_labels_that_are_confused_are_trained_on_like_all_others() -> None:
    assert judged(0.3, likely=0.9 * LIKELY).plan(MANY) is not None
    confused = judged(0.3, likely=1.1 * LIKELY)
    assert confused.trust(MANY) is None
    assert confused.plan(MANY) is None
    two = replace(MANY, labels=torch.arange(ROWS) % 2)
    assert judged(0.3).trust(two) is None


def test_few_contradictions_are_errors_of_the_model() -> None:
    assert judged(0.03).trust(MANY) == 1.0


def test_nothing_is_judged_before_the_model_is_better_than_the_class_shares() -> None:
    assert isinstance(judged(0.58).trust(MANY), Tensor)  # of 0.8 that guessing one class gets wrong
    untrained = judged(0.62, confidence=0.4)
    assert untrained.trust(MANY) is None
    assert untrained.plan(MANY) is None
    common = replace(MANY, labels=(torch.arange(ROWS) % 10 - 5).clamp_min(0))  # of 60 %
    assert isinstance(judged(0.28).trust(common), Tensor)
    assert judged(0.32).trust(common) is None


def test_nothing_is_judged_before_the_model_is_sure_of_what_it_gets_right() -> None:
    for wrong in (0.0, 0.3):
        untrained = judged(wrong, confidence=0.5 * (1 - wrong))
        assert untrained.trust(MANY) is None
        assert untrained.plan(MANY) is None


class Trusting(Auto):
    """A policy with a given trust."""

    def trust(self, run: RunInfo) -> Tensor:
        return torch.linspace(0.2, 1, N)


def test_difficulty_and_trust_are_multiplied() -> None:
    policy = Trusting()
    policy.plan(info(0, 8))
    policy.observe(Visit(torch.arange(N), LOSSES))
    trust = torch.linspace(0.2, 1, N).tolist()
    weight = [math.sqrt(loss) * p for loss, p in zip(LOSSES.tolist(), trust, strict=True)]
    assert close(shares(policy), expected(weight))


def test_the_target_is_asked_first_and_as_aim_does() -> None:
    run = run_info(TAIL, BALANCED, 0, seed=3, labels=TAIL.tensors[1])
    chosen, by_aim = Auto(seed=3).plan(run), Aim(seed=3).plan(run)
    assert chosen is not None
    assert by_aim is not None
    assert chosen.index.equal(by_aim.index)
    parts = [TensorDataset(each.tensors[0]) for each in (BALANCED, TAIL)]
    unjudged = run_info(*parts, 0, seed=3)  # by a proxy, for want of targets
    assert Aim(seed=3).plan(unjudged) is not None
    assert Auto(seed=3).plan(unjudged) is None
    few = Subset(BALANCED, range(FEWEST - 1))
    unknown = TensorDataset(torch.zeros(len(TAIL), 1, 1, 1, 1), TAIL.tensors[1])
    for part in ({"target": few}, {"target": None}, {"data": unknown}):
        assert Auto(seed=3).plan(replace(run, **part)) is None
