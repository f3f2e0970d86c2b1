"""Data sets by name: what is read, where it is searched, what damaged files say, and splits."""

import gzip
import io
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from astkit.datasets import load, sources, split, stratified
from astkit.datasets.sources import Layout, read_found, search_places
from tests.build import refused

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def noise(label, number, size=8):
    """The pixels of one picture of `make_folders`: uint8 ``[size, size, 3]``."""
    return np.random.default_rng([label, number]).integers(0, 256, (size, size, 3), dtype=np.uint8)


def make_folders(root, names, count, size=8, suffix=".png"):
    """``count`` random images in each ``root/<name>/``."""
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            path = root / name / f"{number}{suffix}"
            Image.fromarray(noise(label, number, size)).save(path)


def encoded(picture):
    """A PNG file of ``picture``: uint8 ``[3, height, width]``."""
    content = io.BytesIO()
    Image.fromarray(picture.transpose(1, 2, 0)).save(content, "PNG")
    return content.getvalue()


@pytest.fixture(autouse=True)
def nothing_around(tmp_path, monkeypatch):
    """No data set but those a test makes: not in the checkout, not in the environment."""
    monkeypatch.delenv("ASTKIT_DATA", raising=False)
    monkeypatch.setenv("ASTKIT_INPUT", str(tmp_path / "input"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setattr(sources, "DEBIAN", tmp_path / "debian")


def test_wrong_arguments_are_one_sentence(tmp_path):
    make_folders(tmp_path, ("a", "b"), 2)
    refused(
        (lambda: load("mnist"), "unknown dataset 'mnist': choose one of bikes, cifar10"),
        (lambda: load("digits", size=16), "size is 16 for 'digits'"),
        (lambda: load("digits", root="/nowhere"), "root is '/nowhere', but 'digits' come with"),
        (lambda: load("folders"), "root is None"),
        (lambda: split("bikes"), "are divided by time already"),
        (lambda: split("folders", tmp_path), "leaves the test part"),
        *((partial(stratified, torch.arange(4), each), "fraction is") for each in (0, 1, math.nan)),
    )


def test_bikes_are_three_tables_in_order_of_time():
    train, recent, test = parts = load("bikes")
    assert [len(part) for part in parts] == [6442, 743, 1460]
    days = [(part["day"].min(), part["day"].max()) for part in parts]
    assert days == [(1, 273), (274, 304), (305, 365)]
    assert set(recent["mnth"]) == {"Oct"}
    assert not {"casual", "registered"} & {*train, *test}


def test_digits_keep_scikit_learns_values():
    from sklearn.datasets import load_digits

    data, test = load()
    assert test is None
    assert data.images.shape == (1797, 1, 8, 8)
    original = torch.from_numpy(load_digits().images)
    assert torch.equal((data.images[:, 0].double() * 16 / 255).round(), original)
    assert data.images.max() == 255
    assert data.labels.bincount().sum() == 1797


def test_folders_are_read_by_name(tmp_path):
    make_folders(tmp_path / "whole", ("ant", "bee"), 3)
    data, test = load("folders", tmp_path / "whole")
    assert test is None
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    wanted = np.stack([noise(label, number) for label in (0, 1) for number in range(3)])
    assert np.array_equal(data.images.permute(0, 2, 3, 1), wanted)
    make_folders(tmp_path / "train", ("ant", "bee"), 2, suffix=".jpg")
    make_folders(tmp_path / "test", ("bee",), 1)
    train, test = load("folders", str(tmp_path))
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert test.labels.tolist() == [1]
    assert np.array_equal(test.images[0].permute(1, 2, 0), noise(0, 0))
    make_folders(tmp_path / "test", ("wasp",), 1)
    refused((partial(load, "folders", tmp_path), "class 'wasp'"))


def test_other_files_and_parts_beside_the_classes_are_no_classes(tmp_path):
    make_folders(tmp_path, ("ant", "bee", ".hidden"), 2)
    for other in ("ant/0.txt", "bee/Thumbs.db", "notes/readme.md"):
        put(tmp_path, other)
    assert load("folders", tmp_path)[0].classes == ("ant", "bee")
    for part in ("test", "val"):
        make_folders(tmp_path / part, ("ant",), 1)
    train, test = load("folders", tmp_path)
    assert (len(train), len(test), train.classes) == (4, 1, ("ant", "bee"))


@pytest.mark.parametrize("place", ["all", "train/all", "one/two/three"])
def test_a_folder_around_the_classes_is_no_class(place, tmp_path):
    make_folders(tmp_path / place, ("ant", "bee"), 2)
    with pytest.raises(ValueError, match=f"in 2 folders of .*{place}; pass root='.*{place}' if"):
        load("folders", tmp_path)
    assert len(load("folders", tmp_path / place)[0]) == 4


def test_different_sizes_need_a_size_and_missing_folders_say_where(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load("folders", tmp_path)
    make_folders(tmp_path / "train", ("ant",), 1, size=8)
    make_folders(tmp_path / "test", ("ant",), 1, size=6)
    with pytest.raises(ValueError, match=r"ant/0.png is 8x8 pixels and .*ant/0.png is 6x6.*size="):
        load("folders", tmp_path)
    data, _ = load("folders", tmp_path, size=4)
    assert data.shape == (3, 4, 4)


def rows(seed, count=4):
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
    return pixels, random.integers(0, 10, count).tolist()


def make_binary(folder):
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        pixels, labels = rows(seed)
        content = np.column_stack([np.array(labels, np.uint8), pixels])
        content.tofile(folder / f"{name}.bin")
    return folder


def make_parquet(folder, column="img", inner=""):
    folder = folder / "cifar10-some-name"
    (folder / inner).mkdir(parents=True)
    names = [f"train-{number:05d}-of-00005.parquet" for number in range(5)]
    for seed, name in enumerate([*names, "test-00000-of-00001.parquet"]):
        pixels, labels = rows(seed)
        items = [
            {"bytes": encoded(row.reshape(3, 32, 32)), "path": f"{i}.png"}
            for i, row in enumerate(pixels)
        ]
        table = pa.table({column: items, "label": labels})
        pq.write_table(table, folder / inner / name, row_group_size=3)
    return folder


MAKERS = {
    "binary": make_binary,
    "parquet": make_parquet,
    "a clone": partial(make_parquet, column="image", inner="plain_text"),
}


def assert_whole(parts):
    train, test = parts
    expected = [rows(seed) for seed in range(6)]
    pixels = torch.from_numpy(np.concatenate([part[0] for part in expected]))
    labels = torch.tensor([label for part in expected for label in part[1]])
    assert torch.equal(train.images.flatten(1), pixels[:20])
    assert torch.equal(test.images.flatten(1), pixels[20:])
    assert torch.equal(train.labels, labels[:20])
    assert torch.equal(test.labels, labels[20:])
    assert train.classes == sources.CIFAR10


@pytest.mark.parametrize("layout", MAKERS)
def test_every_place_and_layout(layout, tmp_path, monkeypatch):
    folder = MAKERS[layout](tmp_path / "place")
    assert_whole(load("cifar10", tmp_path / "place"))
    assert_whole(load("cifar10", folder))
    monkeypatch.setenv("ASTKIT_DATA", str(tmp_path / "place"))
    assert_whole(load("cifar10"))
    monkeypatch.delenv("ASTKIT_DATA")
    for place in ("data", "input"):
        (tmp_path / "place").rename(tmp_path / place)
        assert_whole(load("cifar10"))
        (tmp_path / place).rename(tmp_path / "place")


def put(root, name):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_search_takes_the_first_place_the_clearest_layout_and_is_bounded(tmp_path):
    plain = Layout("data_batch_[1-5]", lambda folder: ("plain", folder))
    other = Layout("train-*.parquet", lambda folder: ("other", folder), "cifar")
    layouts = (plain, other)
    put(tmp_path, "1/2/3/4/5/6/7/data_batch_1")
    put(tmp_path, ".hidden/data_batch_1")
    put(tmp_path, "of-another-set/train-0.parquet")
    with pytest.raises(FileNotFoundError):
        read_found("it", layouts, [tmp_path, tmp_path / "nothing"], "")
    put(tmp_path, "1/2/3/4/5/6/data_batch_1")
    assert read_found("it", layouts, [tmp_path], "") == ("plain", tmp_path / "1/2/3/4/5/6")
    put(tmp_path, "cifar/train-0.parquet")
    assert read_found("it", (other, plain), [tmp_path], "") == ("other", tmp_path / "cifar")
    put(tmp_path, "z/y/x/data_batch_3")
    found = read_found("it", layouts, [tmp_path / "none", tmp_path], "")
    assert found == ("plain", tmp_path / "z/y/x")
    put(tmp_path, "first/train-0.parquet")  # any data set, but named by the user
    first = [tmp_path / "first", tmp_path]
    assert read_found("it", layouts, first, "") == ("other", tmp_path / "first")


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_absence_lists_the_folders_searched(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ASTKIT_DATA", str(tmp_path / "elsewhere"))
    (tmp_path / "given").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path / "given")
    message = str(caught.value)
    assert f"\n  {tmp_path / 'given'}\n" in message
    for part in ("elsewhere", "checkout/data", "input"):
        assert f"\n  {tmp_path / part} (no such folder)\n" in message
    cifar10 = name == "cifar10"
    source = "binary version of https" if cifar10 else "FashionMNIST('data', download=True)"
    assert source in message
    assert ("data_batch_[1-5].bin" if cifar10 else "train-images-idx3-ubyte") in message
    assert search_places(None)[0] == tmp_path / "elsewhere"


@pytest.mark.parametrize("layout", ["binary", "parquet"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "empty"])
def test_damage_names_the_file(layout, damage, tmp_path):
    folder = MAKERS[layout](tmp_path)
    path = sorted(folder.glob("*batch_3*" if layout == "binary" else "train-00003*"))[0]
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2 - 1] if damage == "truncated" else b"")
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load("cifar10", tmp_path)
    assert (str(folder) if damage == "missing" else path.name) in str(caught.value)


def test_parquet_files_of_other_images(tmp_path):
    picture = {"bytes": encoded(rows(0, 1)[0][0].reshape(3, 32, 32))}
    large = {"bytes": encoded(np.zeros((3, 33, 32), np.uint8))}
    for table, words in (
        ({"img": [picture], "label": [11]}, r"label 11, not \[3, 32, 32\] and 0 to 9"),
        ({"img": [picture], "label": [None]}, "label None"),
        ({"img": [large], "label": [1]}, r"shape \[3, 33, 32\]"),
        ({"img": [{"bytes": b"junk"}], "label": [0]}, "row 0 of .*train-0.parquet is damaged"),
        ({"img": [None], "label": [1]}, "train-0.parquet holds no images with labels"),
        ({"x": [1]}, "train-0.parquet holds no images with labels"),
    ):
        pq.write_table(pa.table(table), tmp_path / "train-0.parquet")
        refused((partial(load, "cifar10", tmp_path), words))


def make_fashion(folder, compressed):
    """Files in the published format, whose pixels and labels say which row they are."""
    folder.mkdir(parents=True)
    for part, count in (("train", 600), ("t10k", 100)):
        numbers = np.arange(count)
        pixels = np.zeros((count, 28, 28), np.uint8)
        pixels[:, 3, 5] = numbers % 251
        for name, values in (("images-idx3", pixels), ("labels-idx1", numbers % 10)):
            sizes = np.array(values.shape, ">u4").tobytes()
            content = bytes((0, 0, 8, values.ndim)) + sizes + values.astype(np.uint8).tobytes()
            path = folder / f"{part}-{name}-ubyte{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(content, 1) if compressed else content)
    return folder


@pytest.mark.parametrize(
    ("place", "compressed"), [("debian/fashion-mnist", True), ("data/FashionMNIST/raw", False)]
)
def test_fashion_mnist_is_found_where_debian_and_torchvision_put_it(place, compressed, tmp_path):
    make_fashion(tmp_path / place, compressed)
    (tmp_path / "data/MNIST/raw").mkdir(parents=True)  # the same names
    (tmp_path / "data/MNIST/raw/train-images-idx3-ubyte").touch()
    for data, count in zip(load("fashion_mnist"), (600, 100), strict=True):
        assert data.images.shape == (count, 1, 28, 28)
        assert torch.equal(data.images[:, 0, 3, 5], (torch.arange(count) % 251).to(torch.uint8))
        assert int((data.images > 0).sum()) == int((torch.arange(count) % 251 > 0).sum())
        assert torch.equal(data.labels, torch.arange(count) % 10)
        assert data.classes[9] == "Ankle boot"


def test_damaged_files_of_fashion_mnist_are_refused(tmp_path):
    folder = make_fashion(tmp_path / "fashion", compressed=False)
    path = folder / "train-labels-idx1-ubyte"
    packed = path.with_name(f"{path.name}.gz")
    content = path.read_bytes()
    for file, damaged in (
        *((path, each) for each in (content[:-1], b"\x01" + content[1:], b"")),
        *((packed, each) for each in (b"no gzip", gzip.compress(content)[:-9])),
    ):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="fashion does not hold all of Fashion-MNIST"):
            load("fashion_mnist", folder)
    packed.unlink()
    path.unlink()
    refused((partial(load, "fashion_mnist", folder), "train-labels-idx1-ubyte"))


