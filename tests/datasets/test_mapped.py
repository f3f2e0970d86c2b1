"""Images on disk: the same batches as in memory, and what damaged files say."""

import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch

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
    for data, kind, words in (
        ([], ValueError, "data is empty"),
        ([row, (PIXELS[1, :, :4], 1)], ValueError, "could not broadcast"),
        ([row, (PIXELS[1].float(), 1)], TypeError, "Cannot cast"),
        ([(PIXELS[0].float(), 0)], ValueError, "images is a torch.float32 of"),
        ([(PIXELS[0], 0.5)], TypeError, "'float' object"),
        ([(PIXELS[0], 4)], ValueError, "has the label 4, but classes names 4"),
        ([(PIXELS[0, 0], 0)], ValueError, r"images is a torch.uint8 of shape \[1, 6, 5\]"),
    ):
        with pytest.raises(kind, match=words):
            write_mapped(tmp_path / "toy", data, DATA.classes)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="exists already; choose another folder or remove it"):
        write_mapped(mapped.folder, DATA)


def array(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("images.npy", b"no array", r"images\.npy is not a complete \.npy file"),
        ("images.npy", array(PIXELS.numpy())[:-1], "not a complete"),
        ("images.npy", array(PIXELS.numpy()[:-1]), r"images has shape \[22, .* labels has 23 rows"),
        ("images.npy", array(PIXELS.float().numpy()), "images is a torch.float32 of"),
        ("images.npy", array(np.array([None])), r"not a complete \.npy file"),
        ("labels.npy", array(LABELS.numpy() + 10**12), "has the label 1000000000000"),
        ("classes.json", json.dumps(["a", "b"]).encode(), "has the label 3"),
        ("classes.json", b"3", "toy is unusable: "),
        ("classes.json", b'["a", "b', "toy is unusable: "),
    ],
)
def test_unusable_files_are_named(file, content, words, tmp_path):
    folder = write_mapped(tmp_path / "toy", DATA, DATA.classes).folder
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=file):
        open_mapped(folder)
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        open_mapped(folder)
