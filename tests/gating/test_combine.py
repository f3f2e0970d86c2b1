"""Weighted sums of scores: the grammar, the arithmetic against plain Python, and the passing on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from astkit.gating import (
    ContextScore,
    Gate,
    Loss,
    LossAndContrast,
    RelativeScore,
    Scored,
    WeightedSum,
    named_score,
)
from astkit.gating.scores import contrast
from astkit.names import REGISTRIES

TERMS = sorted(n for n in REGISTRIES["score"] if not isinstance(named_score(n), RelativeScore))


def make_batch(seed: int, rows: int = 8, kind: torch.dtype = torch.float64) -> Scored:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, 2, 2, generator=random, dtype=kind)
    x = x * torch.rand(rows, 1, 1, 1, generator=random, dtype=kind)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).to(kind)
    targets = torch.randint(5, (rows,), generator=random)
    return Scored(model(x).detach(), targets, x, torch.randperm(rows, generator=random), model)


def parts(batch: Scored) -> tuple[Any, Any, Any]:
    return batch.outputs, batch.targets, batch.inputs


def changed(batch: Scored, **other: Any) -> Scored:
    given = {name: getattr(batch, name) for name in ("outputs", "targets", "inputs")}
    return Scored(*{**given, **other}.values(), batch.index, batch.model)


def plain_sum(terms: list[tuple[float, str]], batch: Scored) -> list[float]:
    """``sum(weight * score / mean)`` in Python numbers, from fresh scores of each name."""
    total = [0.0] * len(batch.targets)
    for weight, name in terms:
        score = named_score(name)
        found = score.score(batch) if isinstance(score, ContextScore) else score(*parts(batch))
        mean = sum(found.tolist()) / len(found)
        for row, value in enumerate(found.tolist()):
            total[row] += weight * value / mean if mean else 0.0
    return total


weights = st.floats(0, 100).map(lambda weight: round(weight, 3))
terms = st.lists(st.tuples(weights, st.sampled_from(TERMS)), min_size=1, max_size=5)
spaces = st.sampled_from(["", " ", "  ", "\t"])


# --- arithmetic ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(terms.filter(lambda found: any(w for w, _ in found)), st.integers(0, 2**31), st.data())
def test_a_sum_by_name_equals_plain_arithmetic(
    found: list[tuple[float, str]], seed: int, data: st.DataObject
) -> None:
    batch = make_batch(seed, rows=data.draw(st.integers(1, 9)))
    gap = data.draw(spaces)
    text = f"{gap}+{gap}".join(f"{weight:f}{gap}*{gap}{name}" for weight, name in found)
    score = named_score(gap + text + gap)
    assert score.score(batch).tolist() == pytest.approx(plain_sum(found, batch), abs=1e-6)


def test_the_sum_worked_out_by_hand() -> None:
    # losses 1, 2, 9 (mean 4); contrasts sqrt(2) times 1, 2, 0 (mean sqrt(2))
    gate = Gate(score="0.7*loss + 0.3*contrast", criterion=lambda outputs, targets: outputs[:, 0])
    outputs = torch.tensor([[1.0], [2.0], [9.0]], dtype=torch.float64)
    inputs = torch.tensor([[1.0, -1.0], [2.0, -2.0], [7.0, 7.0]], dtype=torch.float64)
    scores = gate.significance(outputs, torch.zeros(3), inputs)
    expected = [0.7 / 4 + 0.3, 0.7 / 2 + 0.6, 0.7 * 9 / 4]  # nothing is clamped
    assert scores.tolist() == pytest.approx(expected, abs=1e-12)


def test_ways_to_write_the_same_sum() -> None:
    batch = make_batch(0)
    for text, same in (
        ("loss+contrast", "1*loss + 1*contrast"),
        ("  2*loss+ .5 *contrast", "2.0*loss + 0.50*contrast"),
        ("2.*loss + contrast", "contrast + 2*loss"),
        ("loss + 0*contrast", "1*loss"),
        ("loss + loss", "2*loss"),
    ):
        torch.testing.assert_close(named_score(text).score(batch), named_score(same).score(batch))


def test_a_single_name_is_that_score_and_no_sum() -> None:
    assert isinstance(named_score("loss"), Loss)
    assert isinstance(named_score("loss_and_contrast"), LossAndContrast)  # clamped, as the origin's
    assert isinstance(named_score("1*loss"), WeightedSum)
    squared = nn.MSELoss(reduction="none")
    assert named_score("loss", squared).criterion is squared
    assert named_score("loss + contrast", squared).terms[0][1].criterion is squared


def test_a_term_that_is_0_everywhere_adds_nothing() -> None:
    batch = make_batch(2)
    flat = changed(batch, inputs=torch.ones_like(batch.inputs))
    both, alone = named_score("loss + 5*contrast"), named_score("1*loss")
    assert both.score(flat).equal(alone.score(flat))


def test_a_row_that_is_not_finite_does_not_touch_the_scores_of_the_others() -> None:
    batch, score = make_batch(3), named_score("0.7*loss + 0.3*contrast")
    keep = torch.arange(8) != 5
    expected = score(*(part[keep] for part in parts(batch)))
    for bad in (math.nan, math.inf, -math.inf):
        for broken in ("outputs", "inputs"):
            spoiled = getattr(batch, broken).clone()
            spoiled[5] = bad
            scores = score.score(changed(batch, **{broken: spoiled}))
            assert scores[keep].equal(expected)
            assert not math.isfinite(scores[5])
    nothing = score.score(changed(batch, outputs=batch.outputs * math.nan))
    assert not bool(nothing.isfinite().any())


def test_a_row_above_a_running_mean_of_0_counts_as_average() -> None:
    score = WeightedSum([(2, Loss()), (3, contrast)])
    features = torch.tensor([[4.0, 5.0], [4.0, 0.0], [0.0, 5.0]])
    assert score.combine(features, torch.tensor([0.0, 10.0])).tolist() == [3.5, 2.0, 1.5]


def test_terms_of_different_number_types_go_together() -> None:
    def whole(outputs: Tensor, targets: Tensor, inputs: Any) -> Tensor:
        return targets + 1

    def half(outputs: Tensor, targets: Tensor, inputs: Any) -> Tensor:
        return (targets + 1).bfloat16()

    batch = make_batch(4)
    expected = WeightedSum([(1, Loss()), (2, whole)]).score(batch)
    torch.testing.assert_close(WeightedSum([(1, Loss()), (2, half)]).score(batch), expected)
    mean = float((batch.targets + 1).double().mean())
    losses = Loss()(*parts(batch))
    torch.testing.assert_close(expected, losses / losses.mean() + 2 * (batch.targets + 1) / mean)


# --- what is passed on -----------------------------------------------------------------------


class Listening(ContextScore):
    """The loss; remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[Scored] = []

    def score(self, batch: Scored) -> Tensor:
        self.seen.append(batch)
        return Loss()(*parts(batch))

    def state_dict(self) -> dict[str, Any]:
        return {"calls": len(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["calls"]


def test_index_model_and_state_reach_the_terms() -> None:
    terms = [Listening(), Listening(), Listening()]
    score = WeightedSum([(1, terms[0]), (0, terms[1]), (1, contrast), (2, terms[2])])
    gate, batch = Gate(0.5, score, "top_k"), make_batch(5)
    gate(batch.model, batch.inputs, batch.targets, batch.index)
    for listening in (terms[0], terms[2]):
        assert listening.seen[0].index is batch.index
        assert listening.seen[0].model is batch.model
    assert terms[1].seen == []  # weight 0: left out
    resumed = [Listening(), Listening()]
    state = gate.state_dict()
    assert state["score"] == {"terms": [{"calls": 1}, {"calls": 1}]}
    other = Gate(0.5, WeightedSum([(1, resumed[0]), (1, contrast), (2, resumed[1])]), "top_k")
    other.load_state_dict(state)
    assert [listening.loaded for listening in resumed] == [1, 1]


def test_a_score_without_a_memory_saves_nothing() -> None:
    assert "score" not in Gate(score="loss + contrast").state_dict()


# --- what may be written ---------------------------------------------------------------------

NO_SUMS = ["loss +", "+", "*", "0.7*", "*loss", "loss*0.7", "0.7**loss", "0.7*0.3*loss"]
NO_SUMS += ["0.7 loss + contrast", "1e3*loss", "1,5*loss", ".*loss", "inf*loss", "٣*loss"]
NO_SUMS += ["2*(loss + contrast)", "-0.7*loss + contrast", "loss - contrast", "1e-3*loss"]
REFUSED = {
    **dict.fromkeys([*NO_SUMS, "loss + Loss"], "is not a weighted sum: join terms such as 0.7"),
    "0.7*loss + 0.3*lose": "unknown score 'lose': choose one of confidence",
    "0*loss + 0.0*contrast": r"weights \[0\.0, 0\.0\]: give numbers of 0 or more, at least one",
    "loss + loss_and_contrast": "LossAndContrast compares a row with its batch already",
    "1*loss_contrast_constant": "LossContrastConstant compares a row with its batch",
    **{
        text: f"^unknown score {text!r}: choose one of confidence"
        for text in ("", "lose", "loss ", "loss contrast", "loss, contrast")  # no sum
    },
}


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    for text, sentence in REFUSED.items():
        with pytest.raises(ValueError, match=sentence) as caught:
            Gate(score=text)
        assert "\n" not in str(caught.value)
    for weights in ([-1.0, 1.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], []):
        with pytest.raises(ValueError, match=r"got the weights \[.*\]: give numbers of 0 or more"):
            WeightedSum(list(zip(weights, (Loss(), contrast), strict=False)))


def test_a_term_that_turns_negative_is_named() -> None:
    def signed(outputs: Tensor, targets: Tensor, inputs: Any) -> Tensor:
        return torch.tensor([1.0, -0.25, math.nan, 3.0])

    batch = make_batch(0, rows=4)
    with pytest.raises(ValueError, match=r"signed gave -0\.25, but .* no term may be negative"):
        WeightedSum([(1, Loss()), (0.1, signed)]).score(batch)
    likelihood = Gate(score="loss + contrast", criterion=lambda outputs, targets: outputs[:, 0])
    with pytest.raises(ValueError, match=r"Loss gave -.*use a score and a criterion that are"):
        likelihood.significance(*parts(batch))
