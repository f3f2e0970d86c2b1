"""`auto`: each of its three factors against a literal reference, and when it does nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from astkit.gating import Policy, RunInfo, Selection, Visit
from astkit.gating.policies.auto import Auto, class_shift, largest_remainder
from astkit.trainers import Trainer

N, PLANS = 12, 1200
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
    confidence = None if correct is None else torch.linspace(0.1, 1, N)
    policy.observe(Visit(torch.arange(N), LOSSES, correct, confidence))
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


def expected(weight: list[float], count: int = 3) -> Tensor:
    """Probability of each sample in ``count`` draws without replacement, one after the other."""
    found = [0.0] * len(weight)

    def draw(left: list[int], p: float, more: int) -> None:
        whole = sum(weight[i] for i in left)
        for i in left if more else ():
            found[i] += p * weight[i] / whole
            draw([j for j in left if j != i], p * weight[i] / whole, more - 1)

    draw(list(range(len(weight))), 1.0, count)
    return torch.tensor(found)


def close(found: Tensor, p: Tensor) -> bool:
    return bool(((found - p).abs() <= 4.5 * (p * (1 - p) / PLANS).sqrt() + 1e-6).all())


def test_high_losses_are_preferred_in_short_runs() -> None:
    roots = [math.sqrt(loss) for loss in LOSSES.tolist()]
    right = torch.ones(N, dtype=torch.bool)
    for correct in (right, None):
        found = shares(told(correct))
        assert close(found, expected(roots))
        assert not close(found, expected(LOSSES.tolist()))
    unlabelled = shares(told(None), labels=None)
    assert close(unlabelled, expected(roots))


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
    policy = told(None)
    assert policy.plan(info(4, 8, distinct=4)) is None  # 24 epochs of four samples
    longer = [loss ** (1 / 3) for loss in LOSSES.tolist()]  # 16 epochs of six
    assert close(shares(policy, distinct=6), expected(longer))
    assert not close(shares(policy), expected(longer))


def test_repeated_rows_are_counted_where_the_data_are_in_memory() -> None:
    data = TensorDataset(torch.rand(4, 3, 2, 2).repeat(3, 1, 1, 1), LABELS)
    found: list[int | None] = []

    class Noting(Auto):
        def plan(self, run: RunInfo) -> Selection | None:
            found.append(run.distinct)
            return super().plan(run)

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    Trainer(model, data, policy=Noting(), epochs=1, batch_size=4, device="cpu").run()
    list(Noting().sampler(data, 1))
    assert found == [4] * 8


def test_labels_that_contradict_a_confident_model_are_trusted_less() -> None:
    correct = torch.ones(N, dtype=torch.bool)
    correct[N - 1] = False  # the most confident tenth is one sample here
    policy = told(correct)
    trust = [max(0.05, 1 - 1 / 4 * math.exp(loss)) for loss in LOSSES.tolist()]
    weight = [math.sqrt(loss) * p**4 for loss, p in zip(LOSSES.tolist(), trust, strict=True)]
    assert close(shares(policy), expected(weight))
    assert policy.plan(info(10, 24)) is not None  # and in runs of any length


def test_the_probability_of_a_right_label_is_bayes_rule() -> None:
    """The share of right labels among simulated samples of about the same loss."""
    random = torch.Generator().manual_seed(0)
    classes, n, e = 10, 200_000, 0.4
    clean = (3 * torch.randn(n, classes, generator=random)).softmax(1)
    true = torch.multinomial(clean, 1, generator=random).squeeze(1)
    replaced = torch.rand(n, generator=random) < e
    label = torch.where(replaced, torch.randint(classes, (n,), generator=random), true)
    noisy = (1 - e) * clean + e / classes
    losses = -noisy.gather(1, label[:, None]).squeeze(1).log()
    confidence, predicted = noisy.max(1)
    policy = Auto()
    policy.plan(RunInfo(n, torch.arange(n), 0, 0, 0.0, label))
    policy.observe(Visit(torch.arange(n), losses, predicted == label, confidence))
    trust = policy.trust(RunInfo(n, torch.arange(n), 1, 0, 0.5, label))
    assert isinstance(trust, Tensor)
    for low in (0.5, 1.0, 1.5, 2.0, 2.5):
        near = (losses >= low) & (losses < low + 0.25)
        right = float((~replaced[near]).float().mean())
        assert float(trust[near].mean()) == pytest.approx(right, abs=0.04)


def test_class_shares_follow_the_validation_data() -> None:
    tail = torch.tensor([0] * 8 + [1] * 2 + [2] * 1 + [3] * 1)
    policy = told(torch.ones(N, dtype=torch.bool))
    held = torch.arange(4).repeat(20)
    counts = torch.zeros(4)
    for seed in range(100):
        run = info(30, 48, labels=tail, target_labels=held, rows=torch.arange(8), seed=seed)
        chosen = policy.plan(run)
        assert chosen is not None
        assert chosen.index.bincount(minlength=N)[10:].tolist() == [2, 2]  # repeated
        counts += tail[chosen.index].bincount(minlength=4)
    assert (counts / 100).tolist() == [2, 2, 2, 2]
    same = info(30, 48, labels=tail, target_labels=tail.repeat(20))
    assert policy.plan(same) is None


def test_the_shift_is_a_chi_squared_test() -> None:
    train = torch.tensor([60, 30, 10])
    for held in ([60, 30, 10], [50, 36, 14], [40, 40, 20], [20, 20, 20], [0, 50, 50]):
        run = replace(
            info(1, 8),
            labels=torch.arange(3).repeat_interleave(train),
            target_labels=torch.arange(3).repeat_interleave(torch.tensor(held)),
        )
        statistic = stats.chisquare(held, train.numpy() / 100 * sum(held)).statistic
        found = class_shift(run)
        assert (found is not None) == (statistic > 2 + 5 * 2)
        if found is not None:
            assert found.tolist() == pytest.approx([each / sum(held) for each in held])


def test_quotas_add_up() -> None:
    quotas = largest_remainder(torch.tensor([1.5, 2.25, 0.25, 3.0]), 7)
    assert quotas.tolist() == [2, 2, 0, 3]


def test_an_epoch_has_as_many_samples_as_in_dense_training() -> None:
    policy = Auto()
    data = torch.arange(50)
    sampler = policy.sampler(data, epochs=3)
    for epoch in range(3):
        rows = torch.tensor(list(sampler))
        assert len(rows) == 50
        assert (len(rows.unique()) == 50) == (epoch == 0)
        policy.observe(Visit(rows, rows.float() / 50))


class Labels(Policy):
    """Notes what a plan knows of the validation data."""

    def __init__(self) -> None:
        self.found: list[Tensor | None] = []

    def plan(self, run: RunInfo) -> None:
        self.found.append(run.target_labels)


def test_a_plan_knows_the_labels_of_the_validation_data() -> None:
    class Labelled(TensorDataset):
        labels = LABELS

    x = torch.randn(N, 2)
    data, other = Labelled(x, LABELS), TensorDataset(x, LABELS)
    known = []
    for validation in (data, DataLoader(data, 4), other, None):
        policy = Labels()
        options = {"policy": policy, "epochs": 1, "batch_size": 4, "device": "cpu"}
        Trainer(torch.nn.Linear(2, 4), data, validation, **options).run()  # type: ignore[arg-type]
        list(policy.sampler(data, 1, validation=validation))
        known.append([found is not None and found.equal(LABELS) for found in policy.found])
    assert known == [[True, True]] * 3 + [[False, False]]
