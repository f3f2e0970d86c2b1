"""Decisions: what they are fitted to, their gains and errors, and which of them is taken."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from astkit.aim.decisions import (
    BOTH,
    FLAT,
    OLD,
    PLAIN,
    TARGET,
    WEIGHTED,
    WEIGHTED_BOTH,
    Decision,
    Judge,
    Judgement,
    answer,
    choose,
    forward_folds,
    gain,
    random_folds,
)
from astkit.aim.proxies import proxy_of
from tests import build
from tests.aim.pairs import sides

FOUR = Decision(times=4)


def test_folds_keep_units_together_and_go_forward() -> None:
    units = np.repeat(np.arange(20), 5)
    judged = []
    for fit, judge in random_folds(units, seed=0):
        assert not set(units[fit]) & set(units[judge])
        assert len(fit) + len(judge) == len(units)
        judged += judge.tolist()
    assert sorted(judged) == list(range(100))
    folds = forward_folds(units)
    assert len(folds) == 3
    for fit, judge in folds:
        assert units[fit].max() + 1 < units[judge].min()  # a unit lies between
    assert np.concatenate([judge for _, judge in folds]).tolist() == list(range(25, 100))


def test_later_rows_of_a_known_group_are_not_judged() -> None:
    """Ten customers buy every day, a new one comes each day: of a later day this one is judged."""
    day, customer = np.repeat(np.arange(20), 11), np.tile(np.arange(11), 20)
    customer[customer == 10] = 10 + np.arange(20)
    target = SimpleNamespace(groups=torch.from_numpy(customer))
    given = SimpleNamespace(judged=torch.from_numpy(day), target=target, forward=True, seed=0)
    folds = Judge(given, None, None).folds  # type: ignore[arg-type]
    assert len(folds) == 3
    for fit, judge in folds:
        assert not set(customer[fit]) & set(customer[judge])
    assert np.concatenate([judge for _, judge in folds]).tolist() == [*range(65, 220, 11)]
    target.groups = torch.from_numpy(customer.clip(max=9))
    assert Judge(given, None, None).folds == []  # type: ignore[arg-type]


# --- what is judged -----------------------------------------------------------------------------


class Recorder:
    """A proxy that keeps what it was asked."""

    name, unit = "a recorder", "points"

    def __init__(self) -> None:
        self.asked: list[tuple[list[float], list[int]]] = []

    def losses(self, weights: Any, judged: Any) -> Any:
        self.asked.append((weights.tolist(), judged.tolist()))
        return np.zeros(len(judged))


def test_a_proxy_is_fitted_as_each_decision_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old rows of a sample stand for several; the rows that shape weights are not judged."""
    monkeypatch.setattr("astkit.aim.sides.OF_TABLES", 60)
    both = sides(torch.randn(120, 2), torch.randn(40, 2))
    assert len(both.sample) == 60
    shaped: list[Tensor] = []

    def weights_of(of_target: Tensor, rows: Tensor) -> Tensor:
        shaped.append(of_target)
        return 1.0 + rows.double()

    recorder = Recorder()
    judge = Judge(both, recorder, weights_of)
    judge.judge([*PLAIN, WEIGHTED, FLAT, WEIGHTED_BOTH])
    weights, judged = recorder.asked[0]
    assert weights == [2.0] * 60 + [0.0] * 40  # the same for all folds
    assert sorted(judged) == list(range(40))
    ratio = 1.0 + both.sample.numpy()
    old = [np.full(60, 2.0)] * 2 + [np.zeros(60), 2 * ratio, 2 * ratio**0.5, 2 * ratio]
    for number, (fit, held) in enumerate(judge.folds):
        assert shaped[number].tolist() == fit.tolist()
        asked = recorder.asked[1 + 6 * number : 7 + 6 * number]
        for (weights, judged), own, times in zip(asked, old, (1, 4, 1, 0, 0, 1), strict=True):
            assert judged == held.tolist()
            assert weights[:60] == pytest.approx(own.tolist())
            assert weights[60:] == (times * np.isin(np.arange(40), fit)).tolist()


