"""Batches of any structure: rows, nesting, how a model is called, and joining parts again."""

import dataclasses
from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from astkit.datasets.batch import (
    Args,
    Batch,
    as_batch,
    call,
    count_rows,
    join,
    map_tensors,
    take_rows,
)
from tests.build import refused

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)
ROWS = torch.tensor([3, 1, 3])


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


@dataclasses.dataclass
class Graph:
    nodes: Tensor
    name: str


pytree.register_dataclass(Graph)


class Output:
    """What a model may return that torch knows nothing of."""

    def __init__(self, logits: Tensor, loss: Tensor) -> None:
        self.logits, self.loss = logits, loss


def test_what_a_loader_yields_becomes_index_inputs_and_targets() -> None:
    for pair in ((X, Y), [X, Y]):
        batch = as_batch(pair)
        assert (batch.index, batch.x is X, batch.y is Y, batch.rows) == (None, True, True, 5)
    longer = as_batch((X, Y, Y.float()))
    assert isinstance(longer.x, Args)
    assert (len(longer.x), longer.y.dtype) == (2, torch.float32)
    for whole in (X, {"x": X, "labels": Y}, Pair(X, Y), (X,)):
        batch = as_batch(whole, Y)
        assert batch.y is batch.x
        assert batch.rows == 5
        taken = batch.take(ROWS).to("cpu")
        assert taken.y is taken.x
    nested = as_batch(({"a": X, "b": [X]}, {"labels": Y}), Y)
    assert (nested.rows, nested.index.tolist()) == (5, list(range(5)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 3))
def test_rows_come_in_order_and_as_often_as_named(rows: list[int], extra: int) -> None:
    tensor = torch.arange(7 * 2**extra).reshape(7, *(2,) * extra)
    index = torch.tensor(rows, dtype=torch.int64)
    taken = take_rows({"x": [tensor]}, index, 7)["x"][0]
    assert taken.shape[1:] == tensor.shape[1:]
    assert taken.tolist() == [tensor[row].tolist() for row in rows]
    part = Batch(torch.arange(7), tensor, tensor).take(slice(2, 5))
    assert part.index.tolist() == [2, 3, 4]
    assert part.x.equal(tensor[2:5])


def test_taking_rows_keeps_the_structure_and_the_argument() -> None:
    names = ["a", "b", "c", "d", "e"]
    marker = object()
    batch = {
        "pair": Pair(X, Y),
        "list": [X, (Y, marker)],
        "names": names,
        "scale": torch.tensor(2.0),
        "vocabulary": torch.zeros(9),
        "graph": Graph(X, "g"),
        "nothing": None,
    }
    taken = take_rows(batch, ROWS, 5)
    assert isinstance(taken["pair"], Pair)
    assert taken["pair"].label.tolist() == [3, 1, 3]
    assert taken["list"][1][0].tolist() == [3, 1, 3]
    assert taken["list"][1][1] is marker
    assert taken["names"] == ["d", "b", "d"]
    assert take_rows(names, slice(1, 3), 5) == ["b", "c"]
    assert taken["scale"] is batch["scale"]  # no rows, or another number of them: of the batch
    assert taken["vocabulary"] is batch["vocabulary"]
    assert isinstance(taken["graph"], Graph)
    assert taken["graph"].name == "g"
    assert taken["graph"].nodes.equal(X[ROWS])
    assert taken["nothing"] is None
    taken["pair"].label.zero_()
    assert Y.tolist() == list(range(5))
    for mapping in (OrderedDict, MappingProxyType):
        assert take_rows(mapping({"x": X}), ROWS, 5)["x"].equal(X[ROWS])
    doubled = map_tensors(lambda tensor: 2 * tensor, batch)
    assert (doubled["pair"].label.tolist(), doubled["names"]) == ([0, 2, 4, 6, 8], names)


