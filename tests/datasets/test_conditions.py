"""Conditions of the data: sizes and shares by hand, identity of samples, refusals."""

from __future__ import annotations

import pytest
import torch

from astkit.datasets import Images, Loader, write_mapped
from astkit.datasets.conditions import class_scores, condition
from astkit.names import REGISTRIES
from tests.datasets.toy import Rows

NAMES = tuple(REGISTRIES["condition"])
OPTIONS = {"small": {"rows": 200}, "long_tail": {"factor": 20}}
LABELS = torch.arange(1000) % 10


def pictures(labels=LABELS, classes=10):
    """Images whose pixels say which row they are."""
    rows = torch.arange(len(labels))
    pixels = torch.stack([rows // 256, rows % 256], 1).to(torch.uint8)[:, :, None, None]
    return Images(pixels, labels, tuple(map(str, range(classes))), "numbered")


def row_of(data):
    return data.images[:, 0, 0, 0].long() * 256 + data.images[:, 1, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_a_condition_is_fixed_by_its_seed_and_says_where_each_sample_is_from(name):
    data, before = pictures(), torch.random.get_rng_state()
    made, same, other = (condition(name, data, seed, **OPTIONS.get(name, {})) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(made.rows, same.rows)
    assert torch.equal(made.labels, same.labels)
    varied = not torch.equal(made.rows, other.rows) or not torch.equal(made.labels, other.labels)
    assert varied == (name != "clean")
    assert torch.equal(row_of(made.data), made.rows)
    assert torch.equal(made.data.labels, made.labels)
    assert torch.equal(made.true_labels, LABELS[made.rows])
    assert len(made.data) == len(made.rows) == len(made.wrong)
    assert torch.equal(data.labels, LABELS)  # the original is left as it is


@pytest.mark.parametrize("name", NAMES)
def test_other_data_sets_get_the_same_samples_as_images(name, tmp_path):
    images = pictures(LABELS[:400])
    options = {"small": {"rows": 80}, "long_tail": {"factor": 20}}.get(name, {})
    made = condition(name, images, 1, **options)
    pairs = [(image, int(label)) for image, label in zip(*images[range(400)], strict=True)]
    listed = type("Pairs", (list,), {"targets": images.labels.tolist()})(pairs)
    for other in (listed, write_mapped(tmp_path / "mapped", images, images.classes)):
        twin = condition(name, other, 1, **options)
        first, *_ = Loader(twin.data, 32, seed=5).batches(0)
        expected, *_ = Loader(made.data, 32, seed=5).batches(0)
        assert torch.equal(first.y, expected.y)
        assert torch.equal(first.index, expected.index)  # of the condition, not of the original
        assert torch.equal(first.x, expected.x)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 1.0])
def test_wrong_labels_are_exactly_a_share_and_uniform_over_the_other_classes(share):
    made = condition("wrong_labels", pictures(LABELS.repeat(9)), 0, share=share)
    assert int(made.wrong.sum()) == round(share * 9000)
    assert torch.equal(made.rows, torch.arange(9000))
    counts = torch.zeros(10, 10).index_put_(
        (made.true_labels[made.wrong], made.labels[made.wrong]), torch.tensor(1.0), accumulate=True
    )
    assert not counts.diagonal().any()
    if share:
        expected = counts.sum() / 90
        chi2 = ((counts - expected) ** 2 / expected).sum() - 10 * expected  # the diagonal is empty
        assert chi2 < 150  # 89 degrees of freedom: exceeded once in 20,000


def test_wrong_labels_are_classes_that_occur():
    made = condition("wrong_labels", pictures(LABELS[:200] % 2 * 5), 0, share=0.5)
    assert set(made.labels.tolist()) == {0, 5}
    assert int(made.wrong.sum()) == 100


def test_duplicates_repeat_some_rows_and_hold_others_once():
    counts = condition("duplicates", pictures(), 0).rows.bincount(minlength=1000)
    assert counts.bincount().tolist() == [600, 200, 0, 0, 200]
    made = condition("duplicates", pictures(), 0, copies=3, repeated=5, single=0)
    assert made.rows.bincount().bincount().tolist()[3] == 5
    assert len(made.data) == 15


def test_the_published_long_tail_of_cifar10():
    tail = condition("long_tail", pictures(torch.arange(50_000) % 10), 0)
    sizes = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]  # Cui et al. round down
    assert (tail.labels.bincount() - torch.tensor(sizes)).abs().max() <= 1
    unequal = torch.tensor([0] * 30 + [1] * 200 + [2] * 9)  # class 2 limits the others
    assert condition("long_tail", pictures(unequal), 0, factor=4).labels.bincount().tolist() == [
        30,
        15,
        8,
    ]


def test_a_small_set_keeps_the_shares_of_the_classes():
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    assert condition("small", pictures(labels), 0, rows=100).labels.bincount().tolist() == [
        90,
        9,
        1,
    ]


def test_class_scores_by_hand():
    recalls, labels = torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0] * 6 + [1] * 3 + [2])
    found = class_scores(recalls, labels)
    assert found == pytest.approx({"balanced": 0.5, "natural": 0.7, "worst": 0.1})


def test_what_cannot_be_made_is_refused_with_the_remedy():
    one = pictures(torch.zeros(9, dtype=torch.int64))
    cases = [
        ("noise", pictures(), {}, "unknown condition 'noise': choose one of clean"),
        ("clean", pictures(), {"share": 1}, "has no option share: it takes none"),
        ("small", pictures(), {"row": 1}, "has no option row: choose from rows"),
        ("clean", Rows(), {}, "needs class labels: pass Images"),
        ("wrong_labels", pictures(), {"share": 1.1}, "share is 1.1: give a number from 0 to 1"),
        ("wrong_labels", one, {}, "all labels are of one class"),
        ("duplicates", pictures(), {"copies": 0}, "copies is 0: give 1 or more"),
        ("duplicates", pictures(), {"repeated": 900}, "repeated is 900 and single 200"),
        ("duplicates", pictures(), {"repeated": 0, "single": 0}, "between 1 and the 1000 rows"),
        ("long_tail", pictures(), {"factor": 0.5}, "factor is 0.5: give 1 or more"),
        ("long_tail", pictures(), {"factor": 1e4}, "without a row: give at most 100"),
        ("small", pictures(), {"rows": 1000}, "rows is 1000: give between 1 and 999"),
    ]
    for name, data, options, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            condition(name, data, **options)
