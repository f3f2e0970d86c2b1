"""Tasks: no source on both sides; embeddings, metrics and baselines against plain computations."""

import math
from collections import Counter
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.datasets import Loader
from astkit.datasets.pairs import TextPair
from astkit.systems.lattice import tasks
from astkit.systems.lattice.tasks import (
    LatticeTask,
    Pairs,
    baselines,
    docs_task,
    lsa,
    retrieval,
    text_task,
)
from astkit.systems.lattice.text import Vocabulary
from astkit.systems.lattice.training import tokenized
from tests.build import refused
from tests.gating.without_float64 import WithoutFloat64

TEXTS = [
    "the cat sat on the mat",
    "The dog sat on the log.",
    "a cat and a dog",
    "gradients flow along the surface",
    "the surface of the log",
    "cells of energy flow",
]
FEATURES = 512


def numbered(n: int = 40) -> list[TextPair]:
    return [TextPair(f"source number {i // 2} here", f"target {i} there") for i in range(n)]


def test_no_source_is_in_both_parts_and_embeddings_are_fitted_to_the_training_part():
    pairs = numbered()
    task = text_task(pairs, dim=8)
    held = {pair.source for pair in task.validation.texts}
    assert held.isdisjoint(pair.source for pair in task.train.texts)
    assert 0 < len(task.validation) == 40 - len(task.train)
    assert task.dim == 8
    other = [TextPair(p.source, "zebra " * 9) if p.source in held else p for p in pairs]
    changed = text_task(other, dim=8)
    assert not torch.equal(changed.validation.y, task.validation.y)
    for ours, theirs in ((changed.train, task.train), (changed.validation, task.validation)):
        assert torch.equal(ours.x, theirs.x)
    assert torch.equal(changed.train.y, task.train.y)


def slow_tfidf(texts: list[str], fitted: list[str]) -> np.ndarray:
    def features(text: str) -> Counter[int]:
        tokens = "".join(c if c.isalnum() else " " for c in text.lower()).split()
        grams = tokens + [tokens[i] + " " + tokens[i + 1] for i in range(len(tokens) - 1)]
        return Counter(crc32(gram.encode()) % FEATURES for gram in grams)

    frequency = Counter(feature for text in fitted for feature in features(text))
    rows = np.zeros((len(texts), FEATURES))
    for row, text in zip(rows, texts, strict=True):
        for feature, count in features(text).items():
            row[feature] = count * (math.log((1 + len(fitted)) / (1 + frequency[feature])) + 1)
        row /= np.sqrt((row**2).sum())
    return rows


def test_embeddings_are_projections_onto_the_leading_directions(monkeypatch):
    other = ["the cat on the log", "energy of the dog"]
    monkeypatch.setattr(tasks, "FEATURES", FEATURES)
    _, _, directions = np.linalg.svd(slow_tfidf(TEXTS, TEXTS), full_matrices=False)
    for dim in (3, 6, 10):
        slow = slow_tfidf(TEXTS + other, TEXTS) @ directions[: min(dim, 6)].T
        slow /= np.linalg.norm(slow, axis=1, keepdims=True)
        fast = lsa(TEXTS, dim)(TEXTS + other).double().numpy()
        assert fast.shape == (8, dim)
        # directions are unique up to their signs, so compare what does not depend on them
        np.testing.assert_allclose(fast @ fast.T, slow @ slow.T, atol=1e-5)
        np.testing.assert_allclose(abs(fast[:, : min(dim, 6)]), abs(slow), atol=1e-4)
        assert not fast[:, 6:].any()


def test_batches_hold_pairs_and_their_tokens():
    x, y = (torch.randn(23, 5, generator=rng.generator(key)) for key in (1, 2))
    texts = [TextPair(f"source {row}", f"target {row}") for row in range(23)]
    for batch in Loader(Pairs(x, y), 8, seed=5).batches(1):
        assert torch.equal(batch.x, x[batch.index])
        assert torch.equal(batch.y, y[batch.index])
    vocabulary = Vocabulary([side for pair in texts for side in (pair.source, pair.target)], 60)
    tokens = [vocabulary.encode([getattr(p, side) for p in texts]) for side in ("target", "source")]
    for batch in Loader(tokenized(Pairs(x, y, texts), vocabulary), 8, seed=5).batches(1):
        parts = zip((batch.x, *batch.y), (x, y, tokens[0], x, tokens[1]), strict=True)
        assert all(torch.equal(part, whole[batch.index]) for part, whole in parts)


def made(n: int = 90, dim: int = 6) -> LatticeTask:
    x, noise = (torch.randn(n, dim, generator=rng.generator(key)) for key in ("x", "noise"))
    y = x @ torch.randn(dim, dim, generator=rng.generator("w")) + noise + 2
    part = n * 2 // 3
    return LatticeTask("made", Pairs(x[:part], y[:part]), Pairs(x[part:], y[part:]))


def slow_retrieval(predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    found = []
    for i, p in enumerate(predicted):
        cosines = [
            float(p @ t) / (float(np.linalg.norm(p)) * float(np.linalg.norm(t))) for t in targets
        ]
        rank = 1 + sum(c > cosines[i] + 1e-12 for c in cosines)
        rank += sum(abs(c - cosines[i]) <= 1e-12 for c in cosines[:i] + cosines[i + 1 :]) / 2
        found.append((1 / rank, cosines[i], rank <= 1, rank <= 5))
    return dict(zip(("mrr", "cosine", "top1", "top5"), np.mean(found, axis=0), strict=True))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 99))
def test_metrics_are_those_of_a_plain_loop(n, dim, seed):
    targets = torch.randn(n, dim, generator=rng.generator(seed)).double()
    noise = torch.randn(n, dim, generator=rng.generator(seed, 1)).double()
    found = retrieval(targets + noise, targets)
    slow = slow_retrieval((targets + noise).numpy(), targets.numpy())
    assert found == pytest.approx(slow, abs=1e-6)
    assert retrieval(3 * targets, targets)["mrr"] == 1
    single = targets.float(), noise.float()
    assert retrieval(*map(WithoutFloat64.on, single)) == retrieval(*single)


def test_mean_and_copy_are_what_they_say():
    task = made()
    found = baselines(task)
    assert list(found) == ["train mean", "copy input", "ridge"]
    x, y = (part.double().numpy() for part in (task.validation.x, task.validation.y))
    mean = task.train.y.double().numpy().mean(0)
    for name, predicted in (("train mean", np.tile(mean, (30, 1))), ("copy input", x)):
        assert found[name] == pytest.approx(slow_retrieval(predicted, y), abs=1e-6)
    assert found["ridge"]["mrr"] > found["train mean"]["mrr"]


def test_wrong_arguments_are_refused():
    ones, nan = torch.ones(2, 2), torch.full((2, 2), torch.nan)
    refused(
        (lambda: text_task([TextPair("a", "b")] * 3, 2), "give more pairs with different sources"),
        (lambda: docs_task(-5), "count is -5: give a whole number of 1 or more"),
        (lambda: retrieval(nan, ones), "predicted contains .*: the model has diverged"),
        (lambda: retrieval(ones, nan), "targets contains a value that is not finite"),
        (lambda: retrieval(ones[:1], ones), r"predicted has shape \[1, 2\] and targets \[2, 2\]"),
        (lambda: retrieval(ones[:0], ones[:0]), "N of 1 or more"),
    )
