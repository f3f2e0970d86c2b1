import hashlib
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10

from astkit.datasets import cifar10, load
from astkit.datasets.cifar10 import CLASSES, find_layout, search_places

HERE = Path(__file__).resolve()
SHARED = Path(os.environ.get("ASTKIT_SHARED_DATA", HERE.parents[3] / "shared" / "data"))
NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@pytest.fixture(autouse=True)
def nothing_around(tmp_path, monkeypatch):
    """No data set but those a test makes: not in the checkout, not in the environment."""
    monkeypatch.delenv("ASTKIT_DATA", raising=False)
    monkeypatch.setenv("ASTKIT_INPUT", str(tmp_path / "input"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cifar10, "CHECKOUT", tmp_path / "checkout")


def rows(seed, count=4):
    noise = np.random.default_rng(seed)
    pixels = noise.integers(0, 256, (count, 3072), dtype=np.uint8)
    return pixels, noise.integers(0, 10, count).tolist()


def make_python(folder, monkeypatch):
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    known = []
    for seed, name in enumerate(NAMES):
        pixels, labels = rows(seed)
        content = pickle.dumps({"data": pixels, "labels": labels})
        (folder / name).write_bytes(content)
        known.append([name, hashlib.md5(content).hexdigest()])
    monkeypatch.setattr(CIFAR10, "train_list", known[:-1])
    monkeypatch.setattr(CIFAR10, "test_list", known[-1:])
    return folder


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "png")
    return file.getvalue()


def make_parquet(folder, monkeypatch, column="img"):
    folder = folder / "cifar10-some-name"
    folder.mkdir(parents=True)
    names = [f"train-{number:05d}-of-00005.parquet" for number in range(5)]
    for seed, name in enumerate([*names, "test-00000-of-00001.parquet"]):
        pixels, labels = rows(seed)
        items = [
            {"bytes": png(row.reshape(3, 32, 32)), "path": f"{i}.png"}
            for i, row in enumerate(pixels)
        ]
        pq.write_table(pa.table({column: items, "label": labels}), folder / name)
    return folder


MAKERS = {"python": make_python, "parquet": make_parquet}


def assert_whole(parts):
    train, test = parts
    expected = [rows(seed) for seed in range(6)]
    pixels = torch.from_numpy(np.concatenate([part[0] for part in expected]))
    labels = torch.tensor([label for part in expected for label in part[1]])
    assert torch.equal(train.images.flatten(1), pixels[:20])
    assert torch.equal(test.images.flatten(1), pixels[20:])
    assert torch.equal(train.labels, labels[:20])
    assert torch.equal(test.labels, labels[20:])
    assert train.classes == CLASSES


@pytest.mark.parametrize("layout", MAKERS)
def test_every_place_and_layout(layout, tmp_path, monkeypatch):
    folder = MAKERS[layout](tmp_path / "place", monkeypatch)
    assert_whole(load("cifar10", tmp_path / "place"))
    assert_whole(load("cifar10", folder))
    monkeypatch.setenv("ASTKIT_DATA", str(tmp_path / "place"))
    assert_whole(load("cifar10"))
    monkeypatch.delenv("ASTKIT_DATA")
    for place in ("data", "input"):
        (tmp_path / "place").rename(tmp_path / place)
        assert_whole(load("cifar10"))
        (tmp_path / place).rename(tmp_path / "place")


def test_parquet_with_other_column_and_folder(tmp_path, monkeypatch):
    folder = make_parquet(tmp_path, monkeypatch, column="image")
    inner = folder / "plain_text"
    inner.mkdir()
    for path in folder.glob("*.parquet"):
        path.rename(inner / path.name)
    assert_whole(load("cifar10", tmp_path))


def test_class_folders(tmp_path, class_folders):
    class_folders(tmp_path / "cifar10" / "train", CLASSES, 2, size=32)
    class_folders(tmp_path / "cifar10" / "test", CLASSES, 1, size=32)
    train, test = load("cifar10", tmp_path)
    assert len(train) == 20
    assert test.labels.tolist() == list(range(10))


def test_class_folders_of_another_data_set(tmp_path, class_folders):
    class_folders(tmp_path / "few" / "train", CLASSES[:9], 1, size=32)
    class_folders(tmp_path / "small" / "train", CLASSES, 1, size=16)
    for name, words in (
        ("few", "the class 'truck' in one only"),
        ("small", r"shape \[3, 16, 16\]"),
    ):
        with pytest.raises(ValueError, match=words):
            load("cifar10", tmp_path / name)


def put(root, name):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_each_layout_is_found_however_it_is_mounted(tmp_path):
    for mount, name, layout in (
        ("slug", "cifar-10-batches-py/data_batch_1", "python"),
        ("owner/slug", "cifar/plain_text/train-00000-of-00001.parquet", "parquet"),
        ("datasets/owner/slug/versions/1", "images/train/airplane/0001.png", "folders"),
    ):
        root = tmp_path / layout
        put(root, "other-set/train/cat/1.png")
        put(root, "other-set/train-00000-of-00001.parquet")
        put(root, "notes.txt")
        path = put(root / mount, name)
        folder, found = find_layout([root])
        assert found == layout
        assert folder in path.parents
        assert root / mount in (folder, *folder.parents)


