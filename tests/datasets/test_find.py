"""Data are found by what lies in a folder, whatever the folder is called and however deep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from astkit.datasets.find import DATA, INPUT, find_cifar10, listing, point_to

LAYOUTS = {
    "python": "cifar-10-batches-py/data_batch_1",
    "binary": "cifar-10-batches-bin/data_batch_1.bin",
    "parquet": "plain_text/train-00000-of-00001.parquet",
    "folders": "cifar10/train/airplane/0001.png",
}
MOUNTS = ["slug", "owner/slug", "datasets/owner/slug", "datasets/owner/slug/versions/1"]


def put(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(INPUT, str(tmp_path / "input"))
    monkeypatch.setenv(DATA, "")  # so that what is set here ends with the test


@pytest.mark.parametrize(("mount", "layout"), list(zip(MOUNTS, LAYOUTS, strict=True)))
def test_each_layout_is_found_however_it_is_mounted(
    layout: str, mount: str, tmp_path: Path
) -> None:
    put(tmp_path / "input", "other-set/train/cat/1.png")
    put(tmp_path / "input", "notes.txt")
    path = put(tmp_path / "input" / mount, LAYOUTS[layout])
    found = find_cifar10(tmp_path / "input")
    assert found is not None
    assert found in path.parents
    assert (tmp_path / "input" / mount).resolve() in (found, *found.parents)


def test_the_most_telling_place_is_taken(tmp_path: Path) -> None:
    put(tmp_path, "a/train-0.parquet")  # of any data set
    assert find_cifar10(tmp_path) == tmp_path / "a"
    put(tmp_path, "deep/down/cifar/train-0.parquet")
    assert find_cifar10(tmp_path) == tmp_path / "deep/down/cifar"
    put(tmp_path, "z/y/x/data_batch_3")
    assert find_cifar10(tmp_path) == tmp_path / "z/y/x"


def test_the_search_is_bounded_and_skips_hidden_folders(tmp_path: Path) -> None:
    put(tmp_path, "1/2/3/4/5/6/7/data_batch_1")
    put(tmp_path, ".hidden/data_batch_1")
    assert find_cifar10(tmp_path) is None
    put(tmp_path, "1/2/3/4/5/6/data_batch_1")
    assert find_cifar10(tmp_path) == tmp_path / "1/2/3/4/5/6"
    assert find_cifar10(tmp_path / "nothing") is None


def test_the_loader_is_pointed_there(tmp_path: Path, capsys) -> None:
    path = put(tmp_path / "input", f"owner/slug/{LAYOUTS['python']}")
    point_to("cifar10")
    assert os.environ[DATA] == str(path.parent)
    assert capsys.readouterr().out == f"data: {path.parent}\n"


def test_data_beside_the_notebook_will_do(tmp_path: Path) -> None:
    path = put(tmp_path, f"data/{LAYOUTS['binary']}")
    point_to("cifar10")
    assert os.environ[DATA] == str(path.parent)


def test_nothing_is_searched_where_nothing_is_needed(tmp_path: Path, monkeypatch) -> None:
    for arguments in (("digits",), ("folders",), ("cifar10", "somewhere")):
        point_to(*arguments)
        assert os.environ[DATA] == ""
    put(tmp_path / "input", LAYOUTS["python"])
    monkeypatch.setenv(DATA, "/given")
    point_to("cifar10")
    assert os.environ[DATA] == "/given"


def test_absent_data_are_answered_with_what_was_found(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / "input", f"owner/slug/{number}.csv")
    with pytest.raises(FileNotFoundError, match=r"^CIFAR-10 is not below ") as caught:
        point_to("cifar10")
    said = str(caught.value)
    assert "owner/slug (5 files: 0.csv, 1.csv, 2.csv, ...)" in said
    assert "data_batch_" in said
    assert "add it to the notebook's input" in said


def test_the_listing_is_bounded(tmp_path: Path) -> None:
    assert listing(tmp_path / "nothing") == "no such folder"
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    lines = listing(tmp_path).splitlines()
    assert len(lines) == 32  # an empty one first, dots last
    assert lines[-1].strip() == "..."
