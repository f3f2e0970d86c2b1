"""The ratio of two distributions, against literal references and known values."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from astkit.aim import pair as pairing
from astkit.aim import policy as aim
from astkit.aim import ratio
from astkit.aim.features import Rows
from astkit.aim.pair import Pair
from astkit.datasets import Images
from astkit.datasets.dependence import Array
from tests.aim.pairs import labelled, pair


def test_the_auc_is_the_share_of_pairs_in_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(10):
        scores = random.integers(0, 8, 40).astype(float)  # with ties
        kinds, weights = random.random(40) < 0.4, random.random(40)
        won = whole = 0.0
        for i, j in itertools.product(range(40), repeat=2):
            if kinds[i] and not kinds[j]:
                whole += weights[j]
                won += weights[j] * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
        assert ratio.auc(scores.astype(int), kinds, weights) == pytest.approx(won / whole)


def p_values(strata: Array, blocks: Array, scores_of: Array) -> list[float]:
    """P-values of 60 random assignments of kinds to blocks, within strata."""
    found, random = [], np.random.default_rng(1)
    _, first, unit = np.unique(blocks, return_index=True, return_inverse=True)
    for _ in range(60):
        kinds = np.zeros(len(first), bool)
        for stratum in np.unique(strata):
            own = (strata[first] == stratum).nonzero()[0]
            share = 0.7 if stratum else 0.3
            kinds[random.permutation(own)[: round(share * len(own))]] = True
        noise = random.normal(size=len(first))[unit]
        weights = np.where(strata > 0, 3 / 7 / (7 / 3), 1.0)
        tested = ratio.permutation_test(
            scores_of + noise, kinds[unit], weights, strata, blocks, np.random.default_rng(2)
        )
        found.append(tested.p)
    return found


def test_a_test_without_a_difference_gives_uniform_p_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ratio, "DRAWS", 200)
    strata = np.arange(120) % 2
    cases = [
        (strata, np.arange(120), 5.0 * strata),  # the classes differ, and how frequent they are
        (np.zeros(120, int), np.arange(120) // 6, np.zeros(120)),  # rows of a block are alike
    ]
    for case in cases:
        found = p_values(*case)
        for level in (0.1, 0.5, 0.9):
            spread = 4.5 * math.sqrt(level * (1 - level) / len(found))
            assert abs(np.mean(np.array(found) <= level) - level) < spread + 0.01


def test_classes_are_counted() -> None:
    train, target = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 2, 2, 2, 3])
    expected = [0.2 / 0.5] * 3 + [0.1 / (1 / 6)] + [0.6 / (2 / 6)] * 2  # the second may be rare
    assert ratio.class_factor(train, target).tolist() == pytest.approx(expected)


def test_groups_that_have_one_class_each_are_few_draws() -> None:
    random = np.random.default_rng(0)
    together, apart = [], []
    for _ in range(40):
        labels = (torch.from_numpy(random.integers(0, 3, 10)).repeat_interleave(20) for _ in "ab")
        train, target = labels
        together.append(ratio.class_test(labelled(train, target, 10)))
        mixed = (each[torch.from_numpy(random.permutation(200))] for each in (train, target))
        apart.append(ratio.class_test(labelled(*mixed)))
    assert sum(p < 0.1 for p in together) <= 10  # expected: 4
    assert sum(p < 0.1 for p in apart) > 30
    other = labelled(torch.arange(200) // 20 % 2, 2 + torch.arange(200) // 20 % 2, 10)
    assert ratio.class_test(other) < 0.001


def test_other_class_shares_are_found_and_equal_ones_are_not() -> None:
    even, tail = torch.arange(400) % 4, (torch.arange(400) % 10 - 5).clamp_min(0)
    assert ratio.class_test(labelled(tail, even)) < 0.001
    assert ratio.class_test(labelled(even, even)) == 1.0
    rare = even.clone()
    rare[:12] = 0  # as chance does: 106 or so of 400 instead of 100
    assert ratio.class_test(labelled(even, rare)) > 0.1


def test_the_share_of_like_rows_equals_a_literal_reference() -> None:
    random = np.random.default_rng(0)
    for seed in range(5):
        scores, target = random.random(60) ** (1 + seed), random.random(25)
        weights = random.random(60)
        rows = weights.sum() ** 2 / (weights**2).sum()
        error = math.sqrt(math.log(40) / (2 * rows)) + math.sqrt(math.log(40) / (2 * 25))
        best = (math.inf, 0.0)
        for cut in target:
            wanted = np.mean(target >= cut)
            share = weights[scores >= cut].sum() / weights.sum()
            best = min(best, ((share + 1.01 * error) / wanted, share / wanted))
        expected = min(1.0, max(ratio.LOWEST, best[1]))
        assert ratio.target_share(scores, target, weights) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_share_and_the_ratio_of_a_mixture_are_found(share: float) -> None:
    random = np.random.default_rng(0)
    n, m = 20_000, 2000
    like = random.random(n) < share
    scores = np.where(like, random.beta(5, 2, n), random.beta(2, 5, n))
    target = random.beta(5, 2, m)
    assert ratio.target_share(scores, target, np.ones(n)) == pytest.approx(share, abs=0.06)
    found = ratio.calibrate(scores, target, np.ones(n))
    densities = 30 * scores**4 * (1 - scores), 30 * scores * (1 - scores) ** 4
    true = densities[0] / (share * densities[0] + (1 - share) * densities[1])
    assert np.abs(found - true).mean() < 0.15  # the floor is 0.01 of 1 / share
    assert found.mean() == pytest.approx(1, abs=0.05)
    assert found.min() >= ratio.FLOOR * found.max() * (1 - 1e-12)


def test_a_calibrated_ratio_equals_a_literal_one() -> None:
    """Pool adjacent violators, on distinct scores."""
    random = np.random.default_rng(3)
    scores, target, weights = random.random(30), random.random(12) ** 0.5, random.random(30)
    both = [(s, 0.0, w) for s, w in zip(scores, weights, strict=True)]
    both += [(s, 1.0, weights.sum() / 12) for s in target]
    pools: list[list[tuple[float, float, float]]] = []
    for row in sorted(both):
        pools.append([row])
        while len(pools) > 1 and mean(pools[-2]) >= mean(pools[-1]):
            last = pools.pop()
            pools[-1] = pools[-1] + last
    fitted = {score: mean(pool) for pool in pools for score, _, _ in pool}
    most = 1 / ratio.target_share(scores, target, weights)
    odds = [fitted[s] / max(1 - fitted[s], 1e-12) for s in scores]
    expected = [min(most, max(ratio.FLOOR * most, each)) for each in odds]
    assert ratio.calibrate(scores, target, weights).tolist() == pytest.approx(expected)


def mean(pool: list[tuple[float, float, float]]) -> float:
    return sum(value * weight for _, value, weight in pool) / sum(weight for *_, weight in pool)


def test_another_law_with_the_same_inputs_is_found() -> None:
    """The classifier sees how far each target is from what either kind expects."""
    random = torch.Generator().manual_seed(0)
    x, held = torch.randn(600, 3, generator=random), torch.randn(200, 3, generator=random)
    y, y_held = x.sum(1, keepdim=True), held.sum(1, keepdim=True)
    whole = torch.ones(600, dtype=torch.float64)
    assert ratio.input_test(pair(x, held, y, y_held), whole).p > 0.01
    found = ratio.input_test(pair(x, held, -y, y_held), whole)
    assert found.auc > 0.9
    assert found.p < 0.001


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_table_may_hold_few_values_in_a_column_and_infinite_ones(classes: int) -> None:
    """A column without a value, or infinity, in some part to which trees are fitted."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=random)
    y = torch.arange(400) % classes if classes else x.sum(1, keepdim=True)
    x[1:, 1], x[::50, 2] = math.nan, math.inf
    target = x[:150].clone()
    target[:, 0] += 1
    made = pair(x, target, y, y[:150])
    assert len(made.sample) == 400
    found = aim.weigh(made)
    assert "nothing to gain" not in found.forecast.sentence


