import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.datasets import BatchSource, Images, Loader, ParquetLoader, parquet, prefetched
from astkit.rng import permutation
from tests.datasets.toy import STATS, assert_same

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

HERE = Path(__file__)
SHARED = Path(os.environ.get("ASTKIT_SHARED_DATA", HERE.parents[3] / "shared" / "data"))
N = 41
PIXELS = torch.randint(0, 256, (N, 3, 6, 5), generator=torch.Generator().manual_seed(0)).to(
    torch.uint8
)
LABELS = torch.arange(N) % 3
DATA = Images(PIXELS, LABELS, ("a", "b", "c"), "toy")


@pytest.fixture(scope="session")
def write(encoded):
    def write(path, rows, group, column="img", pixels=PIXELS):
        """The rows of the toy set in row groups of ``group``."""
        items = [{"bytes": encoded(pixels[row]), "path": f"{row}.png"} for row in rows]
        table = pa.table({column: items, "label": [LABELS[row].item() for row in rows]})
        pq.write_table(table, path, row_group_size=group)

    return write


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write):
    """Three files of 15, 20 and 6 rows in groups of 4, 7 and 6."""
    root = tmp_path_factory.mktemp("shards")
    cuts = [(range(15), 4), (range(15, 35), 7), (range(35, N), 6)]
    for number, (rows, group) in enumerate(cuts):
        write(root / f"train-{number:05d}-of-00003.parquet", rows, group)
    return root


def visited(loader, epoch=0, **options):
    return [row for batch in loader.batches(epoch, **options) for row in batch.index.tolist()]


def test_follows_the_protocol(folder):
    loader = ParquetLoader(folder, 4)
    assert isinstance(loader, BatchSource)
    assert (loader.num_samples, len(loader)) == (N, 11)
    assert loader.keyed
    assert len(list(prefetched(loader.batches(0)))) == 11
    dropping = ParquetLoader(folder, 4, drop_last=True)
    assert len(dropping) == len(list(dropping.batches(0))) == 10


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 50),
    st.sampled_from([(), ("crop",), ("crop", "flip")]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 12),
)
def test_rows_look_as_from_memory_also_when_a_pass_is_resumed(
    folder, size, augment, epoch, drop_last, start
):
    options = {"augment": augment, "seed": 5, "normalize": STATS, "drop_last": drop_last}
    memory = Loader(DATA, size, shuffle=False, **options)
    stored = ParquetLoader(folder, size, shuffle=False, **options)
    assert_same(memory.batches(epoch, start=start), stored.batches(epoch, start=start))
    # the same rows in the same order, whichever loader is told to visit them
    shuffled = ParquetLoader(folder, size, buffer_rows=8, **options)
    order = shuffled.order(epoch)
    expected = list(memory.batches(epoch, order=order, start=start))
    assert_same(expected, shuffled.batches(epoch, start=start))
    assert_same(expected, stored.batches(epoch, order=order, start=start))


def test_workers_decode_the_same(folder):
    assert_same(
        ParquetLoader(folder, 8).batches(0), ParquetLoader(folder, 8, num_workers=1).batches(0)
    )


def slow_order(groups, window, seed, epoch):
    """The documented order, from the numbers of rows alone: groups permuted, windows permuted."""
    first = np.cumsum([0, *groups]).tolist()
    stream = [
        row
        for group in permutation(len(groups), seed, "row groups", epoch).tolist()
        for row in range(first[group], first[group + 1])
    ]
    order = []
    for number, start in enumerate(range(0, len(stream), window)):
        part = stream[start : start + window]
        order += [part[at] for at in permutation(len(part), seed, "window", epoch, number)]
    return order


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 3), st.integers(0, 3))
def test_order_is_a_function_of_seed_and_epoch(folder, size, window, seed, epoch):
    loader = ParquetLoader(folder, size, buffer_rows=window, seed=seed)
    order = visited(loader, epoch)
    assert sorted(order) == list(range(N))
    assert order == slow_order([4, 4, 4, 3, 7, 7, 6, 6], window, seed, epoch)


