"""Whether old rows differ from a target, and their ratio, against literal references."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from astkit.aim import differ
from astkit.aim.forecast import least_fit
from astkit.aim.sides import Sides
from astkit.datasets.dependence import Array
from astkit.datasets.table import Table
from tests import build
from tests.aim.pairs import labelled, sides, sides_of_data
from tests.aim.test_sides import again, rows_of


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("images", 0.95, 1.05), ("tokens", 1e-9, 1.05), ("table", 0, 0)]
)
def test_the_least_price_of_a_fit_is_near_the_price(kind: str, low: float, high: float) -> None:
    """Known before the fit; trees are timed."""
    random = torch.Generator().manual_seed(0)
    both = sides_of_data(rows_of(kind, 900, random), rows_of(kind, 240, random))
    least = least_fit(both)
    differ.Classifier(both, torch.arange(660), torch.arange(240), torch.ones(900), None)
    assert low * both.flops <= least <= high * both.flops


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
        assert differ.auc(scores.astype(int), kinds, weights) == pytest.approx(won / whole)


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
        tested = differ.permutation_test(
            scores_of + noise, kinds[unit], weights, strata, blocks, np.random.default_rng(2)
        )
        found.append(tested.p)
    return found


def test_a_test_without_a_difference_gives_uniform_p_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(differ, "DRAWS", 200)
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
    assert differ.class_factor(train, target).tolist() == pytest.approx(expected)


def test_groups_that_have_one_class_each_are_few_draws() -> None:
    random = np.random.default_rng(0)
    together, apart = [], []
    for _ in range(40):
        labels = (torch.from_numpy(random.integers(0, 3, 10)).repeat_interleave(20) for _ in "ab")
        train, target = labels
        together.append(differ.class_test(labelled(train, target, 10)))
        mixed = (each[torch.from_numpy(random.permutation(200))] for each in (train, target))
        apart.append(differ.class_test(labelled(*mixed)))
    assert sum(p < 0.1 for p in together) <= 10  # expected: 4
    assert sum(p < 0.1 for p in apart) > 30
    other = labelled((torch.arange(200) < 20).long(), torch.ones(200).long(), 10)
    assert differ.class_test(other) < 0.001


def test_other_class_shares_are_found_and_equal_ones_are_not() -> None:
    even, tail = torch.arange(400) % 4, (torch.arange(400) % 10 - 5).clamp_min(0)
    assert differ.class_test(labelled(tail, even)) < 0.001
    assert differ.class_test(labelled(even, even)) == 1.0
    rare = even.clone()
    rare[:12] = 0  # as chance does: 106 or so of 400 instead of 100
    assert differ.class_test(labelled(even, rare)) > 0.1


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
        expected = min(1.0, max(differ.LOWEST, best[1]))
        assert differ.target_share(scores, target, weights) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_share_and_the_ratio_of_a_mixture_are_found(share: float) -> None:
    random = np.random.default_rng(0)
    n, m = 20_000, 2000
    like = random.random(n) < share
    scores = np.where(like, random.beta(5, 2, n), random.beta(2, 5, n))
    target = random.beta(5, 2, m)
    weights = np.where(like, 1.0, 0.5)
    share *= n / weights.sum()
    assert differ.target_share(scores, target, weights) == pytest.approx(share, abs=0.06)
    found = differ.calibrate(scores, target, weights)
    densities = 30 * scores**4 * (1 - scores), 30 * scores * (1 - scores) ** 4
    true = densities[0] / (share * densities[0] + (1 - share) * densities[1])
    assert np.abs(found - true).mean() < 0.15  # the floor is 0.01 of 1 / share
    assert np.average(found, weights=weights) == pytest.approx(1, abs=0.05)
    assert found.min() >= differ.FLOOR * found.max() * (1 - 1e-12)


def test_another_law_with_the_same_inputs_is_found() -> None:
    """The classifier sees how far each target is from what either kind expects."""
    (x, y), (z, w) = (build.numbers(n, 3, seed=n, noise=0.0).tensors for n in (600, 200))
    whole = torch.ones(600, dtype=torch.float64)
    assert differ.input_test(sides(x, z, y, w), whole).p > 0.01
    found = differ.input_test(sides(x, z, -y, w), whole)
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
    both = sides(x, target, y, y[:150])
    weights_of, _ = differ.find_shift(both)
    assert weights_of is not None
    assert torch.isfinite(weights_of(both.everything, torch.arange(400))).all()


@pytest.mark.parametrize("kind", ["table", "items", "images", "tokens", "texts"])
@pytest.mark.parametrize("apart", [False, True])
def test_rows_of_equal_inputs_are_no_difference(
    kind: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each row four copies, of which some would be fitted and others judged."""
    if apart:  # in blocks of neighbours
        monkeypatch.setattr(Sides, "_autocorrelation_time", lambda self, inputs=True: 2.0)
    random = torch.Generator().manual_seed(1)
    data, target = rows_of(kind, 300, random), rows_of(kind, 240, random)
    four = torch.arange(300).repeat(4)[torch.randperm(1200, generator=random)]
    parts = again(data, four), target
    for old, new in (parts, parts[::-1]):
        both = sides_of_data(old, new, in_order=None if apart else False)
        whole = torch.ones(len(both.old), dtype=torch.float64)
        assert differ.input_test(both, whole).p > 0.01


