"""Tasks: no source on both sides, embeddings that stay on disk, batches that a plain loop makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from astkit import rng
from astkit.datasets import BatchSource, Prefetched
from astkit.lattice.pairs import TextPair, words, write_pairs
from astkit.lattice.tasks import (
    PairLoader,
    Pairs,
    docs_task,
    embedding_task,
    identity,
    rotated,
    text_task,
)
from astkit.profiling.memory import resident


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


def test_the_easier_tasks():
    task = text_task(numbered(), dim=8)
    same, turned = identity(task), rotated(task, seed=1)
    for part in (same.train, same.validation):
        x, y = part.fetch(torch.arange(len(part)))
        assert torch.equal(x, y)
    x, y = turned.train.fetch(torch.arange(len(turned.train)))
    torch.testing.assert_close(y @ y.T, x @ x.T)  # lengths and angles stay
    assert not torch.allclose(x, y, atol=0.1)
    assert torch.equal(turned.validation.rows, task.validation.rows)
    assert not torch.equal(rotated(task, seed=2).train.y, turned.train.y)
    with pytest.raises(ValueError, match="embeddings alone"):
        turned.texts_of(turned.train)


@pytest.mark.parametrize("kind", ["npy", "safetensors"])
def test_embeddings_of_a_file_are_those_that_were_written(tmp_path, kind):
    x, y = vectors()
    x[7] = x[3]
    if kind == "npy":
        paths = (tmp_path / "x.npy", tmp_path / "y.npy")
        for path, tensor in zip(paths, (x, y), strict=True):
            np.save(path, tensor.half().numpy())
        x, y = x.half().float(), y.half().float()
    else:
        paths = (tmp_path / "both.safetensors",)
        save_file({"source": x, "target": y}, paths[0])
    task = embedding_task(*paths)
    for part in (task.train, task.validation):
        found = part.fetch(torch.arange(len(part)))
        assert torch.equal(found[0], x[part.rows])
        assert torch.equal(found[1], y[part.rows])
    rows = torch.cat([task.train.rows, task.validation.rows]).sort().values
    assert torch.equal(rows, torch.arange(60))
    assert (3 in task.train.rows) == (7 in task.train.rows)


@pytest.mark.parametrize("kind", ["npy", "safetensors"])
def test_embeddings_stay_on_disk(tmp_path, kind):
    before = resident()
    if before is None:
        pytest.skip("this system does not say what lies in memory")
    x = torch.randn(40_000, 128, generator=rng.generator(3))  # 20 MB a side
    if kind == "npy":
        paths = (tmp_path / "x.npy", tmp_path / "x.npy")
        np.save(paths[0], x.numpy())
    else:
        paths = (tmp_path / "both.safetensors",)
        save_file({"source": x, "target": x.clone()}, paths[0])
    before = resident() or before
    task = embedding_task(*paths)
    for _ in PairLoader(task.train, 512).batches(0):
        pass
    after = resident()
    assert after is not None
    assert after.anonymous - before.anonymous < x.nbytes  # both sides would take twice that
    assert torch.equal(task.train.fetch(torch.arange(9))[0], x[task.train.rows[:9]])


def test_unusable_files_are_refused(tmp_path):
    x, y = vectors()
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "short.npy", y[:9].numpy())
    np.save(tmp_path / "whole.npy", y.long().numpy())
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    y[50, 2] = torch.nan
    np.save(tmp_path / "nan.npy", y.numpy())
    save_file({"x": x}, tmp_path / "other.safetensors")
    for name, sentence in {
        "short": "one row a pair",
        "whole": "floating point",
        "pickled": "no .npy file of numbers",
        "nan": "not finite in rows from 0 on",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            embedding_task(tmp_path / "x.npy", tmp_path / f"{name}.npy")
    with pytest.raises(ValueError, match="target is missing"):
        embedding_task(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="'source' and 'target'"):
        embedding_task(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError):
        embedding_task(tmp_path / "x.npy", tmp_path / "absent.npy")


def test_batches_are_those_of_a_plain_loop():
    x, y = vectors(23)
    pairs = Pairs(x, y, torch.arange(22, 0, -2))  # 11 of 23
    beside = (torch.arange(23.0)[:, None], torch.zeros(23, 0))
    loader = PairLoader(pairs, 4, seed=5, beside=beside)
    assert isinstance(loader, BatchSource)
    assert (len(loader), loader.num_samples) == (3, 11)
    for epoch in (0, 1):
        order = rng.permutation(11, 5, "order", epoch).tolist()
        batches = list(loader.batches(epoch))
        assert [batch.index.tolist() for batch in batches] == [order[:4], order[4:8], order[8:]]
        for batch in batches:
            for number, row, target in zip(*batch, strict=True):
                stored = 22 - 2 * int(number)
                assert torch.equal(row, torch.cat([x[stored], torch.tensor([float(stored)])]))
                assert torch.equal(target, y[stored])
        late = list(loader.batches(epoch, start=2))
        assert len(late) == 1
        assert torch.equal(late[0].x, batches[2].x)
        for ahead, batch in zip(Prefetched(loader).batches(epoch), batches, strict=True):
            assert all(map(torch.equal, ahead, batch))
    assert not list(loader.batches(0, start=3))
    chosen = next(loader.batches(0, torch.tensor([2, 0])))
    assert chosen.index.tolist() == [2, 0]
    with pytest.raises(ValueError, match="batch_size is 0"):
        PairLoader(pairs, 0)