@pytest.mark.parametrize("outputs", [1, 3, 6])
def test_weights_that_help_are_taken_and_others_are_not(outputs: int) -> None:
    """Half of the old rows follow another law."""
    (x, y), (z, w) = (
        build.numbers(400, 2, seed=0, flipped=0.5, noise=0.3).tensors,
        build.numbers(200, 2, seed=1, noise=0.3).tensors,
    )
    two = sides(x, z, y.repeat(1, outputs), w.repeat(1, outputs))
    proxy = proxy_of(two)
    assert proxy is not None
    assert proxy.unit == "% of the RMSE"
    judge = Judge(two, proxy, lambda of_target, rows: (rows >= 200).double() + 1e-3)
    found = judge.judge([OLD, WEIGHTED])
    assert found[1].gain > 50
    assert found[1].gain > 10 * found[1].error
    assert choose(found, judge)[0].decision == WEIGHTED

    def useless(of_target: Tensor, rows: Tensor) -> Tensor:
        random = torch.Generator().manual_seed(int(of_target.sum()))
        return torch.rand(len(rows), generator=random, dtype=torch.float64) + 0.5

    y = build.numbers(400, 2, seed=0, noise=0.3).tensors[1]
    alike = sides(x, z, y.repeat(1, outputs), w.repeat(1, outputs))
    proxy = proxy_of(alike)
    assert proxy is not None
    judge = Judge(alike, proxy, useless)
    found = judge.judge([OLD, WEIGHTED])
    assert abs(found[1].gain) < 3 * found[1].error + 2
    assert choose(found, judge)[0].decision == OLD


# --- gains and their errors ---------------------------------------------------------------------


def test_a_gain_is_paired_and_that_of_an_rmse_relative() -> None:
    random = np.random.default_rng(0)
    dense, noise = 100.0 * (random.random(400) < 0.4), random.random(400)
    chosen = np.where(noise < 0.1, 0.0, dense)
    found, error = gain(dense, chosen, "points", np.arange(400))
    assert found == pytest.approx((dense - chosen).mean())
    assert error == pytest.approx((dense - chosen).std(ddof=1) / 20)
    squares = random.random((2, 300)) * [[4.0], [1.0]]
    found, error = gain(*squares, "% of the RMSE", np.arange(300))
    assert found == pytest.approx(100 * (1 - (squares[1].mean() / squares[0].mean()) ** 0.5))
    draws = []
    for _ in range(2000):  # bootstrap
        rows = random.integers(0, 300, 300)
        draws.append(gain(*squares[:, rows], "% of the RMSE", np.arange(300))[0])
    assert error == pytest.approx(np.std(draws), rel=0.1)
    groups = random.permutation(np.arange(400) % 20)  # 20 rows each: the error is that of 20 means
    means = np.array([(dense - chosen)[groups == each].mean() for each in range(20)])
    _, error = gain(dense, chosen, "points", groups)
    assert error == pytest.approx(means.std(ddof=1) / 20**0.5)
    assert gain(dense, chosen, "points", 0 * groups)[1] == np.inf
    # nothing can be gained where no error is left
    assert gain(np.zeros(9), np.zeros(9), "% of the RMSE", np.arange(9)) == (0.0, 0.0)


def judge_of(rows: int, forward: bool = False) -> Judge:
    """One of ``rows`` independent rows, whose losses are given."""
    target = SimpleNamespace(groups=None)
    judged = torch.arange(rows)
    both: Any = SimpleNamespace(judged=judged, forward=forward, seed=0, target=target)
    return Judge(both, Recorder(), None)