def test_the_first_place_and_the_clearest_layout_are_taken(tmp_path):
    put(tmp_path, "z/y/cifar/train-0.parquet")
    assert find_layout([tmp_path])[0] == tmp_path / "z/y/cifar"
    put(tmp_path, "z/y/x/data_batch_3")
    assert find_layout([tmp_path / "none", tmp_path])[0] == tmp_path / "z/y/x"
    put(tmp_path, "first/train-0.parquet")  # any data set, but named by the user
    assert find_layout([tmp_path / "first", tmp_path]) == (tmp_path / "first", "parquet")


def test_the_search_is_bounded_and_skips_hidden_folders(tmp_path):
    put(tmp_path, "1/2/3/4/5/6/7/data_batch_1")
    put(tmp_path, ".hidden/data_batch_1")
    assert find_layout([tmp_path, tmp_path / "nothing"]) is None
    put(tmp_path, "1/2/3/4/5/6/data_batch_1")
    assert find_layout([tmp_path])[0] == tmp_path / "1/2/3/4/5/6"


def test_absence_lists_the_folders_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("ASTKIT_DATA", str(tmp_path / "elsewhere"))
    (tmp_path / "given" / "empty").mkdir(parents=True)
    for number in range(40):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
    with pytest.raises(FileNotFoundError) as caught:
        load("cifar10", tmp_path / "given")
    message = str(caught.value)
    for part in ("given", "given/empty", "data/0"):
        assert f"\n  {tmp_path / part}\n" in message
    for part in ("elsewhere", "checkout/data", "input"):
        assert f"\n  {tmp_path / part} (no such folder)\n" in message
    assert "download=True" in message
    assert "data_batch_[1-5]" in message
    assert message.count(str(tmp_path / "data")) == cifar10.MOST_LISTED
    assert message.count("\n  ...\n") == 1
    assert search_places(None)[0] == tmp_path / "elsewhere"


def test_a_failed_download_says_why(tmp_path, monkeypatch):
    from torchvision.datasets import utils

    def refuse(url, root, filename, md5):
        raise OSError("no route")

    monkeypatch.setattr(utils, "download_and_extract_archive", refuse)
    with pytest.raises(FileNotFoundError, match=r"failed \(no route\)"):
        load("cifar10", tmp_path, download=True)


def test_download_goes_to_the_first_place(tmp_path, monkeypatch):
    from torchvision.datasets import utils

    def fetch(url, root, filename, md5):
        make_python(Path(root), monkeypatch)

    monkeypatch.setattr(utils, "download_and_extract_archive", fetch)
    assert_whole(load("cifar10", tmp_path / "new", download=True))
    assert (tmp_path / "new" / "cifar-10-batches-py" / "test_batch").exists()


@pytest.mark.parametrize("layout", MAKERS)
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "empty"])
def test_damage_names_the_file(layout, damage, tmp_path, monkeypatch):
    folder = MAKERS[layout](tmp_path, monkeypatch)
    path = sorted(folder.glob("*batch_3" if layout == "python" else "train-00003*"))[0]
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "changed":
        # the first bytes of a pickle, the last of a parquet footer
        odd = b"\x0b" + content[1:] if layout != "parquet" else content[:-4] + bytes(4)
        path.write_bytes(odd)
    else:
        path.write_bytes(content[: len(content) // 2 if damage == "truncated" else 0])
    with pytest.raises(ValueError, match=r"again|shards") as caught:
        load("cifar10", tmp_path)
    assert (str(folder) if damage == "missing" else path.name) in str(caught.value)


def test_an_unknown_pickle_is_never_run(tmp_path, monkeypatch):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    folder = make_python(tmp_path, monkeypatch)
    (folder / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="published checksum"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_odd_parquet_files(tmp_path):
    picture = png(rows(0, 1)[0][0].reshape(3, 32, 32))
    large = png(np.zeros((3, 33, 32), np.uint8))
    for table, words in (
        ({"picture": [b""], "label": [1]}, "columns picture, label"),
        ({"img": [b"no image"], "label": [1]}, r"Row 0 \(in .*\) is damaged"),
        ({"img": [None], "label": [1]}, r"Row 0 \(in .*\) is damaged"),
        ({"img": [picture], "label": [11]}, r"Row 0 .*label 11, not \[3, 32, 32\] and 0 to 9"),
        ({"img": [large], "label": [1]}, r"Row 0 .*shape \[3, 33, 32\]"),
        ({"img": [picture], "label": [None]}, "Row 0 .*label None"),
        (
            {"img": pa.array([], pa.binary()), "label": pa.array([], pa.int64())},
            "has 0 rows, not 1 to",
        ),
        ({"img": [picture] * 50_001, "label": [1] * 50_001}, "has 50001 rows"),
    ):
        pq.write_table(pa.table(table), tmp_path / "train-0.parquet")
        with pytest.raises(ValueError, match=words):
            load("cifar10", tmp_path)


def test_published_names_are_in_place():
    assert {name for name, _ in CIFAR10.train_list + CIFAR10.test_list} == set(NAMES)


@pytest.mark.full
def test_real_parquet_files():
    source = SHARED / "cifar10-jpeg" / "test-00000-of-00001.parquet"
    if not source.exists():
        pytest.skip(f"{source} is absent; set ASTKIT_SHARED_DATA to run this")
    data = cifar10._shards([source])
    assert data.shape == (3, 32, 32)
    assert data.labels.bincount().tolist() == [1000] * 10
