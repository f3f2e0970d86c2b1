"""Old rows and target rows in one data set: its rows and attributes, and what is refused."""

from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from astkit import Loader, Table, Trainer, joined
from astkit.datasets import as_loader
from astkit.datasets.facts import class_labels, row_groups
from astkit.datasets.joined import divide_joined
from astkit.datasets.loader import old_rows
from tests import build
from tests.build import refused
from tests.datasets.toy import DATA, N, Rows

OLD = pd.DataFrame(
    {"size": [1.0, 2.0, 3.0, 4.0], "town": list("abab"), "price": [10.5, 20, 30, 40]}
)
NEW = pd.DataFrame({"size": [5.0, None], "town": ["c", "a"], "price": [50.5, 60]})


def points(rows: int, sides: int = 3, **attributes: Any) -> TensorDataset:
    random = torch.Generator().manual_seed(rows)
    data = TensorDataset(torch.randn(rows, sides, generator=random), torch.arange(rows) % 3)
    vars(data).update(attributes)
    return data


def tokens(*lengths: int, **attributes: Any) -> Any:
    """Rows by name, of different lengths."""
    rows = [{"input_ids": torch.arange(n), "labels": row % 2} for row, n in enumerate(lengths)]
    return build.as_dataset(rows, **attributes)


def table() -> tuple[Table, Table]:
    train = Table(OLD, label="price", task="regression")
    return train, Table(NEW, like=train)


PAIRS: dict[str, tuple[Any, Any]] = {
    "table": table(),
    "tensors": (points(5), points(2)),
    "images": (DATA, DATA.subset([4, 2])),
    "texts": (["one", "two", "three"], ["four", "five"]),
    "items": (Rows(), Rows()),
    "dicts": (tokens(3, 4, 5), tokens(1, 7)),
    "subsets": (Subset(points(9), [1, 5, 7]), points(2)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_rows_are_those_of_both_in_order(kind: str) -> None:
    train, target = PAIRS[kind]
    both = joined(train, target)
    assert (old_rows(both), len(both)) == (len(train), len(train) + len(target))
    for row in range(len(both)):
        own = train[row] if row < len(train) else target[row - len(train)]
        torch.testing.assert_close(_plain(both[row]), _plain(own), rtol=0, atol=0, equal_nan=True)
    old, new = divide_joined(both)
    torch.testing.assert_close(_plain(old[1]), _plain(train[1]), equal_nan=True)
    torch.testing.assert_close(_plain(new[1]), _plain(target[1]), equal_nan=True)


def _plain(item: Any) -> Any:
    return [ord(letter) for letter in item] if isinstance(item, str) else item


def test_both_keep_their_labels_groups_and_classes() -> None:
    names = points(3, groups=["a", "b", "b"], classes=["x", "y", "z"]), points(2, groups=["b", "c"])
    both = joined(*names)
    assert row_groups(both).tolist() == [0, 1, 1, 1, 2]
    assert class_labels(both).tolist() == [0, 1, 2, 0, 1]
    assert both.classes == ["x", "y", "z"]
    assert joined(DATA, DATA).labels.tolist() == [*DATA.labels.tolist()] * 2
    train = Table(OLD.assign(who=list("ppqq")), label="price", task="regression", groups="who")
    both = joined(train, Table(NEW.assign(who=["q", "r"]), like=train))
    assert list(both.groups) == list("ppqqqr")
    assert both.cells(4)["town"] == "c"


def test_words_that_the_target_lacks_are_missing() -> None:
    """In all of its rows, or as a column."""
    old = pd.DataFrame(
        {"word": ["a", "b"] * 30, "x": range(60), "y": [each**2 for each in range(60)]}
    )
    train = Table(old, "y")
    for new in (old.assign(word=None), old.drop(columns="word")):
        both = joined(train, Table(new, like=train))
        assert both.frame["word"].isna().sum() == 60


def test_a_loader_keeps_its_settings() -> None:
    def collate(rows: list[Any]) -> Any:
        return torch.stack([row["input_ids"][:1] for row in rows]), torch.zeros(len(rows))

    own = DataLoader(PAIRS["dicts"][0], 2, shuffle=True, collate_fn=collate)
    both = joined(own, DataLoader(PAIRS["dicts"][1], 7))
    assert isinstance(both, Loader)
    assert (both.batch_size, both.shuffle, both.collate_fn) == (2, True, collate)
    assert len(both) == 2
    rows = torch.cat([batch.index for batch in both.batches(0)])
    assert sorted(rows.tolist()) == [0, 1, 2]
    assert [len(batch.x) for batch in both.batches(0, torch.tensor([3, 4]))] == [2]
    resident = joined(Loader(DATA, resident=True), DATA)
    assert next(resident.batches(0, torch.tensor([N]))).y.tolist() == [int(DATA.labels[0])]


def test_an_epoch_has_as_many_rows_as_there_are_old_ones() -> None:
    loader = as_loader(joined(points(5), points(40)), batch_size=2)
    assert len(loader) == 3
    assert sorted(loader.order(3).tolist()) == [0, 1, 2, 3, 4]
    again = joined(joined(points(5), points(2)), points(3))
    assert (old_rows(again), len(again)) == (5, 10)
    assert old_rows(joined(*table()).take(torch.tensor([0, 5]))) == 2


TABLE = table()[0]
UNLIKE: list[tuple[Any, Any, str]] = [
    (points(5), points(4, sides=2), r"target have float32 \[2\] as \[0\].*train float32 \[3\]"),
    (points(5), TensorDataset(torch.zeros(4, 3)), r"parts \[0\], those of train \[0\], \[1\]"),
    (points(5), TensorDataset(torch.zeros(4, 3), torch.zeros(4)), r"float32 as \[1\].*int64"),
    (tokens(3, 4), tokens(3, groups=[1]), "groups is known for the target"),
    (DATA, Rows(convert=torch.Tensor.float), "float32"),
    (DATA, DATA.subset([0]).__class__(DATA.images, DATA.labels, tuple("abcx"), "x"), "classes"),
    (table()[0], points(3), "like=train"),
    (table()[0], Table(NEW, label="price", task="regression"), "like=train"),
    (TABLE, Table(NEW[["size", "town"]], like=TABLE), "no labels"),
    (points(5), [], "target has no rows"),
    (iter([1]), points(5), "train is a list_iterator"),
    (DataLoader(points(5), sampler=[1, 2]), points(5), "train is a DataLoader"),
]


def test_data_that_are_not_alike_are_one_sentence() -> None:
    refused(*((partial(joined, train, target), said) for train, target, said in UNLIKE))
    model, both = torch.nn.Linear(3, 3), joined(points(5), points(2))
    refused((lambda: Trainer(model, points(5), both, epochs=1), "joined with rows of a target"))
