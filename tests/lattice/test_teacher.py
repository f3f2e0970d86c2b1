"""The teacher against a plain computation with dictionaries and a full decomposition."""

from __future__ import annotations

import math
from collections import Counter
from zlib import crc32

import numpy as np
import pytest
import torch

from astkit.lattice import teacher as module
from astkit.lattice.teacher import Teacher, hashed

TEXTS = [
    "the cat sat on the mat",
    "The dog sat on the log.",
    "a cat and a dog",
    "gradients flow along the surface",
    "the surface of the log",
    "cells of energy flow",
]
FEATURES = 512


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


@pytest.mark.parametrize("dim", [3, 6, 10])
def test_embeddings_are_projections_onto_the_leading_directions(dim, monkeypatch):
    other = ["the cat on the log", "energy of the dog"]
    monkeypatch.setattr(module, "FEATURES", FEATURES)
    _, _, directions = np.linalg.svd(slow_tfidf(TEXTS, TEXTS))
    slow = slow_tfidf(TEXTS + other, TEXTS) @ directions[: min(dim, 6)].T
    slow /= np.linalg.norm(slow, axis=1, keepdims=True)
    teacher = Teacher(TEXTS, dim)
    fast = teacher(TEXTS + other).double().numpy()
    assert fast.shape == (8, dim)
    # directions are unique up to their signs, so compare what does not depend on them
    np.testing.assert_allclose(fast @ fast.T, slow @ slow.T, atol=1e-5)
    np.testing.assert_allclose(abs(fast[:, : min(dim, 6)]), abs(slow), atol=1e-4)
    assert not fast[:, 6:].any()


def test_the_same_texts_give_the_same_bits_and_no_generator_moves():
    before = torch.random.get_rng_state()
    first, second = (Teacher(TEXTS, 4, seed=3)(TEXTS) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_text_that_shares_nothing_becomes_zero():
    teacher = Teacher(TEXTS, 6)
    assert not teacher(["zebra quux"]).any()
    assert teacher(TEXTS).norm(dim=1).tolist() == pytest.approx([1.0] * 6)


def test_words_and_pairs_of_words_are_hashed():
    tokens = ("a", "b", "a", "a b", "b a")
    assert hashed("A b, a!") == [str(crc32(each.encode()) % 8192) for each in tokens]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="texts is empty"):
        Teacher([])
    with pytest.raises(ValueError, match="dim is 8193: give 1 to 8192"):
        Teacher(TEXTS, 8193)
