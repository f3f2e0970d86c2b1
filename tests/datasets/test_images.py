"""Images in memory: their parts, what they refuse, and their statistics."""

import pytest
import torch

from astkit.datasets import Images
from astkit.datasets import images as module


def images(n=6, classes=("a", "b"), **changes):
    parts = {
        "images": torch.randint(0, 256, (n, 3, 4, 5), dtype=torch.uint8),
        "labels": torch.arange(n) % 2,
        "classes": classes,
        "name": "toy",
    }
    return Images(**{**parts, **changes})


def test_describes_itself_and_its_parts():
    data = images()
    assert (len(data), data.num_classes, data.shape) == (6, 2, (3, 4, 5))
    assert repr(data) == "Images('toy': 6 of 3 x 4 x 5, 2 classes)"
    part = data.subset(torch.tensor([4, 1]))
    assert torch.equal(part.images, data.images[[4, 1]])
    assert part.labels.tolist() == [0, 1]
    assert len(data.subset(data.labels == 1)) == 3


def test_names_the_argument_that_is_wrong():
    for changes, words in (
        ({"images": torch.zeros(6, 3, 4, 5)}, "images is a torch.float32 of"),
        ({"images": torch.zeros(6, 4, 5, dtype=torch.uint8)}, r"shape \[6, 4, 5\]; pass a torch"),
        ({"labels": torch.zeros(6)}, "labels is a torch.float32 of"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"shape \[6, .*labels has 5 rows"),
        ({"labels": torch.tensor([0, 1, 0, 1, 2, 2])}, "'toy' has the label 2, but classes nam"),
        ({"labels": torch.tensor([0, 1, 0, 1, 0, -1])}, "has the label -1"),
        ({"n": 0}, "pass at least one image"),
    ):
        with pytest.raises(ValueError, match=words):
            images(**changes)
    for nothing in (images().labels > 1, []):
        with pytest.raises(ValueError, match="pass at least one image"):
            images().subset(nothing)


def test_channel_stats_are_those_of_the_pixels(monkeypatch):
    monkeypatch.setattr(module, "STATS_ROWS", 4)
    data = images()
    mean, std = data.channel_stats()
    pixels = data.images.double() / 255
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0).float())
    flat = images(images=torch.full((6, 1, 4, 5), 51, dtype=torch.uint8)).channel_stats()
    assert [part.item() for part in flat] == pytest.approx([0.2, 1 / 255])
