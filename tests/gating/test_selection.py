"""Selections: means against loops, what is refused; scored batches: computed when read, once."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from astkit import RandomSubset
from astkit.datasets.batch import Batch
from astkit.gating import Policy, RunInfo, Scored, Selection, evaluating
from astkit.gating.selection import check_selection, predictions
from tests.build import refused

numbers = st.floats(0.01, 10)


def choose(*index: int, candidates: int = 5, **options: Any) -> Selection:
    return Selection(torch.tensor(index, dtype=torch.int64), candidates=candidates, **options)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(numbers, st.floats(-10, 10)), min_size=1, max_size=20), st.none() | numbers
)
def test_the_mean_and_the_scale_against_a_loop(rows, normaliser):
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


def test_a_selection_is_one_line() -> None:
    assert repr(Selection(torch.arange(3))) == "Selection(3 rows)"
    chosen = choose(0, 2, candidates=8, rate=0.25, threshold=torch.tensor(1.23456))
    assert repr(chosen) == "Selection(2 of 8 rows, rate 0.25, threshold 1.23)"


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
            refused((partial(choose(0, 1).take, batch), "made from 5 rows: pass the batch"))
    for shape in ((), (1,), (5,), (3, 1), (3, 5)):
        call = partial(choose(0, 1, 2).mean, torch.zeros(shape))
        refused((call, r"but 3 rows were selected: .*reduction='none'"))


CHECKED: dict[str, tuple[dict[str, Any], str]] = {
    "float rows": ({"index": torch.ones(2)}, "rows as torch.float32 of shape .* give int64 rows"),
    "a mask": ({"index": torch.ones(5, dtype=torch.bool)}, "rows as torch.bool"),
    "a column": ({"index": torch.zeros(2, 1, dtype=torch.int64)}, r"of shape \[2, 1\]"),
    "row 5": ({"index": torch.tensor([5])}, "selected rows 5 to 5 of 5, .* select from 0 to 4"),
    "row -1": ({"index": torch.tensor([2, -1])}, "selected rows -1 to 2 of 5"),
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
        chosen = Selection(**{"index": torch.tensor([0, 4]), **options})
        with pytest.raises(ValueError, match=f"^RandomSubset .*{words}") as caught:
            check_selection(chosen, 5, RandomSubset(0.5))
        assert "\n" not in str(caught.value)


X, Y = torch.randn(8, 6), torch.randint(3, (8,))


class Counted(nn.Module):
    """With BatchNorm and dropout; counts its passes, and keeps the modes that they ran in."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.layers, self.passes = nn.Sequential(*layers), []

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append((self.training, torch.is_grad_enabled()))
        return self.layers(x)


def state_of(model: nn.Module) -> list[Any]:
    modes = [module.training for module in model.modules()]
    return [*(value.tolist() for value in model.state_dict().values()), modes]


def test_outputs_are_computed_when_the_batch_is_scored_and_once() -> None:
    model = Counted()
    model.layers[1].eval()  # frozen, and stays so
    batch, before = Scored(None, Y, X, torch.arange(8), model), state_of(model)
    random = torch.get_rng_state()
    assert (batch.rows, batch.evaluated, batch.known_losses, model.passes) == (8, False, None, [])
    for read in (lambda: batch.outputs, lambda: batch.losses):
        with pytest.raises(RuntimeError, match=r"no outputs and losses yet: call batch.score\(\)"):
            read()
    assert model.passes == []  # reading runs nothing
    assert batch.score() is batch
    losses = batch.score().losses
    assert (batch.evaluated, batch.known_losses is losses, len(losses)) == (True, True, 8)
    assert batch.losses is losses
    assert model.passes == [(False, False)]
    assert state_of(model) == before
    assert torch.get_rng_state().equal(random)
    assert losses.equal(F.cross_entropy(batch.outputs, Y, reduction="none"))


