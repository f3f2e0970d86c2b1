import copy
import io
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


@pytest.mark.parametrize("size", [1, 10, 100])
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


@settings(max_examples=12, deadline=None)
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
    np.save(tmp_path / "images.npy", np.asfortranarray(PIXELS.numpy()))
    np.save(tmp_path / "labels.npy", LABELS.numpy().astype(np.uint8))
    mapped = open_mapped(tmp_path)
    assert mapped.classes == ("0", "1", "2", "3")
    assert mapped.labels.dtype == torch.int64
    assert_same(passes(Loader(DATA, 8)), passes(Loader(mapped, 8)))


def boom():
    yield PIXELS, LABELS
    raise OSError("disk on fire")


def test_a_failed_write_leaves_nothing(tmp_path):
    for parts, words in (
        ([], "parts is empty"),
        ([PIXELS[0]], "Part 0 is no pair"),
        ([(PIXELS, LABELS), (PIXELS[:, :, :4], LABELS)], r"Part 1 has .* \[3, 4, 5\] after \[3, 6"),
        ([(PIXELS.float(), LABELS)], "images is a torch.float32 tensor"),
        ([(PIXELS, LABELS.float())], "labels is a torch.float32 tensor"),
        ([(PIXELS, LABELS[:5])], r"shape \[37, 3, 6, 5\] and labels has 5 rows"),
        ([(PIXELS, LABELS + 1)], "Label 4 occurs 9 times in 'part 0 of toy', but classes names 4"),
        (boom(), "disk on fire"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            write_mapped(tmp_path / "toy", parts, CLASSES)
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(mapped):
    with pytest.raises(ValueError, match="exists already; choose another folder or remove it"):
        written(mapped.folder)
    assert torch.equal(mapped.images, PIXELS)


def header(shape, kind="|u1"):
    file = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + bytes(500)


def test_unusable_files(tmp_path):
    for number, (file, content, words) in enumerate(
        (
            ("images.npy", None, r"images\.npy is missing; write the folder again"),
            ("labels.npy", None, r"labels\.npy is missing"),
            ("images.npy", b"no array", r"images\.npy is no whole \.npy file"),
            ("images.npy", PIXELS.numpy()[:-1], r"images has shape \[36, .* labels has 37 rows"),
            ("images.npy", PIXELS.float().numpy(), "images is a torch.float32 tensor"),
            ("images.npy", np.array([None]), "no whole .npy file"),
            ("labels.npy", LABELS.double().numpy(), "labels is a torch.float64 tensor"),
            ("labels.npy", LABELS.numpy() + 10**12, "Label 1000000000003 occurs"),
            ("classes.json", json.dumps(["a", "b"]).encode(), "Label 3 occurs 9 times"),
            ("classes.json", b"{}", "holds no list of names"),
            ("classes.json", b"no json", "toy.* is unusable"),
        )
    ):
        folder = written(tmp_path / f"toy{number}").folder
        (folder / file).unlink()
        if isinstance(content, bytes):
            (folder / file).write_bytes(content)
        elif content is not None:
            np.save(folder / file, content)
        with pytest.raises(ValueError, match=words):
            open_mapped(folder)


@pytest.mark.filterwarnings("error")
def test_impossible_shapes_in_the_header_of_a_file_are_refused(tmp_path):
    folder = written(tmp_path / "toy").folder
    for shape in (
        (-1, 3, 6, 5),
        (-1, 3, 32, 32),
        (-2, -3, 4, 4),
        (2**40, 3, 2, 2),
        (2**62, 3, 2, 2),
    ):
        for file in ("images.npy", "labels.npy"):
            content = (folder / file).read_bytes()
            (folder / file).write_bytes(header(shape))
            with pytest.raises(ValueError, match=rf"{file} is no whole \.npy file"):
                open_mapped(folder)
            (folder / file).write_bytes(content)


def test_labels_without_names_cannot_ask_for_endless_names(tmp_path):
    np.save(tmp_path / "images.npy", PIXELS.numpy())
    np.save(tmp_path / "labels.npy", LABELS.numpy() + 10**12)
    with pytest.raises(ValueError, match=r"classes\.json is missing, and labels reach 10000000"):
        open_mapped(tmp_path)


def test_a_file_cut_short_is_refused(tmp_path):
    path = written(tmp_path / "toy").folder / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="no whole"):
        open_mapped(path.parent)
