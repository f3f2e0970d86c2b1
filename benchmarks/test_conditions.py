"""Conditions that benches make: sizes and shares by hand, what the oracle draws, refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from astkit.datasets import Images, texts
from astkit.datasets.conditions import class_shares, mislabelled
from benchmarks import builders, conditions
from benchmarks.conditions import NONE, Made, condition

SHARED = Path(
    os.environ.get("ASTKIT_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared/data")
)
OF_IMAGES = tuple(name for name in conditions.MADE if name != "human_labels")
LABELS = torch.arange(1500) % 10


def numbered(labels: Tensor = LABELS, classes: int = 10) -> Images:
    """Images of 4x4 pixels whose left half says which row they are."""
    rows = torch.arange(len(labels))
    halves = torch.stack([rows // 256, rows % 256], 1).to(torch.uint8)
    pixels = halves[:, :, None, None].repeat_interleave(4, 2).repeat_interleave(4, 3)
    return Images(pixels, labels, tuple(map(str, range(classes))), "numbered")


def row_of(data: Images) -> Tensor:
    return data.images[:, 0, 0, 0].long() * 256 + data.images[:, 1, 0, 0]


def made(name: str, seed: int = 3, target: int = 100) -> Made:
    options = {"rows": 200} if name == "small" else {}
    test = numbered(torch.arange(50) % 10)
    found = condition(name, numbered(), test, seed, target=target, **options)
    assert isinstance(found, Made)
    return found


# --- images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_condition_is_fixed_by_its_seed_and_says_where_each_row_is_from(name: str) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (made(name, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    for part in ("rows", "labels", "true_labels", "wrong", "distinct"):
        assert torch.equal(getattr(one, part), getattr(same, part))
    assert not torch.equal(one.rows, other.rows)
    if name != "other_domain":
        assert torch.equal(row_of(one.train), one.rows)
    task = one.rows[one.true_labels != NONE]
    assert torch.equal(one.true_labels[one.true_labels != NONE], LABELS[task])
    assert len(one.train) == len(one.rows) == len(one.wrong) == len(one.distinct)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_target_is_right_rows_apart_from_training_and_test(name: str) -> None:
    one = made(name)
    assert len(one.validation) == 100
    held = row_of(one.validation)
    assert torch.equal(one.validation.labels, LABELS[held])
    assert not set(held.tolist()) & set(one.rows.tolist())
    assert torch.equal(
        one.validation.labels.bincount(), torch.full((one.outputs,), 100 // one.outputs)
    )
    assert len(one.test) == 5 * one.outputs  # classes of the task only
    assert one.validation.classes == one.test.classes == one.train.classes
    whole = made(name, target=0)
    assert whole.validation is None
    assert len(whole.train) >= len(one.train)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_oracle_draws_each_right_and_relevant_row_once_in_the_tests_shares(name: str) -> None:
    one = made(name)
    if name == "small":
        assert one.oracle is None
        return
    weights = one.oracle
    assert weights is not None
    assert weights.mean() == pytest.approx(1)
    drawn = weights > 0
    assert not one.wrong[drawn].any()
    assert one.relevant is None or one.relevant[drawn].all()
    assert len(one.rows[drawn].unique()) == int(drawn.sum())
    usable = ~one.wrong if one.relevant is None else ~one.wrong & one.relevant
    assert set(one.rows[drawn].tolist()) == set(one.rows[usable].tolist())
    mass = torch.zeros(one.outputs).double().index_add_(0, one.labels, weights) / len(weights)
    if one.class_shares is not None:
        assert mass.tolist() == pytest.approx(class_shares(one.test).tolist())
    else:
        assert len(weights[drawn].unique()) == 1


def test_duplicates_repeat_some_rows_and_hold_others_once() -> None:
    one = made("duplicates", target=0)
    assert one.rows.bincount(minlength=1500).bincount().tolist() == [900, 300, 0, 0, 300]


def test_a_small_set_keeps_the_shares_of_the_classes() -> None:
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    one = condition("small", numbered(labels), target=0, rows=100)
    assert one.labels.bincount().tolist() == [90, 9, 1]


def test_half_of_an_open_set_belongs_to_no_class() -> None:
    one = made("open_set")
    assert (one.outputs, one.train.num_classes, len(one.train)) == (5, 5, 1300)
    outside = one.true_labels == NONE
    assert torch.equal(~outside, one.relevant)
    assert int(outside.sum()) == 650
    assert LABELS[one.rows[outside]].min() == 5
    assert LABELS[one.rows[~outside]].max() == 4
    assert one.labels[outside].bincount().min() > 90  # 130 expected


def test_half_of_the_images_are_of_another_domain() -> None:
    one = made("other_domain")
    same = one.relevant
    assert int(same.sum()) == 700
    assert torch.equal(row_of(one.train)[same], one.rows[same])
    assert torch.equal(one.train.images[~same], 255 - numbered().images[one.rows[~same]])
    checked = numbered()
    checked.images[:] = torch.tensor([[0, 100], [200, 255]], dtype=torch.uint8).repeat(2, 2)
    other = condition("other_domain", checked, target=0)
    low = other.train.images[~other.relevant]
    assert low.unique().tolist() == [116]  # 255 - (0 + 100 + 200 + 255) / 4, rounded


def test_the_web_has_all_of_it() -> None:
    one = made("web")
    known = one.true_labels != NONE
    once = one.distinct
    assert one.outputs == 5
    assert int(known[once].sum()) == int((~known)[once].sum())
    assert one.wrong[known & once].double().mean() == pytest.approx(0.2, abs=2e-3)
    counts = one.true_labels[known & once].bincount()
    assert counts[0] / counts[4] == pytest.approx(10, rel=0.1)
    assert torch.equal(
        one.labels[~known & once].sort().values, one.labels[known & once].sort().values
    )
    copies = one.rows.bincount()
    several = int(once.sum()) // 5
    assert copies.bincount()[[1, 4]].tolist() == [int(once.sum()) - several, several]
    for row in (copies == 4).nonzero()[:5]:
        assert len(one.labels[one.rows == row].unique()) == 1


def test_labels_by_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = tmp_path / "labels.npz", numbered()
    worse = mislabelled(LABELS, 0.4, 0)
    columns = {"clean_label": LABELS, "worse_label": worse, "random_label1": LABELS}
    np.savez(path, **{name: each.numpy().astype(np.uint8) for name, each in columns.items()})
    monkeypatch.delenv("ASTKIT_CIFAR10N", raising=False)
    with pytest.raises(FileNotFoundError, match="at None: pass path=, or set ASTKIT_CIFAR10N"):
        condition("human_labels", data)
    monkeypatch.setenv("ASTKIT_CIFAR10N", str(path))
    one = condition("human_labels", data, target=100)
    assert torch.equal(one.labels, worse[one.rows])
    assert one.wrong.double().mean() == pytest.approx(0.4, abs=0.03)
    assert not condition("human_labels", data, target=100, kind="random1", path=path).wrong.any()
    with pytest.raises(ValueError, match="are not those of the 1500 training images"):
        condition("human_labels", numbered(9 - LABELS))


def test_the_published_labels_by_people() -> None:
    path = SHARED / "cifar10n" / "train_labels.npz"
    if not path.exists():
        pytest.skip(f"{path} is absent; set ASTKIT_SHARED_DATA to run this")
    with np.load(path) as file:
        labels = torch.from_numpy(file["clean_label"]).long()
    data = Images(torch.zeros(50_000, 1, 1, 1).byte(), labels, tuple("0123456789"), "cifar10")
    for kind, wrong in (("worse", 0.4021), ("random1", 0.1723)):
        one = condition("human_labels", data, target=0, kind=kind, path=path)
        assert one.wrong.double().mean() == pytest.approx(wrong, abs=1e-4)


# --- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_a_share_of_the_pool_is_of_the_targets_text(share: float, tmp_path: Path) -> None:
    path = tmp_path / "digits.txt"
    path.write_text("0123456789" * 26_000)
    one, same = (condition("irrelevant_text", seed=1, share=share, path=path) for _ in range(2))
    for part in ("train", "validation", "test"):
        x, y = getattr(one, part).tensors
        assert x.shape == y.shape == (len(x), 64)
        assert x[:, 1:].equal(y[:, :-1])
        assert x.equal(getattr(same, part).tensors[0])
        if part != "train":
            assert len(x) == 1000
            assert (x.diff() % 10 == 1).all()  # digits only
    pool = one.train.tensors[0]
    of_digits = (pool.diff() % 10 == 1).all(1)
    assert of_digits.double().mean() == pytest.approx(share, abs=1e-4)
    assert int(pool.max()) < one.outputs
    if share == 1:
        assert one.relevant is one.oracle is None
    else:
        assert one.relevant.equal(of_digits)
        assert one.oracle.unique().tolist() == pytest.approx([0, 1 / share], rel=1e-3)


def test_texts_come_with_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    one = condition("irrelevant_text", seed=0, target=200)
    assert len(one.train) > 10_000
    assert "documentation of Python, torch and numpy" in one.description
    assert "scikit-learn 1.9.1 (BSD 3-clause)" in one.description
    tokens, size = builders.encoded("abca", "cd")
    assert ([each.tolist() for each in tokens], size) == ([[1, 2, 3, 1], [3, 4]], 5)
    assert builders.encoded("".join(map(chr, range(300))))[0][0].unique().tolist() == list(
        range(256)
    )
    monkeypatch.setattr(conditions, "PROSE_SHA256", "0")
    with pytest.raises(ValueError, match=r"is from docstrings of scikit-learn 1\.9\.1 .*: install"):
        conditions.pinned_prose()
    assert "scikit-learn" in texts.prose()


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("human_labels", {"kind": "best"}, "kind is 'best': choose of worse, random1"),
        ("small", {"rows": 500}, "fraction is 1.0; pass a fraction between 0 and 1"),
        ("irrelevant_text", {"share": 0}, "share is 0: give a share above 0"),
        ("irrelevant_text", {"target": 10**6}, "give a longer text, or a target of less"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, options: Any, sentence: str) -> None:
    images = None if name == "irrelevant_text" else numbered()
    with pytest.raises(ValueError, match=sentence):
        condition(name, images, **options)


@pytest.mark.parametrize("kind", ["law", "columns", "inputs"])
def test_older_parts_of_series_drift(kind: str) -> None:
    """Their law is linear: the newer rows and the test have it, with noise of deviation 1."""
    one = condition("drift", seed=3, target=100, data="series", kind=kind)
    x, y = one.train.tensors
    fitted = LinearRegression().fit(x[7000:].flatten(1), y[7000:])

    def error(rows: slice) -> float:
        wrong = fitted.predict(x[rows].flatten(1)) - y[rows].numpy()
        return float(np.sqrt(np.mean(wrong**2)))

    assert error(slice(7000, None)) == pytest.approx(1, abs=0.05)
    assert (error(slice(7000)) > 1.5) == (kind != "inputs")
    deviation = one.test.tensors[0][:, 0].std(0)
    assert 0.95 < deviation.min() < deviation.max() < 1.05
