"""Pictures hold the means, bands and parts of the table they were given, or say what it lacks."""

import numpy as np
import torch
from PIL import Image

from astkit.widgets import plots


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_images_of_any_kind_are_drawn_in_their_row_and_proportions():
    grey = torch.full((1, 4, 8), 255, dtype=torch.uint8)  # twice as wide as high
    values = torch.linspace(-3, 5, 3 * 20 * 20).view(3, 20, 20)
    pictures = {
        "epoch 1: selected": [grey, Image.new("RGB", (5, 5), (255, 0, 0))],
        "none": [],
        "epoch 1: skipped": [values],
        "epoch 2: selected": [np.zeros((6, 3))],
    }
    figure = plots.image_rows(pictures, {"epoch 1: skipped": ["cat, 3x"]}, "what it selects")
    (axis,) = figure.axes
    drawn = axis.get_images()
    assert len(drawn) == 4
    assert float(drawn[0].get_array().min()) == 1.0
    assert drawn[1].get_array()[0, 0].tolist() == [1, 0, 0]
    scaled = drawn[2].get_array()
    assert (scaled.min(), scaled.max(), scaled.shape) == (0, 1, (20, 20, 3))
    assert drawn[3].get_array().max() == 0
    words = [text.get_text() for text in axis.texts]
    assert words == ["epoch 1\nselected", "epoch 1\nskipped", "cat, 3x", "epoch 2\nselected"]
    assert figure.get_suptitle() == "what it selects"
    assert figure.png()