def rows_of(kind: str, count: int, random: torch.Generator) -> Any:
    """A data set or list of ``count`` random rows of one kind."""
    if kind == "table":
        x = torch.randn(count, 6, generator=random)
        return TensorDataset(x, x[:, :1] + torch.randn(count, 1, generator=random))
    if kind == "images":
        pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=random).to(torch.uint8)
        return Images(pixels, torch.arange(count) % 2, ("a", "b"), "noise")
    if kind == "items":
        return list(torch.randn(count, 6, generator=random))
    words = torch.randint(0, 500, (count, 12), generator=random)
    if kind == "tokens":
        return TensorDataset(words, words)
    return [" ".join(f"w{word}" for word in row) for row in words.tolist()]


def again(data: Any, rows: torch.Tensor) -> Any:
    """The ``rows`` of ``data``, which may repeat."""
    if isinstance(data, TensorDataset):
        return TensorDataset(*data[rows])
    return [data[row] for row in rows.tolist()] if isinstance(data, list) else data.subset(rows)


@pytest.mark.parametrize("kind", ["table", "items", "images", "tokens", "texts"])
def test_copies_of_training_rows_are_no_difference(kind: str) -> None:
    """Of each row four copies, of which some are fitted and others judged."""
    random = torch.Generator().manual_seed(1)
    data, target = rows_of(kind, 300, random), rows_of(kind, 240, random)
    four = torch.arange(300).repeat(4)[torch.randperm(1200, generator=random)]
    whole = torch.ones(1200, dtype=torch.float64)
    made = Pair(Rows(again(data, four)), Rows(target))
    assert ratio.input_test(made, whole).p > 0.01
    assert pairing.units(made.train).bincount().tolist() == [4] * 300
    other = Pair(Rows(target), Rows(again(data, four)))
    assert ratio.input_test(other, whole[:240]).p > 0.01