def test_predictions_are_those_of_the_likeliest_class() -> None:
    outputs, labels = torch.randn(8, 3), Y.clone()
    labels[2] = -100  # ignored: wrong, with probability 0
    correct, confidence, own, guess = predictions(outputs, labels)
    shares = outputs.softmax(1)
    assert guess.tolist() == outputs.argmax(1).tolist()
    assert correct.tolist() == (outputs.argmax(1) == labels).tolist()
    torch.testing.assert_close(confidence, shares.amax(1))
    expected = [
        float(row[label]) if label >= 0 else 0.0 for row, label in zip(shares, labels, strict=True)
    ]
    assert own.tolist() == pytest.approx(expected)
    for other in ((outputs, torch.randn(8, 3)), (outputs[:, :2], Y > 1), (outputs[:, None], Y)):
        assert predictions(*other) == (None, None, None, None)


def test_one_output_is_the_logit_of_the_second_of_two_classes() -> None:
    logit, labels = torch.randn(8, 1), torch.arange(8) % 2
    both = torch.hstack([torch.zeros(8, 1), logit])
    expected = predictions(both, labels)
    for outputs in (logit, logit[:, 0]):
        for targets in (labels, labels[:, None], labels > 0):
            torch.testing.assert_close(tuple(predictions(outputs, targets)), tuple(expected))


def test_outputs_that_are_known_are_not_computed() -> None:
    outputs = torch.randn(8, 3, requires_grad=True)
    batch = Scored(outputs, Y, X, None, Counted())
    assert batch.outputs is outputs
    assert not batch.losses.requires_grad
    assert (batch.evaluated, batch.model.passes) == (True, [])  # type: ignore[union-attr]
    regression = Scored(outputs, torch.randn(8, 3), X, criterion=nn.MSELoss(reduction="none"))
    torch.testing.assert_close(
        regression.losses, (outputs - regression.targets).square().mean(1).detach()
    )


def test_a_pass_of_ones_own_and_a_selection_of_rows() -> None:
    def run(model: nn.Module, batch: Batch) -> Any:
        assert not torch.is_grad_enabled()
        return {"logits": 2 * batch.x[:, :3]}

    batch = Scored(None, {"labels": Y}, {"x": X}, torch.arange(8) + 10, Counted())
    chosen = batch.select(torch.tensor([5, 0]))
    assert (chosen.candidates, chosen.measured_rate) == (8, 2 / 8)
    assert chosen.weight.tolist() == [1.0, 1.0]
    own = Scored(None, Y, X, None, Counted(), forward=run)
    expected = F.cross_entropy(2 * X[:, :3], Y, reduction="none")
    assert own.score().losses.equal(expected)


def test_a_second_model_is_scored_and_counted() -> None:
    counted: list[tuple[nn.Module, int]] = []
    model, other = Counted(), Counted()
    batch = Scored(
        None, Y, X, None, model, count=lambda model, batch: counted.append((model, batch.rows))
    )
    before = state_of(other)
    assert batch.forward(other).shape == (8, 3)
    assert state_of(other) == before
    assert other.passes == [(False, False)]
    assert counted == [(other, 8)]
    assert (batch.evaluated, model.passes) == (False, [])  # the first model was not looked at


def test_modes_and_generators_come_back_after_an_error() -> None:
    model, random = Counted(), torch.get_rng_state()
    model.layers[1].eval()
    before = state_of(model)

    def fail() -> None:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        torch.rand(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), evaluating(model):
        fail()
    assert state_of(model) == before
    assert torch.get_rng_state().equal(random)


def test_scoring_inside_autocast_leaves_the_gradients_alone() -> None:
    model, gradients = nn.Linear(6, 3), []
    for scores in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            if scores:
                with evaluating(model):
                    model(X)
            F.cross_entropy(model(X), Y).backward()
        assert model.weight.grad is not None
        gradients.append(model.weight.grad.clone())
    assert gradients[0].equal(gradients[1])


def test_a_module_that_does_more_when_its_mode_changes_is_left_alone() -> None:
    class Merging(nn.Linear):
        """Adds to its weights for evaluation, as loralib does, and takes it away for training."""

        def train(self, mode: bool = True) -> Merging:
            with torch.no_grad():
                self.weight += self.training - mode
            return super().train(mode)

    model = nn.Sequential(Merging(6, 3))
    expected, weight = model(X), model[0].weight.clone()
    with evaluating(model):
        assert not model[0].training
        assert model(X).equal(expected)
    assert model[0].weight.equal(weight)
    assert model[0].training
