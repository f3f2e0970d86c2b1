"""Tasks: no source on both sides; embeddings and batches against plain computations."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch

from astkit import rng
from astkit.datasets import Loader
from astkit.lattice import tasks
from astkit.lattice.pairs import TextPair, words
from astkit.lattice.tasks import Pairs, Task, docs_task, hashed, lsa, text_task
from tests.benchmarks.docs_pairs import write_pairs

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


def vectors(n: int = 60, dim: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, dim, generator=rng.generator(1))
    return x, torch.randn(n, dim, generator=rng.generator(2))


def test_no_source_is_in_both_parts():
    task = text_task(numbered(), dim=8)
    sources = [
        {" ".join(words(pair.source)) for pair in task.texts_of(part)}
        for part in (task.train, task.validation)
    ]
    assert all(sources)
    assert not sources[0] & sources[1]
    assert len(task.train) + len(task.validation) == 40
    assert task.dim == 8


def test_embeddings_are_fitted_to_the_training_part_alone():
    pairs = numbered()
    task = text_task(pairs, dim=8)
    held = set(task.validation.rows.tolist())
    other = [TextPair(p.source, "zebra " * 9) if i in held else p for i, p in enumerate(pairs)]
    changed = text_task(other, dim=8)
    assert torch.equal(changed.train.x, task.train.x)
    assert torch.equal(changed.train.y[task.train.rows], task.train.y[task.train.rows])


def test_a_subset_of_the_docs_is_the_same_every_time():
    first, second = docs_task(60, dim=4), docs_task(60, dim=4)
    assert list(first.texts) == list(second.texts)
    assert len(first.texts) == 60
    assert torch.equal(first.train.x, second.train.x)


def test_a_file_of_texts(tmp_path):
    path = write_pairs(tmp_path / "mine.jsonl.gz", numbered())
    assert torch.equal(text_task(path, 4).train.x, text_task(numbered(), 4).train.x)


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


def test_directions_beyond_the_rank_are_zero_for_new_texts_too():
    embed = lsa(["one two", "one two", "three four"] * 3, 5)  # of rank 2
    assert not embed(["two three five", "four of one"])[:, 2:].any()
    assert embed(["two three five"]).norm().item() == pytest.approx(1)


def test_the_same_texts_give_the_same_bits_and_the_global_generator_stays():
    before = torch.random.get_rng_state()
    first, second = (lsa(TEXTS, 4)(TEXTS) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not lsa(TEXTS, 6)(["zebra quux"]).any()  # no words in common


def test_words_and_pairs_of_words_are_hashed():
    tokens = ("a", "b", "a", "a b", "b a")
    assert hashed("A b, a!") == [str(crc32(each.encode()) % 8192) for each in tokens]


def test_memory_mapped_embeddings_stay_on_disk(tmp_path):
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("this system does not report what lies in memory")

    def anonymous() -> int:
        lines = dict(line.split(":") for line in status.read_text().splitlines())
        return int(lines["RssAnon"].split()[0]) * 1024

    x = torch.randn(40_000, 128, generator=rng.generator(3))  # 20 MB a side
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    before = anonymous()
    pairs = Pairs(mapped, mapped, torch.arange(0, 40_000, 2))
    for _ in Loader(pairs, 512).batches(0):
        pass
    assert anonymous() - before < x.nbytes / 2
    assert torch.equal(pairs.fetch(torch.arange(9))[0], x[:18:2])


def test_batches_are_those_of_a_plain_loop():
    x, y = vectors(23)
    pairs = Pairs(x, y, torch.arange(22, 0, -2))  # 11 of 23
    loader = Loader(pairs, 4, seed=5)
    assert (len(loader), loader.num_samples) == (3, 11)
    for epoch in (0, 1):
        order = rng.permutation(11, 5, "order", epoch).tolist()
        batches = list(loader.batches(epoch))
        assert [batch.index.tolist() for batch in batches] == [order[:4], order[4:8], order[8:]]
        for batch in batches:
            stored = 22 - 2 * batch.index
            assert torch.equal(batch.x, x[stored])
            assert torch.equal(batch.y, y[stored])
    assert torch.equal(pairs[3][0], x[16])


def test_wrong_arguments_are_refused():
    x, y = vectors()
    bare = Pairs(x, y, torch.arange(60))
    for refused, told in (
        (lambda: docs_task(0), "count is 0: give 1 to"),
        (lambda: text_task([TextPair("a", "b")] * 3, 2), "give more pairs with different sources"),
        (lambda: Task("bare", bare, bare).texts_of(bare), "has no texts"),
        (lambda: lsa(TEXTS, 8193), "dim is 8193: give 1 to 8192"),
    ):
        with pytest.raises(ValueError, match=told):
            refused()