def test_each_pass_and_each_seed_has_its_own_order(folder):
    orders = {
        tuple(ParquetLoader(folder, 4, seed=seed).order(epoch).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_what_is_not_needed_is_not_read(folder, monkeypatch):
    read = []
    real = parquet._read_group
    monkeypatch.setattr(parquet, "_read_group", lambda group: read.append(group) or real(group))
    loader = ParquetLoader(folder, 4, buffer_rows=8)
    assert (loader.num_samples, len(loader), read) == (N, 11, [])
    next(loader.batches(0))
    assert len(read) <= 3  # of 8: as many as 8 rows need
    read.clear()
    assert len(list(ParquetLoader(folder, 4, buffer_rows=8).batches(0, start=10))) == 1
    assert len(read) == 1
    read.clear()
    loader = ParquetLoader(folder, 4, buffer_rows=8)
    list(loader.batches(0))
    assert len(read) <= 8 + N // 8  # once each, and again at most at the edge of a window
    assert sum(map(len, loader.data._read.values())) <= 8 + 2 * 7


def test_images_of_other_sizes_are_resized(tmp_path, write):
    pixels = [torch.zeros(3, 4 + row, 9, dtype=torch.uint8) for row in range(4)]
    write(tmp_path / "train-0.parquet", range(4), 2, pixels=pixels)
    with pytest.raises(
        ValueError, match=r"Row 1 \(in .*train-0.*\[3, 5, 9\].*\[3, 4, 9\]; pass siz"
    ):
        list(ParquetLoader(tmp_path, 2, shuffle=False).batches(0))
    batch = next(ParquetLoader(tmp_path, 4, size=7).batches(0))
    assert batch.x.shape == (4, 3, 7, 7)


def test_files_can_be_named_one_by_one(folder, tmp_path, write):
    paths = sorted(folder.iterdir())
    second = ParquetLoader([paths[1]], 4, shuffle=False)
    assert second.num_samples == 20
    assert_same(second.batches(0), ParquetLoader(str(paths[1]), 4, shuffle=False).batches(0))
    assert torch.equal(next(second.batches(0)).y, LABELS[15:19])
    write(tmp_path / "test-0.parquet", range(5), 5, column="image")
    other = ParquetLoader(tmp_path, 5, part="test", shuffle=False)
    torch.testing.assert_close(next(other.batches(0)).x, PIXELS[:5] / 255)


def test_labels_are_checked_batch_by_batch(folder, tmp_path, encoded):
    loader = ParquetLoader(folder, N)
    loader.check_labels(2)
    with pytest.raises(ValueError, match="Label 2 occurs 13 times in a batch, but the model has 2"):
        list(loader.batches(0))
    table = pa.table({"img": [{"bytes": encoded(PIXELS[0])}], "label": [None]})
    pq.write_table(table, tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match=r"Row 0 \(in .* has the label None"):
        list(ParquetLoader(tmp_path, 1).batches(0))


def test_a_damaged_image_is_named(tmp_path, write):
    table = pa.table({"img": [{"bytes": b"junk"}] * 9, "label": [0] * 9})
    write(tmp_path / "train-0.parquet", range(4), 2)
    pq.write_table(table, tmp_path / "train-1.parquet", row_group_size=4)
    loader = ParquetLoader(tmp_path, 1, shuffle=False)
    with pytest.raises(ValueError, match=r"Row 9 \(in .*train-1\.parquet\) is damaged or no image"):
        list(loader.batches(0, start=9))


def test_unusable_files(tmp_path, write):
    with pytest.raises(ValueError, match=r"contains no file train-\*\.parquet"):
        ParquetLoader(tmp_path)
    with pytest.raises(ValueError, match=r"train-0\.parquet is missing; fetch"):
        ParquetLoader([tmp_path / "train-0.parquet"])
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(ValueError, match="is not a complete parquet file"):
        ParquetLoader(tmp_path)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match="has the columns x instead of img"):
        ParquetLoader(tmp_path)


def test_impossible_arguments(folder):
    for options, words in (
        ({"batch_size": 0}, "batch_size is 0; pass 1 or more"),
        ({"buffer_rows": 0}, "buffer_rows is 0; pass 1 or more"),
        ({"size": 0}, "size is 0"),
        ({"augment": ("spin",)}, "augment has 'spin'"),
        ({"normalize": ([0.5, 0.5], [1, 1])}, "2 means and 2 deviations for 3 channels"),
    ):
        with pytest.raises(ValueError, match=words):
            ParquetLoader(folder, **options)
    with pytest.raises(ValueError, match="start is -1"):
        ParquetLoader(folder).batches(0, start=-1)


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_small_file_that_expands_beyond_the_limit_is_refused(dictionary, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_BYTES", 8 << 20)
    rows, zeros = 64, bytes(1 << 20)
    images = pa.array([{"bytes": zeros}] * rows)
    path = tmp_path / "train-0.parquet"
    table = pa.table({"img": images, "label": [0] * rows})
    options = {"compression": "brotli", "write_statistics": False}
    pq.write_table(table, path, use_dictionary=dictionary, **options)
    assert path.stat().st_size < 5000
    del images, table
    before, pool = pa.total_allocated_bytes(), pa.default_memory_pool()
    with pytest.raises(ValueError, match=r"train-0\.parquet has a row group that expands to .*8,3"):
        list(ParquetLoader(tmp_path, 1, shuffle=False).batches(0))
    assert pool.bytes_allocated() <= before


@pytest.mark.full
def test_real_shards():
    folder = SHARED / "cifar10-jpeg"
    if not list(folder.glob("test-*.parquet")):
        pytest.skip(f"{folder} has no parquet files; set ASTKIT_SHARED_DATA to run this")
    loader = ParquetLoader(folder, 100, part="test", buffer_rows=500, seed=3)
    assert (loader.num_samples, len(loader)) == (10_000, 100)
    labels = torch.cat([batch.y for batch in loader.batches(0, start=90)])
    assert len(labels) == 1000
    assert len(labels.unique()) == 10
