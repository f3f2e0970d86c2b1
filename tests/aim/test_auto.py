"""`auto`: each of its two answers against a literal reference, and when it does nothing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from astkit.aim.auto import LEAST, LIKELY, Auto, trust
from astkit.aim.forecast import FEWEST
from astkit.aim.policy import Aim
from astkit.gating import RunInfo, Visit
from tests.aim.test_policy import BALANCED, TAIL, run_info
from tests.gating.policies.recorded import close, drawn_shares

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


def trust_of(policy: Auto, run: RunInfo = MANY) -> Tensor | None:
    assert policy.known is not None
    assert run.labels is not None
    return trust(policy.known, run.labels)


def test_random_labels_are_trusted_less() -> None:
    policy = judged(0.3)
    found = trust_of(policy)
    assert found is not None
    share = 0.3 * CLASSES / (CLASSES - 1)
    own = [0.05] * 60 + [0.8] * 140 + [0.72] * 1800
    expected = [max(LEAST, 1 - share / CLASSES / p) for p in own]
    assert found.tolist() == pytest.approx(expected)
    chosen = policy.plan(MANY)
    assert chosen is not None
    assert policy.plan(replace(MANY, epoch=10, progress=10 / 24)) is not None  # of any length


def test_labels_that_are_confused_are_trained_on_like_all_others() -> None:
    assert judged(0.3, likely=0.9 * LIKELY).plan(MANY) is not None
    confused = judged(0.3, likely=1.1 * LIKELY)
    assert trust_of(confused) is None
    assert confused.plan(MANY) is None
    two = replace(MANY, labels=torch.arange(ROWS) % 2)
    assert trust_of(judged(0.3), two) is None
    assert trust_of(judged(0.03)) is None  # a few are errors of the model
    assert judged(0.03).plan(MANY) is None


def test_nothing_is_judged_before_the_model_is_better_than_the_class_shares() -> None:
    assert trust_of(judged(0.58)) is not None  # of 0.8 that guessing one class gets wrong
    untrained = judged(0.62, confidence=0.4)
    assert trust_of(untrained) is None
    assert untrained.plan(MANY) is None
    common = replace(MANY, labels=(torch.arange(ROWS) % 10 - 5).clamp_min(0))  # of 60 %
    assert trust_of(judged(0.28), common) is not None
    assert trust_of(judged(0.32), common) is None


def test_nothing_is_judged_before_the_model_is_sure_of_what_it_gets_right() -> None:
    for wrong in (0.0, 0.3):
        untrained = judged(wrong, confidence=0.5 * (1 - wrong))
        assert trust_of(untrained) is None
        assert untrained.plan(MANY) is None


def test_rows_are_drawn_by_the_trust_in_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, plans, trusted = 12, 800, torch.linspace(0.2, 1, 12)
    monkeypatch.setattr("astkit.aim.auto.trust", lambda *_: trusted.clone())
    policy, labels, found = Auto(), torch.arange(rows) % 4, torch.zeros(rows)
    run = RunInfo(rows, torch.arange(3), 1, 0, 0.2, labels)
    assert policy.plan(replace(run, epoch=0)) is None  # nothing is seen yet
    shares = torch.full((rows,), 0.5)
    policy.observe(Visit(torch.arange(rows), shares, shares > 0, shares, shares))
    for seed in range(plans):
        chosen = policy.plan(replace(run, seed=seed))
        assert chosen is not None
        found += chosen.index.bincount(minlength=rows)
        again = policy.plan(replace(run, seed=seed))
        assert again is not None
        assert chosen.index.equal(again.index)  # by the seed and the place alone
    assert close(found / plans, drawn_shares(trusted.tolist(), count=3), plans)
    assert policy.plan(replace(run, labels=None)) is None


def test_without_class_outputs_nothing_is_judged() -> None:
    policy = Auto()
    policy.plan(replace(MANY, epoch=0))
    policy.observe(Visit(torch.arange(ROWS), torch.rand(ROWS)))
    assert policy.plan(MANY) is None


def test_the_target_is_asked_first_and_as_aim_does() -> None:
    run = run_info(TAIL, BALANCED, 0, seed=3, labels=TAIL.tensors[1])
    chosen, by_aim = Auto(seed=3).plan(run), Aim(seed=3).plan(run)
    assert chosen is not None
    assert by_aim is not None
    assert chosen.index.equal(by_aim.index)
    parts = [TensorDataset(each.tensors[0]) for each in (BALANCED, TAIL)]
    unjudged = run_info(*parts, 0, seed=3)  # by a proxy, for want of targets
    for policy in (Aim(seed=3), Auto(seed=3)):
        assert policy.plan(unjudged) is None
    few = Subset(BALANCED, range(FEWEST - 1))
    unknown = TensorDataset(torch.zeros(len(TAIL), 1, 1, 1, 1), TAIL.tensors[1])
    for part in ({"validation": few}, {"validation": None}, {"data": unknown}):
        assert Auto(seed=3).plan(replace(run, **part)) is None


@pytest.mark.parametrize("policy", [Auto, Aim])
def test_groups_that_cannot_be_used_are_refused_before_the_first_step(policy: type[Aim]) -> None:
    known = TensorDataset(*BALANCED.tensors)
    known.groups = torch.arange(len(known)) // 4  # type: ignore[attr-defined]
    missing = TensorDataset(*BALANCED.tensors)
    missing.groups = [None] * len(known)  # type: ignore[attr-defined]
    for train, target, message in (
        (TAIL, known, "not for the training data"),
        (known, BALANCED, "not for the target"),
        (missing, known, "groups of the training data is None in row 0"),
    ):
        with pytest.raises(ValueError, match=message):
            policy().check(run_info(train, target, 0, labels=train.tensors[1]))