@pytest.mark.parametrize("kind", ["table", "tokens", "images"])
def test_copies_stay_together_where_neighbours_depend_on_each_other(kind: str) -> None:
    random = torch.Generator().manual_seed(2)
    data, target = rows_of(kind, 300, random), rows_of(kind, 240, random)
    four = torch.arange(300).repeat(4)[torch.randperm(1200, generator=random)]
    made = Pair(Rows(again(data, four)), Rows(target))
    made.__dict__["worth"] = 24.0
    made.train.block = made.target.block = 10
    assert ratio.input_test(made, torch.ones(1200, dtype=torch.float64)).p > 0.01
    own = pairing.units(made.train)
    assert len(own.unique()) > 20
    for row in range(300):
        assert len(own[four == row].unique()) == 1


def test_copies_do_not_hide_a_difference_and_values_that_come_often_are_no_copies() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=random).repeat(4, 1)
    moved = torch.randn(240, 4, generator=random) + torch.tensor([1.0, 0, 0, 0])
    whole = torch.ones(1200, dtype=torch.float64)
    assert ratio.input_test(pair(x, moved), whole).p < 0.003
    made = pair((x > 0).float(), (moved > 0).float())
    assert ratio.input_test(made, whole).p < 0.003
    assert made.train.copies is None


def test_copies_do_not_make_class_shares_differ() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (560,), generator=random)
    x = torch.randn(560, 3, generator=random)
    few = torch.arange(60).repeat(20)
    made = pair(x[few], x[60:], labels[few], labels[60:])
    assert ratio.class_test(made) > 0.01


def test_folds_of_one_row_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio, "CHUNK", 1)
    pair = Pair(Rows(TensorDataset(torch.randn(120, 3))), Rows(TensorDataset(torch.randn(100, 3))))
    one = torch.ones(120, dtype=torch.float64)
    found = ratio.input_ratio(pair, one, torch.arange(100), torch.arange(120))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("shift", [0, 10**12])
def test_a_class_of_one_training_row_and_huge_labels_are_weighed(shift: int) -> None:
    labels = torch.arange(400) % 3
    labels[7] = 3
    data: Any = TensorDataset(torch.randn(400, 4), labels + shift)
    target: Any = TensorDataset(torch.randn(120, 4), torch.full((120,), 3 + shift))
    for each in (data, target):
        each.targets = each.tensors[1]  # labels, however large
    both = Pair(Rows(data), Rows(target), seed=2)
    assert both.labels is not None
    factor = ratio.class_factor(*both.labels)
    assert factor[7] == 400
    assert factor.sum() == pytest.approx(400 + 3 * 400 * 0.5 / 120)  # half a row a class
    found = ratio.input_ratio(both, factor, torch.arange(120), torch.arange(400))
    assert torch.isfinite(found).all()


def test_targets_count_only_where_both_have_them() -> None:
    x, held = torch.randn(120, 3), torch.randn(60, 3)
    for train, target in (((x,), (held, held[:, :1])), ((x, x[:, :1]), (held,))):
        both = Pair(Rows(TensorDataset(*train)), Rows(TensorDataset(*target)))
        assert ratio.input_test(both, torch.ones(120).double()).p > 0.001
