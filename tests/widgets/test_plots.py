"""Pictures hold the means, bands and parts of the table they were given, or say what it lacks."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from astkit.widgets import plots

ARMS = ("dense", "batched gate", "random")


@pytest.fixture
def results():
    costs = {"dense": (0, 10, 20), "batched gate": (8, 1, 2), "random": (0, 4, 38)}
    rows = [(arm, seed, *(part + seed for part in costs[arm])) for arm in ARMS for seed in (0, 2)]
    columns = ["arm", "seed", "flops_scoring", "flops_forward", "flops_backward"]
    return pd.DataFrame(rows, columns=columns)


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def rows_of(axis):
    return [tick.get_text() for tick in axis.get_yticklabels()]


def stacks(picture):
    """Per label of the legend: (left, width) of each row's bar."""
    return {
        group.get_label(): [(bar.get_x(), bar.get_width()) for bar in group]
        for group in picture.axes[0].containers
    }


def test_bars_stack_the_parts_and_name_their_ratio_to_dense_training(results):
    picture = plots.cost_breakdown(results)
    (axis,) = picture.axes
    assert stacks(picture) == {
        "score": [(0, 1), (0, 9), (0, 1)],
        "forward": [(1, 11), (9, 2), (1, 5)],
        "backward": [(12, 21), (11, 3), (6, 39)],
    }
    assert rows_of(axis) == list(ARMS)
    ratios = [text.get_text().strip() for text in axis.texts]
    assert ratios == ["1.00 × dense", "0.42 × dense", "1.36 × dense"]
    assert legend(picture) == list(stacks(picture))
    alone = plots.cost_breakdown(results[results["arm"] == "random"])
    assert set(stacks(alone)) == {"score", "forward", "backward"}
    assert not alone.axes[0].texts


def test_speeds_are_bars_and_their_interval_decides_what_they_are_called():
    rows = [("plain", 1, 1, 1), ("fast", 2, 1.8, 2.5), ("slow", 0.5, 0.4, 0.55), ("?", 2.1, 0.9, 3)]
    columns = ("arm", "speedup", "speedup_low", "speedup_high")
    table = [dict(zip(columns, row, strict=True), rounds=7) for row in rows]
    picture = plots.speed_bars(table)
    (axis,) = picture.axes
    assert rows_of(axis) == ["?", "fast", "slow"]
    bars = [each for each in axis.containers if hasattr(each, "patches")]
    groups = {each.get_label(): [bar.get_width() for bar in each] for each in bars}
    tells = "cannot tell: the interval contains 1"
    assert groups == {"faster": [2.0], "slower": [0.5], tells: [2.1]}
    assert set(legend(picture)) == {*groups, "plain"}
    spans = [tuple(segment[:, 0]) for segment in axis.collections[0].get_segments()]
    assert np.allclose(spans, [rows[place][2:] for place in (3, 1, 2)])
    assert axis.get_xlabel() == "times as fast as plain, 95 % intervals of 7 rounds"


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
