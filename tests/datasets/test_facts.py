"""What is known of data before training: their labels, repeated rows, rows that parts share."""

import math
import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from astkit.datasets import Loader, as_loader, indexed
from astkit.datasets.facts import (
    class_labels,
    paired_groups,
    read_alike,
    row_groups,
    shared_rows,
    varies,
)
from tests import build
from tests.build import refused
from tests.datasets import transformed
from tests.datasets.transformed import dimmed

X, Y = torch.zeros(7, 2), torch.tensor([0, 2, 1, 1, 2, 0, 1])
PAIRS = TensorDataset(X, Y)
STREAM = build.as_stream([(torch.zeros(2), 0)])


def named(**attributes: Any) -> Any:
    """Seven rows with attributes."""
    return build.as_dataset(range(7), **attributes)


def changed(targets: Any, change: Any, form: Any = lambda x, y: (x, y)) -> Any:
    """Rows with stored ``targets`` and a ``target_transform``, as torchvision's data sets."""
    read = lambda row: form(torch.zeros(2), change(int(targets[row])))  # noqa: E731
    return build.computed(len(targets), read, targets=targets)


NOISY = build.computed(9, lambda row: (torch.tensor(random.random()), row % 2))


def test_class_labels_are_found_under_either_name() -> None:
    expected = Y.tolist()
    series = pd.Series(expected, index=[30, 4, 9, 2, 8, 1, 0])  # of a split of a table
    for stored in (Y, Y.to(torch.uint8), expected, np.array(expected), series):
        for name in ("labels", "targets"):
            labels = class_labels(indexed(named(**{name: stored})))
            assert labels is not None
            assert (labels.dtype, labels.tolist()) == (torch.int64, expected)
    for stored in (Y.float(), expected[:3], ["a"] * 7, torch.zeros(7, 2).long(), 3, None):
        assert class_labels(named(labels=stored)) is None
    assert class_labels(object()) is None
    assert isinstance(class_labels(named(labels=["a"] * 7, targets=Y)), Tensor)


def test_class_labels_are_found_in_tensors_and_parts_of_data_sets() -> None:
    rows = [4, 0, 4]
    for data, expected in (
        (PAIRS, Y),
        (DataLoader(PAIRS), Y),
        (Loader(PAIRS), Y),
        (as_loader(DataLoader(PAIRS)), Y),
        (Subset(PAIRS, rows), Y[rows]),
        (indexed(Subset(Subset(PAIRS, np.array(rows)), [2, 1])), Y[[4, 0]]),
        (ConcatDataset([Subset(PAIRS, rows), named(targets=Y)]), torch.cat([Y[rows], Y])),
    ):
        labels = class_labels(data)
        assert labels is not None
        assert labels.equal(expected)
    for none in (TensorDataset(Y), TensorDataset(X, X), TensorDataset(X, Y.float())):
        assert class_labels(none) is None
    for none in (TensorDataset(X, Y + 7), TensorDataset(X, Y - 9), TensorDataset(X[:0], Y[:0])):
        assert class_labels(none) is None
    for other in (torch.uint8, torch.int8, torch.uint16, torch.uint64):
        rows = torch.arange(256) % 3  # whose number is 0 in uint8
        assert rows.equal(class_labels(TensorDataset(rows, rows.to(other))))  # type: ignore[arg-type]
    assert class_labels(TensorDataset(X, Y + 0j)) is None
    assert class_labels(ConcatDataset([PAIRS, TensorDataset(X, X)])) is None


def test_whole_numbers_are_taken_for_classes_where_none_is_rare() -> None:
    """Unless it is said whether they are."""
    rows = torch.arange(400)
    random = torch.Generator().manual_seed(0)
    for numbers, alike in (
        (rows % 10, True),
        (rows % 2, True),
        ((rows % 400 < 6).long(), True),  # of a rare class
        (torch.poisson(torch.full((400,), 2.0), generator=random), False),  # few are large
        ((5 + 2 * torch.randn(400, generator=random)).round().clamp_min(0), False),
        (18 + rows % 50, False),  # ages
        (1 + rows % 5, False),  # ratings
    ):
        data = TensorDataset(torch.zeros(400, 1), numbers.long())
        assert (class_labels(data, None) is not None) == alike
        assert (class_labels(Subset(data, range(300)), None) is not None) == alike
        assert class_labels(data) is not None
        assert class_labels(data, False) is None
    assert class_labels(named(targets=7 * Y), None) is not None  # which is said


