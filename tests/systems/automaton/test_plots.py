"""The diagram holds each gate and wire once, the histogram its counts, frames the states."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from PIL import Image

from astkit.systems.automaton.circuit import TRUE
from astkit.systems.automaton.plots import (
    OPS,
    circuit_diagram,
    gate_histogram,
    rollout_frames,
    save_rollouts,
)
from astkit.widgets.style import COLOURS, INK, PAPER
from tests.systems.automaton.circuits import Builder


def gates_of(axis):
    """Places of gates by their label in the legend."""
    marks = [c for c in axis.collections if not isinstance(c, LineCollection)]
    named = [c for c in marks if not c.get_label().startswith("_")]
    return {c.get_label(): np.asarray(c.get_offsets()) for c in named}


def wires_of(axis):
    """Solid and dashed segments."""
    return [c.get_segments() for c in axis.collections if isinstance(c, LineCollection)]


def test_each_gate_is_in_its_family_at_its_depth_and_each_wire_is_drawn():
    make = Builder(2)
    only_4 = make.op(2, 4, 13)
    nand = make.op(14, only_4, 1)
    nor = make.op(8, 0, 10)
    turned = make.op(12, nor, nor)
    figure = circuit_diagram(make.done([make.op(9, nand, turned), TRUE]))
    (axis,) = figure.axes
    places = gates_of(axis)
    columns = np.unique(np.concatenate([*places.values()])[:, 0])
    depths = {k: (np.searchsorted(columns, v[:, 0]) + 1).tolist() for k, v in places.items()}
    assert depths == {"and, 2": [1, 2], "or, 1": [1], "xor, 1": [3], "not, 1": [2]}
    assert axis.get_title() == "circuit of one cell: 5 gates, depth 3"
    solid, dashed = wires_of(axis)
    assert (len(solid), len(dashed)) == (4 * 2 + 1 + 1, 1)
    assert dashed[0][1].tolist() == places["and, 2"][0].tolist()
    texts = [t.get_text() for t in axis.texts]
    assert texts.count("1 = 1") == 1
    assert sorted(t for t in texts if t in "∧⊼⊽≡¬") == sorted("∧⊼⊽≡¬")


def test_a_circuit_without_gates_is_drawn():
    figure = circuit_diagram(Builder(1).done([4]))
    assert [len(segments) for segments in wires_of(figure.axes[0])] == [1]
    assert figure.legends == []
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_bars_are_shares_and_say_their_counts():
    before, after = np.zeros(16, int), np.zeros(16, int)
    before[3], after[[1, 3, 7]] = 40, [10, 25, 5]
    figure = gate_histogram({"before": before, "after": after})
    (axis,) = figure.axes
    heights = [[bar.get_height() for bar in bars] for bars in axis.containers]
    np.testing.assert_allclose(heights, [before / 40, after / 40])
    assert [t.get_text() for t in axis.texts if t.get_text()] == ["40", "10", "25", "5"]
    assert [t.get_text() for t in axis.get_xticklabels()] == list(OPS)
    assert axis.get_ylim()[0] < 1 / 40
    texts = [t.get_text() for t in figure.legends[0].get_texts()]
    assert texts == ["before, 40 gates", "after, 40 gates"]


@pytest.fixture
def two():
    true = np.zeros((5, 4, 6))
    true[:, 1, 2] = 1
    learnt = true.copy()
    learnt[2, 0, 0] = 1
    learnt[2:, 1, 2] = 0
    return {"true": true, "learnt": learnt}


def test_cells_are_ink_or_paper_and_wrong_ones_coloured(two):
    figure = rollout_frames(two, [0, 2])
    first, wrong = (np.asarray(figure.axes[i].images[0].get_array()) for i in (0, 3))
    assert first.shape == (4, 6, 3)
    assert first[1, 2].tolist() == pytest.approx(to_rgb(INK))
    assert (np.delete(first.reshape(-1, 3), 8, 0) == to_rgb(PAPER)).all()
    assert wrong[0, 0].tolist() == pytest.approx(to_rgb(COLOURS[1]))
    assert len({tuple(wrong[at]) for at in ((0, 0), (1, 2), (3, 3))}) == 3
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["true", "learnt: 0 of 24 differ", "true", "learnt: 2 of 24 differ"]
    assert [figure.axes[i].get_ylabel() for i in (0, 2)] == ["step 0", "step 2"]


def test_a_gif_moves_through_all_states_and_only_they_change(two, tmp_path):
    path = save_rollouts(tmp_path / "new" / "life.gif", two, fps=5)
    images = []
    with Image.open(path) as film:
        for number in range(film.n_frames):
            film.seek(number)
            assert film.info["duration"] == 200
            images.append(np.asarray(film.convert("RGB")).astype(int))
    assert len(images) == 5
    orange = [(abs(image - [0xD5, 0x5E, 0x00]).sum(-1) < 30).sum() for image in images]
    assert [bool(count > 100) for count in orange] == [False, False, True, False, False]
    panel = slice(30, None), slice(30, images[0].shape[1] // 2)  # without title and step
    assert (images[0][panel] == images[2][panel]).all()


def test_wrong_inputs_are_refused(two, tmp_path):
    for trajectories, at, message in (
        (two, [5], r"at is \[5\]: give steps from 0 to 4"),
        (two, [], r"at is \[\]"),
        ({**two, "learnt": two["learnt"][1:]}, [0], r"learnt \[4, 4, 6\]: give them"),
        ({}, [0], "trajectories are none"),
        ({"flat": two["true"][0]}, [0], r"flat \[4, 6\]"),
    ):
        with pytest.raises(ValueError, match=message):
            rollout_frames(trajectories, at)
    with pytest.raises(ValueError, match=r"give a name that ends in .gif"):
        save_rollouts(tmp_path / "life.mp4", two)
    with pytest.raises(ValueError, match="fps is 0: give 1"):
        save_rollouts(tmp_path / "life.gif", two, fps=0)
