"""Frames and films hold the states."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from astkit.systems.automaton.plots import coloured, film, rollout_frames


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


def test_colours_are_explained_only_where_a_cell_is_wrong(two):
    assert "red" in rollout_frames(two, [0]).get_suptitle()  # wrong at step 2
    assert rollout_frames({"a": two["true"], "b": two["true"]}, [0]).get_suptitle() == ""


def test_wrong_cells_are_red_and_pale_where_they_should_live():
    image = coloured([[0, 1, 1, 0]], [[0, 1, 0, 1]])
    assert image.dtype == np.uint8
    assert image.tolist() == [[[255] * 3, [0x22] * 3, [0xA4, 0x16, 0x1A], [0xE8, 0xA3, 0xA5]]]


def test_a_film_moves_through_all_states_and_only_they_change(two):
    images = []
    with Image.open(BytesIO(film(two, fps=5).png)) as shown:
        for number in range(shown.n_frames):
            shown.seek(number)
            assert shown.info["duration"] == 200
            images.append(np.asarray(shown.convert("RGB")).astype(int))
    assert len(images) == 5
    red = [(abs(image - [0xA4, 0x16, 0x1A]).sum(-1) < 30).sum() for image in images]
    assert [bool(count > 100) for count in red] == [False, False, True, False, False]
    # without titles, which differ
    panel = slice(90, None), slice(90, images[0].shape[1] // 2)
    assert (images[0][panel] == images[2][panel]).all()