def test_labels_that_are_not_those_of_the_rows_are_not_used() -> None:
    targets = torch.arange(200) % 10
    for change, known in (
        (lambda y: y, True),
        (lambda y: torch.nn.functional.one_hot(torch.tensor(y), 10), True),  # no number
        (lambda y: int(y >= 5), False),
        (lambda y: torch.tensor(9 - y), False),
        (lambda y: np.int64(y + 3), False),
        (lambda y: random.randrange(10), False),
    ):
        for form in (lambda x, y: (x, y), lambda x, y: {"x": x, "label": y}):
            for data in (changed(targets, change, form), changed(targets.tolist(), change)):
                labels = class_labels(data)
                assert (labels is not None) == known
                assert labels is None or labels.equal(targets)
    two_inputs = changed(targets, lambda y: y, lambda x, y: (x, x, y))
    assert targets.equal(class_labels(two_inputs))  # type: ignore[arg-type]
    relabelled: Any = Subset(PAIRS, [4, 0, 4])
    relabelled.targets = [2, 2, 2]
    assert class_labels(relabelled) is None


def test_reading_rows_moves_no_generator() -> None:
    before = random.getstate()
    class_labels(changed(Y, lambda y: y + int(2 * random.random())))
    shared_rows(NOISY, None, NOISY)
    assert random.getstate() == before


@settings(max_examples=40, deadline=None)
@given(*[st.lists(st.integers(0, 12), min_size=1, max_size=12)] * 3, st.integers(0, 3))
def test_shared_rows_are_those_of_a_slow_loop(first, second, third, kind):
    parts = {"train": first, "validation": second, "test": third}

    def data(name: str) -> Any:
        rows = torch.tensor(parts[name])
        y = (rows > 6).long() + (name == "test") * (rows % 2)
        x = rows[:, None].repeat(1, 3).float()
        kinds: tuple[Any, ...] = (
            TensorDataset(x, y),
            Loader(TensorDataset(x, y), shuffle=False),
            Loader([{"x": x[i], "n": [str(x[i])], "label": y[i]} for i in range(len(x))]),
            DataLoader(indexed(TensorDataset(x, y))),
        )
        return kinds[kind]

    expected = {}
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        if rows := sum(row in parts[other] for row in parts[one]):
            expected[one, other] = rows
    assert shared_rows(*map(data, parts)) == expected


def test_rows_that_cannot_be_compared_are_not() -> None:
    drawn = DataLoader(PAIRS, sampler=WeightedRandomSampler([1.0, 1.0], 2))
    fewer = DataLoader(PAIRS, sampler=SequentialSampler(range(3)))
    batched = DataLoader(PAIRS, batch_sampler=BatchSampler([2, 1], 2, False))
    unknown = (STREAM, as_loader(DataLoader(STREAM)), [(X, Y)], drawn, as_loader(drawn))
    unknown = (*unknown, fewer, batched)
    for other in (*unknown, NOISY, TensorDataset(X + 1, Y)):
        assert shared_rows(PAIRS, None, other) == {}


def pictures(seed: int, rows: int, kind: Any = Image.fromarray) -> Any:
    """Rows that are PIL images, made anew at each reading."""
    pixels = np.random.default_rng(seed).integers(0, 255, (rows, 8, 8, 3), np.uint8)
    return build.computed(rows, lambda row: (kind(pixels[row]), row % 2))


def test_pictures_are_compared_by_their_pixels_and_unknown_objects_not_at_all() -> None:
    assert shared_rows(pictures(0, 50), pictures(1, 20), None) == {}
    assert shared_rows(pictures(0, 50), pictures(0, 50), None) == {("train", "validation"): 50}
    same = [pictures(0, 50, lambda pixels: SimpleNamespace(pixels=pixels)) for _ in range(2)]
    assert shared_rows(*same, None) == {}
    turned = [TensorDataset(torch.ones(5) + 1j * place, torch.zeros(5)) for place in (0, 1)]
    assert shared_rows(*turned, None) == {}


def test_a_sampler_of_a_subset_has_the_rows_of_the_subset() -> None:
    data = TensorDataset(torch.arange(9.0)[:, None], torch.arange(9))
    sampler = SubsetRandomSampler([7, 2, 5])
    batched = DataLoader(data, batch_sampler=BatchSampler(sampler, 2, False))
    for loader in (DataLoader(data, sampler=sampler), batched):
        labels = class_labels(loader)
        assert labels is not None
        assert labels.tolist() == [7, 2, 5]
        assert shared_rows(loader, data, None) == {("train", "validation"): 3}


def test_random_transforms_are_replaced_by_those_of_the_target() -> None:
    data = transformed.Transformed(build.images(24), dimmed)
    target = transformed.Transformed(build.images(24), lambda x: 2 * x)
    state = torch.get_rng_state()
    parts = (data, range(24)), (Subset(data, [3, 1]), [3, 1]), (Loader(data, 4), [0])
    for part, rows in parts:
        alike = read_alike(part, target)
        assert varies(data)
        assert not varies(alike)
        for place, row in enumerate(rows):
            assert alike[place][0].equal(target[row][0])
            assert alike[place][1] == target[row][1]
    assert torch.equal(torch.get_rng_state(), state)
    assert data.transform is dimmed
    assert shared_rows(data, None, target) == {("train", "test"): 24}
    for same in (target, NOISY, transformed.Transformed(build.images(9), dimmed, "change")):
        assert read_alike(same, target) is same
    assert read_alike(data, PAIRS) is data


