import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.datasets import Images, Loader, open_mapped, write_mapped
from astkit.datasets.mapped import MappedImages
from tests.datasets.toy import DATA, N, Rows, assert_same, passes

PIXELS, LABELS = DATA.images, DATA.labels


@pytest.fixture
def written(tmp_path):
    return write_mapped(tmp_path / "toy", DATA, DATA.classes).folder


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    return write_mapped(tmp_path_factory.mktemp("mapped") / "toy", DATA, DATA.classes)


def test_what_was_written_is_read(tmp_path):
    for name, data in (("images", DATA), ("rows", Rows(torch.Tensor.numpy, int))):
        mapped = write_mapped(tmp_path / "deep" / name, data, DATA.classes)
        assert isinstance(mapped, Images)
        assert torch.equal(mapped.images, PIXELS)
        assert torch.equal(mapped.labels, LABELS)
        assert (mapped.classes, mapped.name, mapped.shape) == (DATA.classes, name, (3, 6, 5))
    # the files are plain .npy, whoever reads them
    np.testing.assert_array_equal(np.load(tmp_path / "deep/rows/images.npy"), PIXELS.numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "deep/rows/labels.npy"), LABELS.numpy())
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["images", "rows"]


@settings(max_examples=8, deadline=None)
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
    assert_same(passes(Loader(DATA, 8)), passes(Loader(mapped, 8, num_workers=1)))


def test_copies_are_mapped_too(mapped):
    for twin in (pickle.loads(pickle.dumps(mapped)), copy.deepcopy(mapped)):
        assert isinstance(twin, MappedImages)
        assert torch.equal(twin.images, PIXELS)
        assert torch.equal(twin.labels, LABELS)
    assert len(pickle.dumps(mapped)) < 1000  # a path, not pixels
    assert torch.equal(mapped.subset([3, 1]).images, PIXELS[[3, 1]])
    assert not isinstance(mapped.subset([3, 1]), MappedImages)


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


def test_a_failed_write_leaves_nothing(tmp_path):
    row = (PIXELS[0], 0)
    for data, words in (
        ([], "data is empty"),
        ([row, (PIXELS[1, :, :4], 1)], r"Row 1 .* shape \[3, 4, 5\] .*\(here \[3, 6, 5\]\)"),
        ([row, (PIXELS[1, :1], 1)], r"Row 1 .* shape \[1, 6, 5\]"),
        ([(PIXELS[0].float(), 0)], "Row 0 .* image of type torch.float32"),
        ([(PIXELS[0], 0.5)], "Row 0 .* label of type torch.float32"),
        ([(PIXELS[0], 4)], "Label 4 occurs 1 time in .*, but classes names 4"),
        ([(PIXELS[0, 0], 0)], r"images is a torch.uint8 of shape \[1, 6, 5\]"),
    ):
        with pytest.raises(ValueError, match=words):
            write_mapped(tmp_path / "toy", data, DATA.classes)
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(mapped):
    with pytest.raises(ValueError, match="exists already; choose another folder or remove it"):
        write_mapped(mapped.folder, DATA)
    assert torch.equal(mapped.images, PIXELS)


def header(shape, kind="|u1"):
    file = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + bytes(500)


def test_unusable_files(written):
    for file, content, words in (
        ("images.npy", None, r"images\.npy is missing; write the folder again"),
        ("labels.npy", None, r"labels\.npy is missing"),
        ("images.npy", b"no array", r"images\.npy is not a complete \.npy file"),
        ("images.npy", PIXELS.numpy()[:-1], r"images has shape \[22, .* labels has 23 rows"),
        ("images.npy", PIXELS.float().numpy(), "images is a torch.float32 of"),
        ("images.npy", np.array([None]), "not a complete .npy file"),
        ("labels.npy", LABELS.double().numpy(), "labels is a torch.float64 of"),
        ("labels.npy", LABELS.numpy() + 10**12, "Label 1000000000003 occurs"),
        ("classes.json", json.dumps(["a", "b"]).encode(), "Label 3 occurs 5 times"),
        ("classes.json", b"{}", "does not contain a list of names"),
        ("classes.json", b"no json", "toy is unusable"),
        ("classes.json", b'["a", "b', "toy is unusable: .*classes.json is not JSON"),
        ("classes.json", b'["\xff"]', "toy is unusable: .*classes.json is not JSON"),
        ("classes.json", b"[" * 100_000, "toy is unusable: .*classes.json is not JSON"),
        ("images.npy", np.array(3, np.uint8), "images.npy is not a complete"),
        ("labels.npy", np.array(3), "labels.npy is not a complete"),
        ("labels.npy", LABELS.numpy().astype(complex), "labels is a torch.complex128 of"),
    ):
        before = (written / file).read_bytes()
        (written / file).unlink()
        if isinstance(content, bytes):
            (written / file).write_bytes(content)
        elif content is not None:
            np.save(written / file, content)
        with pytest.raises(ValueError, match=words):
            open_mapped(written)
        (written / file).write_bytes(before)


@pytest.mark.filterwarnings("error")
def test_impossible_shapes_in_the_header_of_a_file_are_refused(written):
    folder = written
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
            with pytest.raises(ValueError, match=rf"{file} is not a complete \.npy file"):
                open_mapped(folder)
            (folder / file).write_bytes(content)


def test_labels_without_names_cannot_ask_for_endless_names(tmp_path):
    np.save(tmp_path / "images.npy", PIXELS.numpy())
    np.save(tmp_path / "labels.npy", LABELS.numpy() + 10**12)
    with pytest.raises(ValueError, match=r"classes\.json is missing, and labels reach 10000000"):
        open_mapped(tmp_path)


def test_a_file_cut_short_is_refused(written):
    path = written / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not a complete"):
        open_mapped(path.parent)


def test_what_the_parser_of_a_header_stumbles_over_is_named(written):
    for name, content in (
        ("labels.npy", header((4,)).replace(b"}", b"(")),  # a bracket that is never closed
        ("images.npy", header(())),
        ("classes.json", b'["a", '),
        ("classes.json", b"[" * 100_000),
    ):
        before = (written / name).read_bytes()
        (written / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            open_mapped(written)
        (written / name).write_bytes(before)
