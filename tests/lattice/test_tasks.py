"""Tasks: no source on both sides, embeddings that stay on disk, batches that a plain loop makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from astkit import rng
from astkit.lattice.pairs import TextPair, words
from astkit.lattice.tasks import (
    Pairs,
    Task,
    docs_task,
    embedding_task,
    text_task,
)
from tests.benchmarks.docs_pairs import write_pairs


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


def test_the_teacher_is_fitted_to_the_training_part_alone():
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
    with pytest.raises(ValueError, match="count is 0: give 1 to"):
        docs_task(0)


def test_a_users_file_of_texts(tmp_path):
    path = write_pairs(tmp_path / "mine.jsonl.gz", numbered())
    assert torch.equal(text_task(path, 4).train.x, text_task(numbered(), 4).train.x)
    with pytest.raises(ValueError, match="give more pairs with different sources"):
        text_task([TextPair("a", "b")] * 3, 2)


def test_a_task_of_embeddings_has_no_texts():
    x, y = vectors()
    pairs = Pairs(x, y, torch.arange(60))
    with pytest.raises(ValueError, match="embeddings alone"):
        Task("bare", pairs, pairs).texts_of(pairs)


def test_embeddings_of_files_are_those_that_were_written(tmp_path):
    x, y = vectors()
    x[7] = x[3]
    paths = (tmp_path / "x.npy", tmp_path / "y.npy")
    for path, tensor in zip(paths, (x, y), strict=True):
        np.save(path, tensor.half().numpy())
    x, y = x.half().float(), y.half().float()
    task = embedding_task(*paths)
    for part in (task.train, task.validation):
        found = part.whole()
        assert torch.equal(found[0], x[part.rows])
        assert torch.equal(found[1], y[part.rows])
    rows = torch.cat([task.train.rows, task.validation.rows]).sort().values
    assert torch.equal(rows, torch.arange(60))
    assert (3 in task.train.rows) == (7 in task.train.rows)


def anonymous():
    """Bytes of this process's memory that belong to no file."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def test_embeddings_stay_on_disk(tmp_path):
    if not Path("/proc/self/status").is_file():
        pytest.skip("this system does not say what lies in memory")
    x = torch.randn(40_000, 128, generator=rng.generator(3))  # 20 MB a side
    np.save(tmp_path / "x.npy", x.numpy())
    before = anonymous()
    task = embedding_task(tmp_path / "x.npy", tmp_path / "x.npy")
    for _ in task.train.loader(512).batches(0):
        pass
    assert anonymous() - before < x.nbytes  # both sides would take twice that
    assert torch.equal(task.train.fetch(torch.arange(9))[0], x[task.train.rows[:9]])


def test_unusable_files_are_refused(tmp_path):
    x, y = vectors()
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "short.npy", y[:9].numpy())
    np.save(tmp_path / "whole.npy", y.long().numpy())
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    y[50, 2] = torch.nan
    np.save(tmp_path / "nan.npy", y.numpy())
    for name, sentence in {
        "short": "one row a pair",
        "whole": "floating point",
        "pickled": "no .npy file of numbers",
        "nan": "not finite in rows from 0 on",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            embedding_task(tmp_path / "x.npy", tmp_path / f"{name}.npy")
    with pytest.raises(FileNotFoundError):
        embedding_task(tmp_path / "x.npy", tmp_path / "absent.npy")


def test_batches_are_those_of_a_plain_loop():
    x, y = vectors(23)
    pairs = Pairs(x, y, torch.arange(22, 0, -2))  # 11 of 23
    loader = pairs.loader(4, seed=5)
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
