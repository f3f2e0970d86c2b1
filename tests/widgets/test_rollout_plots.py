"""Frames show the states they were given, count what differs, and move at the speed asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from astkit.widgets.rollout_plots import rollout_frames, save_rollouts
from astkit.widgets.style import COLOURS, INK, PAPER


@pytest.fixture
def two():
    true = np.zeros((5, 4, 6))
    true[:, 1, 2] = 1
    learnt = true.copy()
    learnt[2, 0, 0] = 1
    learnt[2:, 1, 2] = 0
    return {"true": true, "learnt": learnt}


def shown(axis):
    return np.asarray(axis.images[0].get_array())


def test_cells_are_ink_or_paper_and_wrong_ones_coloured(two):
    picture = rollout_frames(two, [0, 2])
    first, wrong = shown(picture.axes[0]), shown(picture.axes[3])
    assert first.shape == (4, 6, 3)
    assert first[1, 2].tolist() == pytest.approx(to_rgb(INK))
    assert (np.delete(first.reshape(-1, 3), 8, 0) == to_rgb(PAPER)).all()
    assert wrong[0, 0].tolist() == pytest.approx(to_rgb(COLOURS[1]))
    assert len({tuple(wrong[at]) for at in ((0, 0), (1, 2), (3, 3))}) == 3
    assert len(np.unique(wrong.reshape(-1, 3), axis=0)) == 3
    titles = [axis.get_title() for axis in picture.axes]
    assert titles == ["step 0", "step 2", "0 of 24 differ", "2 of 24 differ"]
    assert [picture.axes[i].get_ylabel() for i in (0, 2)] == ["true", "learnt"]


def test_soft_values_are_grey_and_compared_rounded(two):
    soft = {"true": two["true"], "soft": torch.from_numpy(0.6 * two["true"] + 0.2)}
    picture = rollout_frames(soft, [0])
    assert picture.axes[1].get_title() == "0 of 24 differ"
    grey = shown(picture.axes[1])
    assert to_rgb(INK)[0] < grey[1, 2, 0] < grey[0, 0, 0] < 1


def test_a_gif_moves_through_all_states_and_only_they_change(two, tmp_path):
    path = save_rollouts(tmp_path / "new" / "life.gif", two, fps=5)
    with Image.open(path) as film:
        images = []
        for number in range(film.n_frames):
            film.seek(number)
            assert film.info["duration"] == 200
            images.append(np.asarray(film.convert("RGB")).astype(int))
    assert len(images) == 5
    orange = [(abs(image - [0xD5, 0x5E, 0x00]).sum(-1) < 30).sum() for image in images]
    assert [bool(count > 100) for count in orange] == [False, False, True, False, False]
    middle = slice(40, -40)  # without the titles
    half = images[0].shape[1] // 2
    assert (images[0][middle, :half] == images[2][middle, :half]).all()
    assert sorted(p.name for p in path.parent.iterdir()) == ["life.gif"]


def test_a_page_holds_a_picture_a_state(two, tmp_path):
    page = save_rollouts(tmp_path / "life.html", two).read_text()
    assert page.count("data:image/png;base64,") == 5


def test_what_cannot_be_shown_is_refused(two, tmp_path):
    with pytest.raises(ValueError, match=r"at is \[5\]: give steps from 0 to 4"):
        rollout_frames(two, [5])
    with pytest.raises(ValueError, match=r"at is \[\]"):
        rollout_frames(two, [])
    with pytest.raises(ValueError, match=r"true \[5, 4, 6\], learnt \[4, 4, 6\]: give them"):
        rollout_frames({**two, "learnt": two["learnt"][1:]}, [0])
    with pytest.raises(ValueError, match="trajectories are none"):
        rollout_frames({}, [0])
    with pytest.raises(ValueError, match=r"flat \[4, 6\]"):
        rollout_frames({"flat": two["true"][0]}, [0])
    with pytest.raises(ValueError, match=r"let it end in .gif or .html"):
        save_rollouts(tmp_path / "life.mp4", two)
    with pytest.raises(ValueError, match="fps is 0: give 1"):
        save_rollouts(tmp_path / "life.gif", two, fps=0)
