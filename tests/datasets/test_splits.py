import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.datasets import load, split, stratified


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_every_class_gives_its_exact_share(labels, fraction, seed):
    labels = torch.tensor(labels)
    chosen, rest = stratified(labels, fraction, seed, "test")
    assert torch.equal(torch.cat([chosen, rest]).sort().values, torch.arange(len(labels)))
    assert torch.equal(chosen, chosen.sort().values)
    assert torch.equal(rest, rest.sort().values)
    for label in labels.unique():
        count = int((labels == label).sum())
        assert int((labels[chosen] == label).sum()) == round(fraction * count)


def test_the_key_fixes_the_choice():
    labels = torch.arange(100) % 4
    assert torch.equal(stratified(labels, 0.3, 1)[0], stratified(labels, 0.3, 1)[0])
    assert not torch.equal(stratified(labels, 0.3, 1)[0], stratified(labels, 0.3, 2)[0])


def test_refuses_impossible_fractions():
    for fraction in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="fraction is"):
            stratified(torch.arange(4), fraction)
        with pytest.raises(ValueError, match="validation is"):
            split(validation=fraction)
        with pytest.raises(ValueError, match="test is"):
            split(test=fraction)


def test_digits_are_divided_without_overlap():
    parts = split("digits", seed=3)
    whole, _ = load("digits")
    sizes = [len(parts.train), len(parts.validation), len(parts.test)]
    assert sum(sizes) == len(whole) == 1797
    pixels = torch.cat([part.images for part in (parts.train, parts.validation, parts.test)])
    assert torch.equal(pixels.long().sum(0), whole.images.long().sum(0))
    again = split("digits", seed=3)
    assert torch.equal(again.train.images, parts.train.images)
    assert not torch.equal(split("digits", seed=4).test.images, parts.test.images)


def test_names_the_part_that_would_be_empty(tmp_path, class_folders):
    class_folders(tmp_path, ("a", "b"), 2)
    with pytest.raises(ValueError, match="leaves the test part"):
        split("folders", tmp_path, test=0.1)
