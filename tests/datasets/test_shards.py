import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from astkit.datasets import BatchSource, Images, Loader, ParquetLoader, as_loader
from astkit.rng import permutation

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
STATS = ([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])


def png(picture):
    content = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(content, "PNG")
    return content.getvalue()


def write(path, rows, group, column="img", classes=None, labels=LABELS, pixels=PIXELS):
    """The rows of the toy set in row groups of ``group``."""
    items = [{"bytes": png(pixels[row]), "path": f"{row}.png"} for row in rows]
    table = pa.table({column: items, "label": [labels[row].item() for row in rows]})
    if classes is not None:
        info = {"info": {"features": {"label": {"names": classes, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=group)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of 15, 20 and 6 rows in groups of 4, 7 and 6."""
    root = tmp_path_factory.mktemp("shards")
    cuts = [(range(15), 4), (range(15, 35), 7), (range(35, N), 6)]
    for number, (rows, group) in enumerate(cuts):
        write(root / f"train-{number:05d}-of-00003.parquet", rows, group, classes=["a", "b", "c"])
    return root


def passes(loader, epoch=0, **options):
    return list(loader.batches(epoch, **options))


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for part, twin in zip(one, other, strict=True):
            assert part.dtype == twin.dtype
            assert torch.equal(part, twin)


def visited(loader, epoch=0, **options):
    return [row for batch in loader.batches(epoch, **options) for row in batch.index.tolist()]


def test_follows_the_protocol(folder):
    loader = ParquetLoader(folder, 4)
    assert isinstance(loader, BatchSource)
    assert (loader.num_samples, loader.num_classes, len(loader)) == (N, 3, 11)
    assert len(passes(loader)) == 11
    dropping = ParquetLoader(folder, 4, drop_last=True)
    assert len(dropping) == len(passes(dropping)) == 10
    assert as_loader(loader, "cpu") is loader


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 50),
    st.sampled_from([(), ("crop",), ("crop", "flip")]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0, 2]),
)
def test_rows_look_as_from_memory(folder, size, augment, epoch, drop_last, threads):
    options = {"augment": augment, "seed": 5, "normalize": STATS, "drop_last": drop_last}
    memory = Loader(DATA, size, shuffle=False, **options)
    stored = ParquetLoader(folder, size, shuffle=False, num_threads=threads, **options)
    assert_same(passes(memory, epoch), passes(stored, epoch))
    # the same rows in the same order, whichever loader is told to visit them
    shuffled = ParquetLoader(folder, size, buffer_rows=max(size, 8), **options)
    order = torch.tensor(visited(shuffled, epoch), dtype=torch.int64)
    assert_same(passes(memory, epoch, order=order), passes(shuffled, epoch))


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


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 3), st.integers(0, 3))
def test_order_is_a_function_of_seed_and_epoch(folder, size, extra, seed, epoch):
    loader = ParquetLoader(folder, size, buffer_rows=size + extra, seed=seed)
    order = visited(loader, epoch)
    assert sorted(order) == list(range(N))
    window = (size + extra) // size * size
    assert order == slow_order([4, 4, 4, 3, 7, 7, 6, 6], window, seed, epoch)


def test_each_pass_and_each_seed_has_its_own_order(folder):
    orders = {
        tuple(visited(ParquetLoader(folder, 4, seed=seed), epoch))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 45), st.integers(0, 20), st.booleans())
def test_a_resumed_pass_is_the_tail(folder, size, start, extra, shuffle):
    loader = ParquetLoader(
        folder, size, buffer_rows=size + extra, shuffle=shuffle, augment=("crop", "flip")
    )
    assert_same(passes(loader, 2)[start:], passes(loader, 2, start=start))


def test_what_is_not_needed_is_not_read(folder, monkeypatch):
    decoded, groups = [], []
    real = pq.ParquetFile.iter_batches

    def spy(self, *args, row_groups, **options):
        groups.append(row_groups)
        return real(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    monkeypatch.setattr(
        "astkit.datasets.shards.decoded", lambda item, where: decoded.append(where) or PIXELS[0]
    )
    loader = ParquetLoader(folder, 4, buffer_rows=8)
    assert (loader.num_samples, len(loader)) == (N, 11)
    assert groups == []
    batches = loader.batches(0)
    next(batches)
    assert len(groups) <= 3  # of 8: as many as 8 rows need
    assert len(decoded) == 4
    decoded.clear()
    groups.clear()
    passes(loader, start=10)
    assert len(groups) == 1
    assert len(decoded) == 1
    assert decoded[0].startswith("Row ")


def test_images_of_other_sizes_are_resized(tmp_path):
    pixels = [torch.zeros(3, 4 + row, 9, dtype=torch.uint8) for row in range(4)]
    write(tmp_path / "train-0.parquet", range(4), 2, pixels=pixels)
    with pytest.raises(ValueError, match=r"Row 1 of .*train-0.*\[3, 5, 9\].*\[3, 4, 9\]; pass siz"):
        passes(ParquetLoader(tmp_path, 2, shuffle=False))
    batch = passes(ParquetLoader(tmp_path, 4, size=7))[0]
    assert batch.x.shape == (4, 3, 7, 7)


def test_files_can_be_named_one_by_one(folder, tmp_path):
    paths = sorted(folder.iterdir())
    second = ParquetLoader([paths[1]], 4, shuffle=False)
    assert second.num_samples == 20
    assert_same(passes(second), passes(ParquetLoader(str(paths[1]), 4, shuffle=False)))
    assert torch.equal(passes(second)[0].y, LABELS[15:19])
    write(tmp_path / "test-0.parquet", range(5), 5, column="image")
    other = ParquetLoader(tmp_path, 5, part="test", shuffle=False)
    assert other.num_classes is None
    torch.testing.assert_close(passes(other)[0].x, PIXELS[:5] / 255)


def test_labels_are_checked_batch_by_batch(folder, tmp_path):
    loader = ParquetLoader(folder, N)
    loader.check_labels(2)
    with pytest.raises(ValueError, match="Label 2 occurs 13 times in a batch, but the model has 2"):
        passes(loader)
    pq.write_table(
        pa.table({"img": [{"bytes": png(PIXELS[0])}], "label": [None]}),
        tmp_path / "train-0.parquet",
    )
    with pytest.raises(ValueError, match=r"Row 0 of .* has the label None"):
        passes(ParquetLoader(tmp_path, 1))


def test_a_damaged_image_is_named(tmp_path):
    table = pa.table({"img": [{"bytes": b"junk"}] * 9, "label": [0] * 9})
    write(tmp_path / "train-0.parquet", range(4), 2)
    pq.write_table(table, tmp_path / "train-1.parquet", row_group_size=4)
    loader = ParquetLoader(tmp_path, 1, shuffle=False)
    with pytest.raises(ValueError, match=r"Row 5 of .*train-1\.parquet is damaged or no image"):
        passes(loader, start=9)


def test_unusable_files(folder, tmp_path):
    with pytest.raises(ValueError, match="paths leads to no parquet file with rows"):
        ParquetLoader(tmp_path)
    with pytest.raises(ValueError, match="missing beside its sister files"):
        ParquetLoader([tmp_path / "train-0.parquet"])
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(ValueError, match="is no whole parquet file"):
        ParquetLoader(tmp_path)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match="has the columns x instead of img"):
        ParquetLoader(tmp_path)
    write(tmp_path / "train-0.parquet", range(4), 2, classes=["a", "b", "c"])
    write(tmp_path / "train-1.parquet", range(4), 2, classes=["c", "b", "a"])
    with pytest.raises(ValueError, match="differ in image column or classes"):
        ParquetLoader(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; pass 1 or more"),
        ({"batch_size": 9, "buffer_rows": 8}, "buffer_rows is 8; pass 9 or more"),
        ({"num_threads": -1}, "num_threads is -1"),
        ({"size": 0}, "size is 0"),
        ({"augment": ("spin",)}, "augment has 'spin'"),
        ({"normalize": ([0.5, 0.5], [1, 1])}, "2 means and 2 deviations for 3 channels"),
    ],
)
def test_impossible_arguments(folder, options, words):
    with pytest.raises(ValueError, match=words):
        ParquetLoader(folder, **options)


def test_impossible_passes_fail_at_once(folder):
    loader = ParquetLoader(folder)
    with pytest.raises(ValueError, match=r"cannot reach single rows; write them with write_mapped"):
        loader.batches(0, order=torch.arange(3))
    with pytest.raises(ValueError, match="start is -1"):
        loader.batches(0, start=-1)


def test_real_shards():
    folder = SHARED / "cifar10-jpeg"
    if not list(folder.glob("test-*.parquet")):
        pytest.skip(f"{folder} has no parquet files; set ASTKIT_SHARED_DATA to run this")
    loader = ParquetLoader(folder, 100, part="test", buffer_rows=500, seed=3)
    assert (loader.num_samples, len(loader)) == (10_000, 100)
    batches = loader.batches(0, start=90)
    labels = torch.cat([batch.y for batch in batches])
    assert len(labels) == 1000
    assert len(labels.unique()) == 10
