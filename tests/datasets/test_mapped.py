import copy
import json
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.datasets import Images, Loader, MappedImages, open_mapped, write_mapped

N = 37
PIXELS = torch.randint(0, 256, (N, 3, 6, 5), generator=torch.Generator().manual_seed(0)).to(
    torch.uint8
)
LABELS = torch.arange(N) % 4
CLASSES = ("a", "b", "c", "d")
DATA = Images(PIXELS, LABELS, CLASSES, "toy")


def written(folder, size=10, classes=CLASSES):
    parts = zip(PIXELS.split(size), LABELS.split(size), strict=True)
    return write_mapped(folder, parts, classes)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    return written(tmp_path_factory.mktemp("mapped") / "toy")


def passes(loader, epoch=0, **options):
    return [tuple(part.clone() for part in batch) for batch in loader.batches(epoch, **options)]


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for part, twin in zip(one, other, strict=True):
            assert part.dtype == twin.dtype
            assert torch.equal(part, twin)


@pytest.mark.parametrize("size", [1, 10, N, 100])
def test_what_was_written_is_read(size, tmp_path):
    mapped = written(tmp_path / "deep" / "toy", size)
    assert isinstance(mapped, Images)
    assert torch.equal(mapped.images, PIXELS)
    assert torch.equal(mapped.labels, LABELS)
    assert (mapped.classes, mapped.name, mapped.shape) == (CLASSES, "toy", (3, 6, 5))
    # the files are plain .npy, whoever reads them
    np.testing.assert_array_equal(np.load(tmp_path / "deep/toy/images.npy"), PIXELS.numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "deep/toy/labels.npy"), LABELS.numpy())
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["toy"]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 50),
    st.sampled_from([(), ("crop",), ("crop", "flip")]),
    st.integers(0, 3),
    st.sampled_from(["auto", True, False]),
    st.one_of(st.none(), st.lists(st.integers(0, N - 1), max_size=50)),
    st.integers(0, 3),
)
def test_batches_are_those_of_images_in_memory(
    mapped, size, augment, epoch, resident, order, start
):
    order = None if order is None else torch.tensor(order, dtype=torch.int64)
    options = {"augment": augment, "seed": 7, "normalize": DATA.channel_stats()}
    assert_same(
        passes(Loader(DATA, size, **options), epoch, order=order, start=start),
        passes(Loader(mapped, size, resident=resident, **options), epoch, order=order, start=start),
    )


def test_workers_read_the_same(mapped):
    assert_same(passes(Loader(DATA, 8)), passes(Loader(mapped, 8, num_workers=2)))


def test_parts_and_copies_are_mapped_too(mapped):
    part = open_mapped(mapped.folder, 5, 20, name="middle")
    assert len(part) == 15
    for twin in (part, pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert isinstance(twin, MappedImages)
        assert twin.name == "middle"
        assert torch.equal(twin.images, PIXELS[5:20])
        assert torch.equal(twin.labels, LABELS[5:20])
    assert len(pickle.dumps(mapped)) < 1000  # a path, not pixels
    assert torch.equal(mapped.subset([3, 1]).images, PIXELS[[3, 1]])
    assert not isinstance(mapped.subset([3, 1]), MappedImages)


def test_a_spawned_process_opens_the_files_anew(mapped):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(len, (mapped,)) == N


def test_statistics_taken_in_parts_are_those_of_the_whole(mapped, monkeypatch):
    monkeypatch.setattr("astkit.datasets.images.STATS_ROWS", 7)
    mean, std = mapped.channel_stats()
    channels = PIXELS.double().div(255).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.double(), channels.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(std.double(), channels.std(1, correction=0), rtol=1e-6, atol=0)


def test_bare_arrays_of_other_programs(tmp_path):
    np.save(tmp_path / "images.npy", PIXELS.numpy())
    np.save(tmp_path / "labels.npy", LABELS.numpy().astype(np.uint8))
    mapped = open_mapped(tmp_path)
    assert mapped.classes == ("0", "1", "2", "3")
    assert mapped.labels.dtype == torch.int64
    assert_same(passes(Loader(DATA, 8)), passes(Loader(mapped, 8)))


def boom():
    yield PIXELS, LABELS
    raise OSError("disk on fire")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "parts is empty"),
        ([PIXELS[0]], "Part 0 is no pair"),
        ([(PIXELS, LABELS), (PIXELS[:, :, :4], LABELS)], r"Part 1 has .* \[3, 4, 5\] after \[3, 6"),
        ([(PIXELS.float(), LABELS)], "Part 0 has float32 images"),
        ([(PIXELS, LABELS.float())], "float32 labels"),
        ([(PIXELS, LABELS[:5])], "37 images and 5 labels"),
        ([(PIXELS, LABELS + 1)], "Label 4 occurs 9 times in 'toy', but classes names 4"),
        (boom(), "disk on fire"),
    ],
)
def test_a_failed_write_leaves_nothing(parts, words, tmp_path):
    with pytest.raises((ValueError, OSError), match=words):
        write_mapped(tmp_path / "toy", parts, CLASSES)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(mapped):
    with pytest.raises(ValueError, match="exists already; choose another folder or remove it"):
        written(mapped.folder)
    assert torch.equal(mapped.images, PIXELS)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("images.npy", None, r"images\.npy is missing; write the folder again"),
        ("labels.npy", None, r"labels\.npy is missing"),
        ("images.npy", b"no array", r"images\.npy is no whole \.npy file"),
        ("images.npy", PIXELS.numpy()[:-1], "one integer for each of 36 images"),
        ("images.npy", PIXELS.float().numpy(), "holds float32"),
        ("images.npy", np.asfortranarray(PIXELS.numpy()), "in C order"),
        ("images.npy", np.array([None]), "no whole .npy file"),
        ("labels.npy", LABELS.double().numpy(), "labels.npy holds float64"),
        ("classes.json", json.dumps(["a", "b"]).encode(), "Label 3 occurs 9 times"),
    ],
)
def test_unusable_files(file, content, words, tmp_path):
    folder = written(tmp_path / "toy").folder
    (folder / file).unlink()
    if isinstance(content, bytes):
        (folder / file).write_bytes(content)
    elif content is not None:
        np.save(folder / file, content)
    with pytest.raises(ValueError, match=words):
        open_mapped(folder)


def test_a_file_cut_short_is_refused(tmp_path):
    path = written(tmp_path / "toy").folder / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="no whole"):
        open_mapped(path.parent)