def test_equal_inputs_do_not_hide_a_difference() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=random).repeat(4, 1)
    moved = torch.randn(240, 4, generator=random) + torch.tensor([1.0, 0, 0, 0])
    whole = torch.ones(1200, dtype=torch.float64)
    assert differ.input_test(sides(x, moved), whole).p < 0.003
    assert differ.input_test(sides((x > 0).float(), (moved > 0).float()), whole).p < 0.003


def test_equal_inputs_do_not_make_class_shares_differ() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (560,), generator=random)
    x = torch.randn(560, 3, generator=random)
    few = torch.arange(60).repeat(20)
    made = sides(x[few], x[60:], labels[few], labels[60:])
    assert differ.class_test(made) > 0.01


@pytest.mark.parametrize("shift", [0, 10**12])
def test_a_class_of_one_old_row_that_is_not_fitted_and_huge_labels_are_weighed(
    shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astkit.aim.sides.OF_TABLES", 100)
    labels = torch.arange(400) % 3
    labels[7] = 3
    data: Any = TensorDataset(torch.randn(400, 4), labels + shift)
    target: Any = TensorDataset(torch.randn(120, 4), torch.full((120,), 3 + shift))
    for each in (data, target):
        each.targets = each.tensors[1]  # labels, however large
    both = sides_of_data(data, target)
    assert both.labels is not None
    assert 7 not in both.sample
    factor = differ.class_factor(*both.labels)
    assert factor[7] == 400
    assert factor.sum() == pytest.approx(400 + 3 * 400 * 0.5 / 120)  # half a row a class
    found = differ.input_ratio(both, factor, None, torch.arange(120), torch.arange(400))
    assert torch.isfinite(found).all()


def test_targets_count_only_where_both_have_them() -> None:
    x, held = torch.randn(120, 3), torch.randn(60, 3)
    for old, target in (((x,), (held, held[:, :1])), ((x, x[:, :1]), (held,))):
        both = sides_of_data(TensorDataset(*old), TensorDataset(*target))
        assert differ.input_test(both, torch.ones(120).double()).p > 0.001


# --- columns that give the side away -----------------------------------------------------------


def test_columns_that_tell_every_row_shape_no_weights() -> None:
    """A date, and whatever tells nearly all rows; of arrays as of tables."""
    old, target = build.table(400, 0), build.table(240, 1, shift=0.5)
    old["number"], target["number"] = np.arange(400.0), np.arange(400.0, 640.0)
    days = np.datetime64("2020-01-01") + np.arange(30)
    old["day"], target["day"] = np.resize(days, 400), np.resize(days, 240)
    table = Table(old, "y")
    both = sides_of_data(table, Table(target, like=table))
    kept = differ.compared_columns(both)
    assert kept is not None
    left_out = {name for name, own in zip(table.names, kept, strict=True) if not own}
    assert {name.split()[0] for name in left_out} == {"number", "day"}
    columns = [torch.tensor(part[["size", "number"]].to_numpy("float32")) for part in (old, target)]
    arrays = differ.compared_columns(sides(*columns))
    assert arrays is not None
    assert arrays.tolist() == [True, False]
    assert differ.compared_columns(sides(*(part[:, 1:] for part in columns))) is None  # no other
    assert differ.compared_columns(sides_of_data(["a b"] * 9, ["b c"] * 9)) is None
