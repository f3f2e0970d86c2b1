"""The histogram holds the counts of gates, curves every seed, frames the states."""

from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from astkit.systems.automaton.plots import film, gate_histogram, rollout_frames, soft_and_hard


def test_bars_are_numbers_of_gates_without_plain_wires():
    counts = np.zeros(16, int)
    counts[[1, 3, 7]] = [10, 25, 5]
    (axis,) = gate_histogram(counts).axes
    bars = dict(
        zip(
            [tick.get_text() for tick in axis.get_yticklabels()],
            [bar.get_width() for bar in axis.patches],
            strict=True,
        )
    )
    assert len(bars) == 15
    assert "a" not in bars
    assert list(bars.items())[-2:] == [("a or b", 5), ("a and b", 10)]  # the largest on top


def test_every_seed_has_a_line_and_no_wrong_cells_are_at_zero():
    rows = [
        {"seed": seed, "step": step, "val_loss": 0.1 / step, "val_wrong": 250 * (step < 3)}
        for seed in (0, 1)
        for step in (1, 2, 3)
    ]
    figure = soft_and_hard(pd.DataFrame(rows))
    losses, wrong = figure.axes
    assert [line.get_label() for line in losses.lines] == ["seed 0", "seed 1"]
    assert wrong.lines[1].get_ydata().tolist() == [250, 250, 0]
    assert wrong.get_yticks().tolist() == [0, 1, 10, 100]


@pytest.fixture
def two():
    true = np.zeros((5, 4, 6))
    true[:, 1, 2] = 1
    learnt = true.copy()
    learnt[2, 0, 0] = 1
    learnt[2:, 1, 2] = 0
    return {"true": true, "learnt": learnt}


def test_a_rollout_is_a_row_of_steps_which_counts_the_cells_that_differ(two):
    titles = [axis.get_title() for axis in rollout_frames(two, [0, 2]).axes]
    assert titles == ["true", "learnt: 0 of 24 differ", "true", "learnt: 2 of 24 differ"]
    figure = rollout_frames(
        {"learnt": two["learnt"]}, [0, 2], truth=two["true"], outline=np.eye(4, 6) > 0
    )
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["step 0: 0 of 24 differ", "step 2: 2 of 24 differ"]
    assert all(axis.collections for axis in figure.axes)


def test_a_film_moves_through_all_states_and_only_they_change(two):
    images = []
    with Image.open(BytesIO(film(two, fps=5))) as shown:
        for number in range(shown.n_frames):
            shown.seek(number)
            assert shown.info["duration"] == 200
            images.append(np.asarray(shown.convert("RGB")).astype(int))
    assert len(images) == 5
    red = [(abs(image - [0xA4, 0x16, 0x1A]).sum(-1) < 30).sum() for image in images]
    assert [bool(count > 100) for count in red] == [False, False, True, False, False]
    panel = slice(30, None), slice(30, images[0].shape[1] // 2)  # without title and step
    assert (images[0][panel] == images[2][panel]).all()