def test_inputs_are_the_same_only_in_each_part() -> None:
    for one, other in (
        ({"a": 1, "b": 23}, {"a": 12, "b": 3}),
        ({"a": torch.tensor(2**53)}, {"a": torch.tensor(2**53 + 1)}),
        ({"a": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}),
    ):
        assert shared_rows(build.as_dataset([one]), build.as_dataset([other]), None) == {}
        assert shared_rows(build.as_dataset([one]), build.as_dataset([one]), None) == {
            ("train", "validation"): 1
        }


def grouped(data: Any, groups: Any) -> Any:
    """``data`` with an attribute ``groups``."""
    data.groups = groups
    return data


def test_groups_are_found_at_every_level_of_wrapping() -> None:
    whole = grouped(TensorDataset(X, Y), ["a", "a", "b", "c", "c", "c", "d"])
    plain, rows = TensorDataset(X, Y), [5, 2, 6]
    own = grouped(Subset(plain, rows), torch.tensor([8, 8, 3]))
    labelled = grouped(Subset(plain, rows), (7.0, 7.0, 9.0))
    labelled.labels = Y[rows]
    inner = Subset(whole, rows)
    inner.labels = Y[rows]  # type: ignore[attr-defined]
    both = ConcatDataset([Subset(whole, rows), grouped(named(), list("dexyzzd"))])
    for data, expected in (
        (whole, [0, 0, 1, 2, 2, 2, 3]),
        (DataLoader(indexed(whole), 2, shuffle=True), [0, 0, 1, 2, 2, 2, 3]),
        (as_loader(DataLoader(own, sampler=SubsetRandomSampler([2, 0]))), [0, 1]),
        (own, [1, 1, 0]),
        (labelled, [0, 0, 1]),
        (inner, [1, 0, 2]),
        (Loader(Subset(own, [2, 1])), [0, 1]),
        (grouped(Subset(whole, rows), pd.Series(["p", "q", "p"], index=[3, 9, 1])), [0, 1, 0]),
        (Subset(both, [0, 3, 9, 5]), [0, 1, 1, 2]),  # "d" is one group in both parts
        (grouped(ConcatDataset([plain, plain]), np.arange(14) // 7), [0] * 7 + [1] * 7),
        (grouped(TensorDataset(X, Y), [torch.tensor(row) for row in range(7)]), list(range(7))),
    ):
        found = row_groups(data)
        assert found is not None
        assert found.tolist() == expected
    assert row_groups(Subset(plain, rows)) is None
    assert row_groups(STREAM) is None


def test_rows_read_like_another_part_keep_the_groups_of_their_subset() -> None:
    part = grouped(Subset(transformed.Transformed(build.images(6), dimmed), [4, 1]), ["a", "b"])
    alike = read_alike(part, transformed.Transformed(build.images(6)))
    assert alike is not part
    found = row_groups(alike)
    assert found is not None
    assert found.tolist() == [0, 1]


def test_groups_that_name_no_group_of_every_row_are_one_sentence() -> None:
    for groups, words in (
        ([("ward 1", row) for row in range(7)], r"of the shape \[7, 2\]: .*hospital"),
        ([(1,), (1, 2), 3, 4, 5, 6, 7], r"\(1,\) in row 0: give one number or name a row"),
        (torch.zeros(7, 1), r"of the shape \[7, 1\]: .*reshape\(-1\)"),
        (["a", "b", None, "a", "b", "c", "d"], "None in row 2: name the group of every row"),
        (["a", math.nan, "b", "a", "b", "c", "d"], "nan in row 1: name the group of every row"),
        (torch.tensor([0.0, 0, 0, 1, 1, 1, math.nan]), "nan in row 6"),
        (pd.Series(["a", pd.NA] * 3 + ["b"], dtype="string"), "<NA> in row 1"),
        (dict.fromkeys(range(7), 0), "a dict, {0: 0"),
        ([{"person": 1}] * 7, r"{'person': 1} in row 0: give one number or name a row"),
        ("patient", "a str, 'patient'"),
        ([0, 1, 2], "has 3 entries for 7 rows"),
    ):
        loader = DataLoader(grouped(named(), groups))
        refused((partial(row_groups, loader, "test data"), f"^groups of the test data .*{words}"))


def test_groups_of_one_part_alone_are_refused() -> None:
    plain, known = TensorDataset(X, Y), grouped(TensorDataset(X, Y), list("aabbccd"))
    for train, target, lacks in ((known, plain, "target"), (plain, known, "training data")):
        with pytest.raises(ValueError, match=f"not for the {lacks}: give both data sets"):
            paired_groups(DataLoader(train), Subset(target, range(5)))
    with pytest.raises(ValueError, match="part 1 of the ConcatDataset has none"):
        row_groups(ConcatDataset([known, plain]))
    assert paired_groups(plain, plain) == (None, None)