def test_entries_of_rows_are_taken_with_their_rows() -> None:
    boxes = [torch.full((length, 2), float(row)) for row, length in enumerate((3, 0, 5, 1, 2))]
    targets = [{"boxes": each, "class": torch.tensor(row)} for row, each in enumerate(boxes)]
    for rows in (ROWS, slice(1, 4)):
        expected = ROWS.tolist() if isinstance(rows, Tensor) else [1, 2, 3]
        taken = take_rows(Args([X, boxes, tuple(targets)]), rows, 5)
        assert taken[0].equal(X[rows])
        assert all(taken[1][i] is boxes[row] for i, row in enumerate(expected))
        assert all(taken[2][i] is targets[row] for i, row in enumerate(expected))
    spans: list[Any] = [[1], [], [2, 3], [4], []]
    for held in (spans, [None, "a", "b", None, "c"], [{"row": letter} for letter in "abcde"]):
        assert take_rows({"held": held}, ROWS, 5)["held"] == [held[i] for i in ROWS.tolist()]
    columns = [list("abcde")] * 5
    assert take_rows(columns, ROWS, 5) == [["d", "b", "d"]] * 5
    fields = [X[:2], {"y": Y[:2]}]  # as many as rows
    assert take_rows(fields, slice(1), 2)[0].equal(X[:1])
    assert take_rows(fields, slice(1), 2)[1]["y"].equal(Y[:1])


def test_what_is_no_batch_is_refused_in_one_sentence() -> None:
    refused(
        (lambda: count_rows({"id": 3}), r"dict without a tensor of shape \[rows, \.\.\.\]"),
        (lambda: count_rows(torch.tensor(3.0)), "contains Tensor without a tensor"),
        (lambda: as_batch([]).rows, "contains list without a tensor"),
        (lambda: as_batch((X, "a")), "contains str without a tensor"),
        (lambda: as_batch((X, Y[:4])), "inputs of 5 rows with targets of 4: give each row one"),
    )


class Named(nn.Module):
    def forward(self, x: Tensor, mask: Any = None) -> Any:
        return x, mask


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self._orig_mod(*args, **keywords)


def needs(batch: Any, x: Any = None) -> Any:
    return batch, x


def test_a_mapping_goes_in_as_keywords_where_forward_names_its_keys() -> None:
    batch = {"x": X, "labels": Y}
    assert call(Named(), batch, batch) == (X, None)
    assert call(Named(), {**batch, "mask": 3}, None) is not None  # no whole batch: one argument
    masked = {**batch, "mask": Y}
    assert call(Named(), masked, masked) == (X, Y)
    assert call(lambda **parts: parts, batch, batch) == batch
    assert call(lambda batch: batch, batch, batch) is batch
    assert call(needs, batch, batch) == (batch, None)  # by keywords it would lack an argument
    assert call(Wrapped(Named()), masked, masked) == (X, Y)
    assert call(nn.DataParallel(Named()), masked, masked) == (X, Y)
    assert call(lambda x, mask=None: (x, mask), masked, masked) == (X, Y)


def test_everything_else_is_one_argument_or_several() -> None:
    for x, y in (((X, Y), Y), ({"x": X}, Y), (X, None)):
        assert call(lambda batch: batch, x, y) is x
    assert call(needs, Args((X, Y)), Y) == (X, Y)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: x,
        lambda x, y: (x, [y]),
        lambda x, y: {"logits": x, "hidden": (x, y)},
        lambda x, y: OrderedDict(logits=x),
        Pair,
        Output,
    ],
)
def test_parts_joined_are_the_whole(make: Any) -> None:
    whole = make(X, Y)
    joined = join([make(X[:2], Y[:2]), make(X[2:3], Y[2:3]), make(X[3:], Y[3:])])
    assert type(joined) is type(whole)
    values = [vars(each) if isinstance(each, Output) else each for each in (whole, joined)]
    leaves = [pytree.tree_leaves(each) for each in values]
    assert all(one.equal(two) for one, two in zip(*leaves, strict=True))


def test_joining_numbers_and_nothing() -> None:
    assert join([torch.tensor(1.0), torch.tensor(3.0)]) == 2.0  # a loss of each part
    assert join([None, None]) is None
    assert join([{"a": X[:1], "cache": None, "n": 3}] * 2)["cache"] is None
    assert join([X]) is X