def test_the_published_fashion_mnist(monkeypatch):
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    monkeypatch.setattr(sources, "DEBIAN", folder.parent)
    train, test = load("fashion_mnist")
    assert train.labels.bincount().tolist() == [6000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    assert train.labels[:5].tolist() == [9, 0, 0, 3, 0]
    mean, std = train.channel_stats()  # as published with many recipes
    assert (float(mean), float(std)) == pytest.approx((0.2860, 0.3530), abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 5)
)
def test_every_class_gives_its_exact_share(labels, fraction, seed):
    labels = torch.tensor(labels)
    chosen, rest = stratified(labels, fraction, seed, "test")
    assert torch.equal(torch.cat([chosen, rest]).sort().values, torch.arange(len(labels)))
    assert torch.equal(chosen, chosen.sort().values)
    assert torch.equal(rest, rest.sort().values)
    for label in labels.unique():
        count = int((labels == label).sum())
        assert int((labels[chosen] == label).sum()) == round(fraction * count)


def test_digits_are_divided_without_overlap():
    parts = split("digits", seed=3)
    whole, _ = load("digits")
    sizes = [len(parts.train), len(parts.validation), len(parts.test)]
    assert sum(sizes) == len(whole) == 1797
    pixels = torch.cat([part.images for part in (parts.train, parts.validation, parts.test)])
    assert torch.equal(pixels.long().sum(0), whole.images.long().sum(0))
    assert torch.equal(split("digits", seed=3).train.images, parts.train.images)
    assert not torch.equal(split("digits", seed=4).test.images, parts.test.images)
    said = "train {:,}, validation {}, test {}".format(*sizes)
    assert repr(parts) == f"Splits('digits': {said} images)"
