"""Selections: the weighted mean against a loop, and taking rows out of any nesting."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import Selection
from astkit.gating.selection import everything


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


def choose(*index: int, candidates: int = 5, weight: list[float] | None = None) -> Selection:
    weights = torch.ones(len(index)) if weight is None else torch.tensor(weight)
    return Selection(torch.tensor(index), weights, candidates, len(index) / candidates)


# --- mean ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(-10, 10)), min_size=1, max_size=20))
def test_the_mean_is_weighted(rows: list[tuple[float, float]]) -> None:
    total = weights = 0.0
    for weight, loss in rows:
        total += weight * loss
        weights += weight
    chosen = choose(*range(len(rows)), weight=[weight for weight, _ in rows])
    mean = chosen.mean(torch.tensor([loss for _, loss in rows], dtype=torch.float64))
    assert mean.shape == ()
    assert float(mean) == pytest.approx(total / weights, abs=1e-4)


def test_the_mean_of_nothing_is_zero_with_zero_gradients() -> None:
    weight = torch.ones(3, requires_grad=True)
    mean = choose().mean((torch.zeros(0, 3) * weight).sum(1))
    mean.backward()
    assert mean.item() == 0
    assert torch.equal(weight.grad, torch.zeros(3))


def test_the_mean_by_hand_and_its_gradient() -> None:
    losses = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    mean = choose(4, 0, 2, weight=[1.0, 3.0, 4.0]).mean(losses)
    assert mean.item() == pytest.approx((1 + 6 + 24) / 8)
    mean.backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [1 / 8, 3 / 8, 4 / 8]
    assert choose(4, 0, 2).mean(losses).item() == 3.0  # weight 1 each: the plain mean


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1), (3, 5)])
def test_the_mean_wants_one_loss_a_chosen_row(shape: tuple[int, ...]) -> None:
    sentence = r"but 3 rows were chosen: pass one loss a chosen row.*reduction='none'"
    with pytest.raises(ValueError, match=sentence):
        choose(0, 1, 2).mean(torch.zeros(shape))


# --- take ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 3))
def test_take_picks_rows_in_order_and_as_often_as_named(index: list[int], extra: int) -> None:
    tensor = torch.arange(7 * 2**extra).reshape(7, *(2,) * extra)
    taken = everything_of(index, 7, tensor)
    assert taken.shape[1:] == tensor.shape[1:]
    assert taken.tolist() == [tensor[i].tolist() for i in index]


def everything_of(index: list[int], candidates: int, tensor: Tensor) -> Any:
    return everything(torch.tensor(index, dtype=torch.int64), 0.0, candidates).take(tensor)


def test_take_goes_into_tuples_lists_and_mappings() -> None:
    image, label = torch.arange(10.0).reshape(5, 2), torch.arange(5)
    chosen = choose(3, 1)
    image_rows, label_rows = [[6.0, 7.0], [2.0, 3.0]], [3, 1]

    taken = chosen.take((image, label))
    assert type(taken) is tuple
    assert [part.tolist() for part in taken] == [image_rows, label_rows]

    taken = chosen.take([image, label])
    assert type(taken) is list
    assert [part.tolist() for part in taken] == [image_rows, label_rows]

    taken = chosen.take(Pair(image, label))
    assert type(taken) is Pair
    assert taken.image.tolist() == image_rows
    assert taken.label.tolist() == label_rows

    for mapping in (dict, OrderedDict, MappingProxyType):
        taken = chosen.take(mapping({"text": {"tokens": image}, "pair": Pair(image, label)}))
        assert taken["text"]["tokens"].tolist() == image_rows
        assert taken["pair"].label.tolist() == label_rows


def test_take_passes_everything_else_through() -> None:
    marker = object()
    batch = {"name": "train", "step": 3, "none": None, "marker": marker, "parts": ("a", [2.5])}
    taken = choose(3, 1).take(batch)
    assert taken == batch
    assert taken["marker"] is marker


def test_take_leaves_its_argument_alone() -> None:
    label = torch.arange(5)
    batch = {"label": label, "more": [label]}
    taken = choose(3, 1).take(batch)
    taken["label"].zero_()
    assert batch["label"] is label
    assert label.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shape", [(), (4,), (6, 5), (2, 5)])
def test_take_refuses_a_tensor_of_another_batch(shape: tuple[int, ...]) -> None:
    sentence = r"selection was made from 5 rows: pass the batch that was scored"
    for batch in (torch.zeros(shape), {"x": [torch.zeros(5), torch.zeros(shape)]}):
        with pytest.raises(ValueError, match=sentence):
            choose(0, 1).take(batch)


# --- the rest --------------------------------------------------------------------------------


def test_a_selection_is_as_long_as_its_index_and_cannot_be_changed() -> None:
    chosen = choose(4, 2, 0)
    assert len(chosen) == 3
    assert len(everything_of([], 5, torch.arange(5))) == 0
    with pytest.raises(AttributeError):
        chosen.rate = 0.5  # type: ignore[misc]


def test_everything_weighs_each_row_alike() -> None:
    chosen = everything(torch.tensor([2, 0, 1]))
    assert (chosen.candidates, chosen.rate, chosen.threshold, chosen.fallback) == (
        3,
        1.0,
        None,
        False,
    )
    assert chosen.weight.dtype == torch.float32
    assert chosen.weight.tolist() == [1.0, 1.0, 1.0]
    assert everything(torch.tensor([2, 0]), 0.2, 10).candidates == 10
