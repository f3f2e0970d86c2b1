"""Metrics and baselines against plain loops."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.lattice import baselines as module
from astkit.lattice.baselines import baselines, retrieval, ridge
from astkit.lattice.tasks import Pairs, Task
from tests.gating.without_float64 import WithoutFloat64


def made(n: int = 90, dim: int = 6, seed: int = 0) -> Task:
    x = torch.randn(n, dim, generator=rng.generator(seed, "x"))
    w = torch.randn(dim, dim, generator=rng.generator(seed, "w"))
    y = x @ w + torch.randn(n, dim, generator=rng.generator(seed, "noise")) + 2
    rows = torch.arange(n)
    return Task("made", Pairs(x, y, rows[: n * 2 // 3]), Pairs(x, y, rows[n * 2 // 3 :]))


def slow_retrieval(predicted: np.ndarray, targets: np.ndarray) -> tuple[float, ...]:
    found = []
    for i, p in enumerate(predicted):
        cosines = [
            float(p @ t) / (float(np.linalg.norm(p)) * float(np.linalg.norm(t))) for t in targets
        ]
        rank = 1 + sum(c > cosines[i] + 1e-12 for c in cosines)
        rank += sum(abs(c - cosines[i]) <= 1e-12 for c in cosines[:i] + cosines[i + 1 :]) / 2
        found.append((cosines[i], rank <= 1, rank <= 5, 1 / rank))
    return tuple(np.mean(found, axis=0))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 99))
def test_metrics_are_those_of_a_plain_loop(n, dim, seed):
    targets = torch.randn(n, dim, generator=rng.generator(seed)).double()
    noise = torch.randn(n, dim, generator=rng.generator(seed, 1)).double()
    found = retrieval(targets + noise, targets)
    slow = slow_retrieval((targets + noise).numpy(), targets.numpy())
    assert (found.cosine, found.top1, found.top5, found.mrr) == pytest.approx(slow, abs=1e-6)
    assert found.samples == n
    perfect = retrieval(3 * targets, targets)
    assert (perfect.top1, perfect.mrr) == (1, 1)


def test_a_device_without_float64_is_enough():
    targets = torch.randn(9, 4, generator=rng.generator(6))
    noisy = targets + torch.randn(9, 4, generator=rng.generator(7))
    assert retrieval(*map(WithoutFloat64.on, (noisy, targets))) == retrieval(noisy, targets)


def test_chunks_change_nothing(monkeypatch):
    targets = torch.randn(50, 8, generator=rng.generator(4))
    noisy = targets + torch.randn(50, 8, generator=rng.generator(5))
    whole = retrieval(noisy, targets)
    monkeypatch.setattr(module, "CHUNK", 7)
    parts = retrieval(noisy, targets)
    assert asdict(parts) == pytest.approx(asdict(whole))


def test_ties_share_their_mean_rank():
    targets = torch.eye(9)
    nothing = retrieval(torch.zeros(9, 9), targets)  # all tie: everyone's rank is 5
    assert (nothing.top1, nothing.mrr) == (0, pytest.approx(1 / 5))
    constant = retrieval(torch.ones(9, 9), targets)
    assert constant.mrr == pytest.approx(1 / 5)


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="predicted has shape"):
        retrieval(torch.ones(3, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match="diverged"):
        retrieval(torch.full((2, 2), torch.nan), torch.ones(2, 2))
    train = made().train
    with pytest.raises(ValueError, match="train has 1 pairs"):
        ridge(replace(train, rows=train.rows[:1]))


def least_squares(x: np.ndarray, y: np.ndarray, lam: float, test: np.ndarray) -> np.ndarray:
    # rows for the penalty, and a column for the intercept, which is not penalised
    dim = x.shape[1]
    left = np.block([[x, np.ones((len(x), 1))], [np.sqrt(lam) * np.eye(dim), np.zeros((dim, 1))]])
    slow, *_ = np.linalg.lstsq(left, np.concatenate([y, np.zeros((dim, y.shape[1]))]), rcond=None)
    return np.hstack([test, np.ones((len(test), 1))]) @ slow


def test_lambda_is_the_best_on_a_part_of_train_and_refitted():
    task = made(dim=12)
    x, y = (part.double().numpy() for part in task.train.whole())
    order = rng.permutation(60, 0, "ridge").numpy()
    held, fit = order[:9], order[9:]
    scores = {
        lam: slow_retrieval(least_squares(x[fit], y[fit], lam, x[held]), y[held])[3]
        for lam in module.LAMBDAS
    }
    chosen = ridge(task.train)
    assert scores[chosen.alpha] == max(scores.values())
    test = task.validation.whole()[0].double().numpy()
    wanted = least_squares(x, y, chosen.alpha, test)
    np.testing.assert_allclose(chosen.predict(test), wanted, rtol=1e-7, atol=1e-9)


def test_mean_and_copy_are_what_they_say():
    task = made()
    found = baselines(task)
    assert list(found) == ["train mean", "copy input", "ridge"]
    x, y = (part.double().numpy() for part in task.validation.whole())
    mean = task.train.y[task.train.rows].double().numpy().mean(0)
    for name, predicted in (("train mean", np.tile(mean, (30, 1))), ("copy input", x)):
        metrics = found[name]
        slow = slow_retrieval(predicted, y)
        assert (metrics.cosine, metrics.top1, metrics.top5, metrics.mrr) == pytest.approx(
            slow, abs=1e-6
        )
    assert found["ridge"].mrr > found["train mean"].mrr
