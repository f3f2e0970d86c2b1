import numpy as np
import pytest
import torch

from astkit.datasets import Images


def images(n=6, classes=("a", "b"), **changes):
    parts = {
        "images": torch.randint(0, 256, (n, 3, 4, 5), dtype=torch.uint8),
        "labels": torch.arange(n) % 2,
        "classes": classes,
        "name": "toy",
    }
    return Images(**{**parts, **changes})


def test_describes_itself():
    data = images()
    assert len(data) == 6
    assert data.num_classes == 2
    assert data.shape == (3, 4, 5)


def test_names_the_argument_that_is_wrong():
    for changes, words in (
        ({"images": torch.zeros(6, 3, 4, 5)}, "images is a torch.float32 of"),
        ({"images": torch.zeros(6, 4, 5, dtype=torch.uint8)}, r"shape \[6, 4, 5\]; pass a torch"),
        ({"images": [[0]]}, "images is a list of"),
        ({"images": np.zeros((6, 3, 4, 5), np.uint8)}, "images is a uint8 of"),
        ({"labels": torch.zeros(6)}, "labels is a torch.float32 of"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"shape \[6, .*labels has 5 rows"),
        ({"labels": torch.tensor([0, 1, 0, 1, 2, 2])}, "Label 2 occurs 2 times in 'toy'"),
        ({"labels": torch.tensor([0, 1, 0, 1, 0, -1])}, "Label -1 occurs 1 time in"),
        ({"classes": ()}, "classes is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            images(**changes)


def test_refuses_to_be_empty():
    with pytest.raises(ValueError, match="pass at least one image"):
        images(n=0)
    with pytest.raises(ValueError, match="selects no row"):
        images().subset([])


def test_subset_keeps_the_order_asked_for():
    data = images()
    part = data.subset(torch.tensor([4, 1]))
    assert torch.equal(part.images, data.images[[4, 1]])
    assert part.labels.tolist() == [0, 1]
    assert len(data.subset(data.labels == 1)) == 3


def test_channel_stats_are_those_of_the_pixels():
    data = images()
    mean, std = data.channel_stats()
    pixels = data.images.double() / 255
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0).float())
