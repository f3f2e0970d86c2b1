"""Images on disk: the same batches as in memory, and what damaged files say."""

import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from astkit.datasets import Images, Loader, open_mapped, write_mapped
from astkit.datasets.mapped import MappedImages
from tests.datasets.toy import DATA, Rows, assert_same, passes

PIXELS, LABELS = DATA.images, DATA.labels


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
    assert write_mapped(tmp_path / "numbered", Rows(label=int)).classes == ("0", "1", "2", "3")
    # the files are plain .npy, whoever reads them
    np.testing.assert_array_equal(np.load(tmp_path / "deep/rows/images.npy"), PIXELS.numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "deep/rows/labels.npy"), LABELS.numpy())
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["images", "rows"]


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert write_mapped("~/toy", DATA).folder == tmp_path / "toy"
    assert len(open_mapped("~/toy")) == len(DATA)


def test_copies_are_mapped_too(mapped):
    for twin in (pickle.loads(pickle.dumps(mapped)), copy.deepcopy(mapped)):
        assert isinstance(twin, MappedImages)
        assert torch.equal(twin.images, PIXELS)
        assert torch.equal(twin.labels, LABELS)
    assert len(pickle.dumps(mapped)) < 1000  # a path, not pixels
    assert torch.equal(mapped.subset([3, 1]).images, PIXELS[[3, 1]])
    assert not isinstance(mapped.subset([3, 1]), MappedImages)
    assert_same(passes(Loader(DATA, 8)), passes(Loader(mapped, 8, num_workers=1)))


def test_a_failed_write_leaves_nothing_and_nothing_is_overwritten(tmp_path, mapped):
    row = (PIXELS[0], 0)
    for data, words in (
        ([], "data is empty"),
        ([row, (PIXELS[1, :, :4], 1)], r"Row 1 .* shape \[3, 4, 5\] .*\(here \[3, 6, 5\]\)"),
        ([(PIXELS[0].float(), 0)], "Row 0 .* image of type torch.float32"),
        ([(PIXELS[0], 0.5)], "Row 0 .* label of type torch.float32"),
        ([(PIXELS[0], 4)], "has the label 4, but classes names 4"),
        ([row, (PIXELS[0], "cat")], "Row 1 of data is no .* data type 'str'.*; convert it"),
        ([(PIXELS[0], [1, 2])], "Row 0 of data is no"),
        ([(*row, 1)], "Row 0 of data is no"),
        ([{"x": PIXELS[0], "y": 0}], "Row 0 of data is no"),
        ([(Image.new("RGB", (5, 6)), 0)], "Row 0 of data is no"),
        ([(PIXELS[0, 0], 0)], r"images is a torch.uint8 of shape \[1, 6, 5\]"),
    ):
        with pytest.raises(ValueError, match=words):
            write_mapped(tmp_path / "toy", data, DATA.classes)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="The largest label is 5000000; renumber the labels"):
        write_mapped(tmp_path / "toy", [(PIXELS[0], 5_000_000)])
    with pytest.raises(ValueError, match="exists already; choose another folder or remove it"):
        write_mapped(mapped.folder, DATA)


def array(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def header(shape):
    file = io.BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + bytes(500)


IMPOSSIBLE = [(-1, 3, 6, 5), (-2, -3, 4, 4), (2**40, 3, 2, 2), (2**62, 3, 2, 2), ()]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("images.npy", None, r"images\.npy is missing; write the folder again"),
        ("labels.npy", None, r"labels\.npy is missing"),
        ("images.npy", b"no array", r"images\.npy is not a complete \.npy file"),
        ("images.npy", array(PIXELS.numpy())[:-1], "not a complete"),
        ("images.npy", array(PIXELS.numpy()[:-1]), r"images has shape \[22, .* labels has 23 rows"),
        ("images.npy", array(PIXELS.float().numpy()), "images is a torch.float32 of"),
        ("images.npy", array(np.array([None])), r"not a complete \.npy file"),
        ("labels.npy", array(LABELS.double().numpy()), "labels is a torch.float64 of"),
        ("labels.npy", array(LABELS.numpy() + 10**12), "has the label 1000000000000"),
        ("labels.npy", array(np.array(3)), r"labels\.npy is not a complete"),
        ("labels.npy", header((4,)).replace(b"}", b"("), "labels.npy"),  # a bracket left open
        *[("images.npy", header(shape), "images.npy is not a complete") for shape in IMPOSSIBLE],
        ("classes.json", json.dumps(["a", "b"]).encode(), "has the label 3"),
        ("classes.json", b"{}", "does not contain a list of names"),
        ("classes.json", b'["a", "b', "toy is unusable: .*classes.json is not JSON"),
        ("classes.json", b"[" * 100_000, "toy is unusable: .*classes.json is not JSON"),
    ],
)
def test_unusable_files_are_named(file, content, words, tmp_path):
    folder = write_mapped(tmp_path / "toy", DATA, DATA.classes).folder
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        open_mapped(folder)
