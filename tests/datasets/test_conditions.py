"""Conditions of the data: sizes and shares by hand, what the oracle draws, refusals."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from astkit.datasets import Images
from astkit.datasets.conditions import (
    Condition,
    class_shares,
    condition,
    friedman_table,
    mislabelled,
    tail,
)
from astkit.names import REGISTRIES

OF_IMAGES = ("clean", "wrong_labels", "long_tail")
LABELS = torch.arange(1500) % 10


def numbered(labels: Tensor = LABELS) -> Images:
    """Images of 4x4 pixels whose left half says which row they are."""
    rows = torch.arange(len(labels))
    halves = torch.stack([rows // 256, rows % 256], 1).to(torch.uint8)
    pixels = halves[:, :, None, None].repeat_interleave(4, 2).repeat_interleave(4, 3)
    return Images(pixels, labels, tuple(map(str, range(10))), "numbered")


def row_of(data: Images) -> Tensor:
    return data.images[:, 0, 0, 0].long() * 256 + data.images[:, 1, 0, 0]


def made(name: str, seed: int = 3, target: int = 100, **options: Any) -> Condition:
    if name == "long_tail":
        options = {"factor": 20, **options}
    if name == "drift":
        return condition(name, seed=seed, target=target, **options)
    return condition(
        name, numbered(), numbered(torch.arange(50) % 10), seed, target=target, **options
    )


@pytest.mark.parametrize("name", OF_IMAGES)
def test_rows_are_fixed_by_the_seed_and_the_target_is_right_rows_apart(name: str) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (made(name, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    for part in ("rows", "labels", "true_labels", "wrong"):
        assert torch.equal(getattr(one, part), getattr(same, part))
    assert not torch.equal(one.rows, other.rows)
    assert torch.equal(row_of(one.train), one.rows)
    assert torch.equal(one.true_labels, LABELS[one.rows])
    held = row_of(one.validation)
    assert torch.equal(one.validation.labels, LABELS[held])
    assert not set(held.tolist()) & set(one.rows.tolist())
    assert one.validation.labels.bincount().tolist() == [10] * 10
    whole = made(name, target=0)
    assert whole.validation is None
    assert len(whole.train) >= len(one.train)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_oracle_draws_each_right_row_in_the_tests_shares(name: str) -> None:
    one = made(name)
    if name == "clean":
        assert one.oracle is None
        return
    weights = one.oracle
    assert weights.mean() == pytest.approx(1)
    assert torch.equal(weights > 0, ~one.wrong)
    mass = torch.zeros(10).double().index_add_(0, one.labels, weights) / len(weights)
    if name == "long_tail":
        assert mass.tolist() == pytest.approx(class_shares(one.test).tolist())
    else:
        assert len(weights.unique()) == 2


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 1.0])
def test_wrong_labels_are_exactly_a_share_and_uniform_over_the_other_classes(share: float) -> None:
    labels = torch.arange(9000) % 10
    changed = mislabelled(labels, share, 0)
    wrong = changed != labels
    assert int(wrong.sum()) == round(share * 9000)
    counts = torch.zeros(10, 10).index_put_(
        (labels[wrong], changed[wrong]), torch.tensor(1.0), accumulate=True
    )
    assert not counts.diagonal().any()
    if share:
        expected = counts.sum() / 90
        chi2 = ((counts - expected) ** 2 / expected).sum() - 10 * expected  # the diagonal is empty
        assert chi2 < 150  # 89 degrees of freedom: exceeded once in 20,000
    assert set(mislabelled(labels % 2 * 5, 0.5, 0).tolist()) == {0, 5}
    assert made("wrong_labels", share=share).wrong.double().mean() == pytest.approx(share, abs=1e-3)


def test_the_published_long_tail_of_cifar10() -> None:
    labels = torch.arange(50_000) % 10
    sizes = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]  # Cui et al. round down
    assert (labels[tail(labels, 100, 0)].bincount() - torch.tensor(sizes)).abs().max() <= 1
    unequal = torch.tensor([0] * 30 + [1] * 200 + [2] * 9)  # class 2 limits the others
    assert unequal[tail(unequal, 4, 0)].bincount().tolist() == [30, 15, 8]


@pytest.mark.parametrize("kind", ["law", "columns", "inputs"])
def test_older_rows_drift(kind: str) -> None:
    one, same, other = (made("drift", seed, kind=kind) for seed in (3, 3, 4))
    assert one.train.tensors[0].equal(same.train.tensors[0])
    assert not one.train.tensors[0].equal(other.train.tensors[0])
    assert [len(part) for part in (one.train, one.validation, one.test)] == [10_000, 100, 4000]
    if kind == "inputs":
        assert one.relevant is one.oracle is None
    else:
        assert one.relevant.equal(torch.arange(10_000) >= 7000)


def test_the_law_of_the_table_is_friedmans_and_its_noise_has_deviation_one() -> None:
    older = torch.arange(4000) < 2000

    def friedman(x: Tensor) -> Tensor:
        terms = [
            10 * math.sin(math.pi * float(r[0] * r[1])) + 20 * float(r[2] - 0.5) ** 2 for r in x
        ]
        return torch.tensor(terms) + 10 * x[:, 3] + 5 * x[:, 4]

    for kind in ("law", "columns", "inputs"):
        x, y = friedman_table(older, kind, torch.Generator().manual_seed(0))
        assert x.shape == (4000, 10)
        noise = y[:, 0] - friedman(x)
        assert noise[~older].std() == pytest.approx(1, abs=0.05)
        if kind == "columns":
            x[:, [2, 3]] = x[:, [3, 2]]
        right = friedman(x.flip(1) if kind == "law" else x)
        assert (y[:, 0] - right)[older].std() == pytest.approx(1, abs=0.05)
        assert (noise[older].std() > 1.5) == (kind != "inputs")
        assert x[~older].mean() == pytest.approx(0.5, abs=0.01)


def test_what_cannot_be_made_is_refused_with_the_remedy() -> None:
    assert {*OF_IMAGES, "drift"} == set(REGISTRIES["condition"])
    data = numbered()
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("noise", data, {}, "unknown condition 'noise': choose one of clean"),
        ("clean", None, {}, "'clean' is made of images: pass train= and test="),
        ("drift", data, {}, "'drift' is not made of images: leave train and test out"),
        ("clean", data, {"target": 1500}, "target is 1500 of 1500 rows: give less"),
        ("clean", data, {"target": -1}, "target is -1: give a whole number of 0 or more"),
        ("drift", None, {"target": -1}, "target is -1: give a whole number of 0 or more"),
        ("clean", data, {"share": 0.1}, "'clean' has no option 'share': choose of none"),
        ("drift", None, {"rows": 9}, "'drift' has no option 'rows': choose of kind, data"),
        ("wrong_labels", numbered(0 * LABELS), {}, "labels are of one class"),
        ("wrong_labels", data, {"share": 1.1}, "share is 1.1: give a share of 0 or more"),
        ("long_tail", data, {"factor": 0.5}, "factor is 0.5: give 1 or more"),
        ("long_tail", data, {"factor": 1e4}, "without a row: give at most 50"),
        ("drift", None, {"kind": "labels"}, "kind is 'labels': give one of law, columns, inputs"),
        ("drift", None, {"data": "text"}, "data is 'text': give table, or a function that"),
    ]
    for name, images, options, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            condition(name, images, **options)
