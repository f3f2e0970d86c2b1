"""Selections: the weighted mean against a loop, taking rows, and what cannot be selected."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import RandomSubset
from astkit.gating import Policy, RunInfo, Scored, Selection

numbers = st.floats(0.01, 10)


def choose(*index: int, candidates: int = 5, **options: Any) -> Selection:
    return Selection(torch.tensor(index, dtype=torch.int64), candidates=candidates, **options)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(numbers, st.floats(-10, 10)), min_size=1, max_size=20),
    st.none() | numbers,
)
def test_the_mean_and_the_scale_against_a_loop(
    rows: list[tuple[float, float]], normaliser: float | None
) -> None:
    weights = [weight for weight, _ in rows]
    total = sum(weights) if normaliser is None else normaliser
    expected = sum(weight * loss for weight, loss in rows) / total
    weight = torch.tensor(weights, dtype=torch.float64)
    chosen = choose(*range(len(rows)), weight=weight, normaliser=normaliser)
    losses = torch.tensor([loss for _, loss in rows], dtype=torch.float64)
    mean = chosen.mean(losses)
    assert mean.shape == ()
    assert float(mean) == pytest.approx(expected, abs=1e-9)
    assert float(chosen.total) == pytest.approx(total)
    # the scale is for a loss that is divided by its number of rows
    assert float((chosen.scale * losses).sum() / len(rows)) == pytest.approx(expected, abs=1e-9)


def test_the_mean_of_nothing_is_zero_with_zero_gradients() -> None:
    weight = torch.ones(3, requires_grad=True)
    mean = choose().mean((torch.zeros(0, 3) * weight).sum(1))
    mean.backward()
    assert mean.item() == 0
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0] * 3


def test_weights_that_are_all_zero_give_no_nan() -> None:
    """A sentence where a policy gives them, and a loss of zero where a batch of a plan has them."""
    losses = torch.ones(2, requires_grad=True)
    mean = choose(0, 1, weight=torch.zeros(2)).mean(losses)
    mean.backward()
    assert (mean.item(), losses.grad.tolist()) == (0.0, [0.0, 0.0])  # type: ignore[union-attr]

    class Light(Policy):
        weight = torch.zeros(4)

        def plan(self, run: RunInfo) -> Selection:
            return Selection(torch.arange(4), self.weight)

        def choose(self, batch: Scored) -> Selection:
            return Selection(torch.arange(4), self.weight)

    policy, model = Light(), torch.nn.Linear(2, 3)
    refused = r"Light gave 4 rows .* normaliser 0: .*not 0 to all of them"
    with pytest.raises(ValueError, match=refused):
        policy(model, torch.rand(4, 2), torch.zeros(4))
    with pytest.raises(ValueError, match=refused):
        list(policy.sampler(range(4), epochs=1))
    policy.weight = torch.tensor([0.0, 0.0, 1.0, 1.0])
    rows = list(policy.sampler(range(4), epochs=2))
    assert policy.mean(torch.ones(2), torch.tensor(rows[:2])).item() == 0.0


def test_take_picks_the_rows_of_every_tensor() -> None:
    image, label = torch.arange(10.0).reshape(5, 2), torch.arange(5)
    batch = {"pair": (image, [label]), "name": "train", "step": 3}
    taken = choose(3, 1, 3).take(batch)
    assert taken["pair"][0].tolist() == [[6.0, 7.0], [2.0, 3.0], [6.0, 7.0]]
    assert taken["pair"][1][0].tolist() == [3, 1, 3]
    assert (taken["name"], taken["step"]) == ("train", 3)
    assert Selection(torch.tensor([4])).take(label).tolist() == [4]  # candidates unknown
    assert len(choose().take(image)) == 0


def test_a_batch_of_other_rows_or_losses_is_refused() -> None:
    for shape in ((), (4,), (6, 5), (2, 5)):
        for batch in (torch.zeros(shape), {"x": [torch.zeros(5), torch.zeros(shape)]}):
            with pytest.raises(ValueError, match="made from 5 rows: pass the batch that was score"):
                choose(0, 1).take(batch)
    for shape in ((), (1,), (5,), (3, 1), (3, 5)):
        with pytest.raises(ValueError, match=r"but 3 rows were selected: .*reduction='none'"):
            choose(0, 1, 2).mean(torch.zeros(shape))


CHECKED: dict[str, tuple[dict[str, Any], str]] = {
    "float rows": ({"index": torch.ones(2)}, "rows as torch.float32 of shape .* give int64 rows"),
    "a mask": ({"index": torch.ones(5, dtype=torch.bool)}, "rows as torch.bool"),
    "a column": ({"index": torch.zeros(2, 1, dtype=torch.int64)}, r"of shape \[2, 1\]"),
    "row 5": ({"index": torch.tensor([5])}, "selected rows 5 to 5 of 5, .* select from 0 to 4"),
    "row -1": ({"index": torch.tensor([2, -1])}, "selected rows -1 to 2 of 5"),
    "scored": ({"score_only": torch.tensor([9])}, "selected rows 9 to 9 of 5"),
    "weights per token": ({"weight": torch.ones(2, 7)}, r"2 rows weights of shape \[2, 7\]"),
    "one weight": ({"weight": torch.ones(1)}, r"2 rows weights of shape \[1\]"),
    **{
        f"weight {value}": (
            {"weight": torch.tensor([1.0, value]), "normaliser": normaliser},
            "a finite weight of 0 or more",
        )
        for value in (-0.1, math.nan, math.inf)
        for normaliser in (None, 2.0)
    },
    **{
        f"normaliser {value}": ({"normaliser": value}, f"the normaliser {value:g}: .* above 0")
        for value in (0.0, -1.0, math.nan, math.inf)
    },
}


def test_what_cannot_be_selected_is_refused() -> None:
    for options, words in CHECKED.values():
        with pytest.raises(ValueError, match=f"^RandomSubset .*{words}") as caught:
            Selection(**{"index": torch.tensor([0, 4]), **options}).check(5, RandomSubset(0.5))
        assert "\n" not in str(caught.value)