def test_of_the_time_to_come_a_gain_varies_as_between_folds() -> None:
    later, rows = judge_of(400, forward=True), judge_of(400)
    vars(rows)["folds"] = later.folds  # the last three quarters
    new = -np.repeat([0.0, 0.0, 10.0, 20.0], 100)
    value, error = later.gain(np.zeros(400), new)
    assert value == pytest.approx(10)
    assert error == pytest.approx(10 * (1 + 1 / 3) ** 0.5)
    assert rows.gain(np.zeros(400), new)[1] == pytest.approx(10 / 3**0.5)
    turns = np.arange(400) % 2.0  # neighbours are not alike: each row is one of its own
    once = rows.gain(np.zeros(400), turns, [0, 1])
    assert later.gain(np.zeros(400), turns, [0, 1]) == once
    assert once[1] == pytest.approx(0.5 / 200**0.5, rel=0.01)


# --- which is taken -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gains", "decision"),
    [
        ([0.1, 0.2, -1.0], BOTH),  # nothing is sure
        ([-0.3, 0.2, -1.0], BOTH),  # nor that both loses
        ([-9.0, -8.0, -9.0], OLD),
        ([5.0, 20.0, 1.0], FOUR),
        ([19.9, 20.0, 1.0], BOTH),  # the simpler of two that are alike
    ],
)
def test_the_simplest_of_the_best_is_chosen(gains: list[float], decision: Decision) -> None:
    draw = np.random.default_rng(0)
    old, judge = 100 + draw.normal(size=400), judge_of(400)
    found = [Judgement(OLD, old)]
    for each, value in zip((BOTH, FOUR, TARGET), gains, strict=True):
        losses = old - value + 10 * draw.normal(size=400)
        found.append(Judgement(each, losses, *judge.gain(old, losses)))
    chosen, quoted = choose(found, judge)
    assert chosen.decision == quoted.decision == decision


def test_the_quoted_gain_was_chosen_on_other_folds() -> None:
    """Of many useless decisions the best looks good only where it was chosen."""
    draw = np.random.default_rng(1)
    quoted = []
    for _ in range(40):
        old, judge = 100 + draw.normal(size=200), judge_of(200)
        found = [Judgement(OLD, old)]
        for each in (BOTH, FOUR, TARGET, WEIGHTED, WEIGHTED_BOTH):
            losses = old - 10 * draw.normal(size=200)
            found.append(Judgement(each, losses, *judge.gain(old, losses)))
        quoted.append(choose(found, judge)[1].decision in (OLD, BOTH))
    assert sum(quoted) >= 38  # expected without other folds: about 30


NOTHING = np.zeros(0)


@pytest.mark.parametrize(
    ("decision", "unit", "ends", "said"),
    [
        (TARGET, "points", (9.04, 0.75), "the target's rows alone: accuracy 9.0 points higher"),
        (FOUR, "% of the RMSE", (12.4, 1.0), "both, target rows four times: RMSE 12 % lower [10"),
        (WEIGHTED, "bits a token", (0.363, 0.01), "weighted by the target: 0.36 bits a token less"),
        (BOTH, "points", (0.4, 0.9), "both, whose gain cannot be told yet [-1.4, 2.2] points, so"),
        (OLD, "points", (0.0, 0.0), "the old rows: nothing else is better, so"),
        (OLD, "points", (0.0, 0.0), "the old rows: no gain of weights can be told [-1.4, 2.2] po"),
    ],
)
def test_an_answer_is_one_sentence(
    decision: Decision, unit: str, ends: tuple[float, float], said: str
) -> None:
    quoted = Judgement(decision, NOTHING, *ends)
    last = WEIGHTED if "of weights" in said else TARGET
    found = [Judgement(OLD, NOTHING), quoted, Judgement(last, NOTHING, 0.4, 0.9)]
    sentence = answer(quoted, found, unit, "so")
    assert sentence.startswith("forecast: train on ")
    assert said in sentence
    assert sentence.endswith(", so")
