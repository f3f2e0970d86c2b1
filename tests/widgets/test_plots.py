"""Pictures hold the means, bands and parts of the table they were given, or say what it lacks."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from astkit.widgets import plots


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


@pytest.fixture
def steps():
    step = np.arange(1, 61)
    run = pd.DataFrame(
        {"step": step, "threshold": 2 / step, "measured_rate": 0.1 * (step % 3) ** 2}
    )
    return pd.concat([run.assign(seed=0), run.assign(seed=1)])


def shade(axis, place=-1):
    """x, lowest and highest y of a shaded band at its corners."""
    points = axis.collections[place].get_paths()[0].vertices
    return {x: (y.min(), y.max()) for x, y in pd.DataFrame(points).groupby(0)[1]}


def test_threshold_and_rate_draw_the_median_and_the_set_point(steps):
    later = steps.assign(threshold=steps["threshold"] * (1 + steps["seed"]))
    picture = plots.threshold_and_rate(later, 0.1, window=3)
    rate, threshold = picture.axes
    assert list(threshold.lines[0].get_ydata()) == pytest.approx([3 / s for s in range(1, 61)])
    assert shade(threshold)[2] == pytest.approx((1.05, 1.95))  # 5 and 95 % between 1 and 2
    assert threshold.get_yscale() == "log"  # it falls sixtyfold
    assert len(rate.lines) == 2
    assert list(rate.lines[0].get_ydata())[:2] == pytest.approx([0.1, 0.25])
    assert rate.lines[0].get_ydata()[-1] == pytest.approx(0.5 / 3)  # of 0.1, 0.4 and 0
    assert set(rate.lines[1].get_ydata()) == {0.1}
    assert set(legend(picture)) == {"this run", "set point 0.1", "set point ±20 %"}
    assert "mean of the last 3 batches" in rate.get_title()
    assert picture.get_suptitle() == "median of 2 seeds, shaded from 5 % to 95 %"


def test_a_set_point_that_moves_is_drawn_in_steps_with_its_band(steps):
    moved = steps.assign(rate=np.where(steps["step"] < 30, 0.1, 0.25))
    picture = plots.threshold_and_rate(moved)
    axis = picture.axes[0]
    line = axis.lines[-1]
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == list(range(1, 61))
    assert list(line.get_ydata()) == [0.1] * 29 + [0.25] * 31
    assert shade(axis)[10] == pytest.approx((0.08, 0.12))
    assert shade(axis)[30] == pytest.approx((0.08, 0.3))  # the edge of the step
    assert shade(axis)[40] == pytest.approx((0.2, 0.3))
    assert "set point" in legend(picture)


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
