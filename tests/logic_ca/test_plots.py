"""The diagram holds each gate and wire once, the histogram its counts, frames the states."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb, to_rgba
from PIL import Image

from astkit.logic_ca.circuit import TRUE
from astkit.logic_ca.plots import (
    OPS,
    circuit_diagram,
    gate_histogram,
    rollout_frames,
    save_rollouts,
    soft_and_hard,
)
from astkit.widgets.style import COLOURS, INK, PAPER
from tests.logic_ca.circuits import TABLES, Builder


def scattered(axis, colour=None):
    """Label to places of what was scattered, or the places of the markers of one fill."""
    marks = [c for c in axis.collections if not isinstance(c, LineCollection)]
    if colour is None:
        return {c.get_label(): np.asarray(c.get_offsets()) for c in marks}
    return [c for c in marks if np.allclose(c.get_facecolor(), to_rgba(colour))]


def lines(axis):
    (found,) = [c for c in axis.collections if isinstance(c, LineCollection)]
    return np.array(found.get_segments())


@pytest.fixture
def small():
    make = Builder(2)
    only_4 = make.op(2, 4, 13)
    nand = make.op(14, only_4, 1)
    turned = make.op(12, make.op(8, 0, 10), 0)
    return make.done([make.op(9, nand, turned), TRUE])


def test_each_gate_is_in_its_family_at_its_depth(small):
    picture = circuit_diagram(small)
    (axis,) = picture.axes
    places = scattered(axis)
    assert {k: v[:, 0].tolist() for k, v in places.items() if not k.startswith("_")} == {
        "∧ and, 2": [1, 2],
        "∨ or, 1": [1],
        "⊕ xor, 1": [3],
        "¬ not, 1": [2],
    }
    assert axis.get_title() == "circuit of one cell: 5 gates, depth 3"
    assert {t.get_text() for t in picture.legends[0].get_texts()} == {
        "∧ and, 2",
        "∨ or, 1",
        "⊕ xor, 1",
        "¬ not, 1",
    }


def test_wires_go_from_what_is_read_to_the_gate(small):
    axis = circuit_diagram(small).axes[0]
    segments = lines(axis)
    assert len(segments) == 2 + 2 + 2 + 1 + 2 + 1  # a NOT reads one wire; a constant none
    cells = {p.get_xy(): p for p in axis.patches}
    assert len(cells) == 18
    starts = [begin for begin, _ in segments if begin[0] < 0.5]
    filled = [p for p in axis.patches if p.get_facecolor() != to_rgba(PAPER)]
    assert len(filled) == 5  # 4, 13, 1, 0 and 10
    for patch in filled:
        middle = patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2
        assert any(np.allclose(middle, start) for start in starts)
    assert sum(p.get_linewidth() > 1 for p in axis.patches) == 2  # the cell itself, twice


def test_a_ring_for_each_negation(small):
    axis = circuit_diagram(small).axes[0]
    outputs, rings = scattered(axis, PAPER)
    # b of A & !B, and the outputs of NAND, NOR and XNOR
    assert len(rings.get_offsets()) == 4
    assert len(outputs.get_offsets()) == 2
    gates = np.concatenate([v for k, v in scattered(axis).items() if not k.startswith("_")])
    on_page = [
        axis.transData.transform(np.asarray(places)) for places in (rings.get_offsets(), gates)
    ]
    nearest = np.linalg.norm(on_page[0][:, None] - on_page[1], axis=2).min(1)
    assert nearest == pytest.approx([nearest[0]] * 4)  # however steep the wire
    texts = [t.get_text() for t in axis.texts]
    assert texts.count("1 = 1") == 1
    assert sorted(t for t in texts if t in "∧∨⊕¬") == sorted("∧∧∨⊕¬")


def test_many_gates_have_no_symbols_and_fit(small):
    make = Builder(8)
    wires = [make.op(1 + i % 2, i % 72, (i * 7 + 1) % 72) for i in range(300)]
    many = make.done([make.op(6, wires[i], wires[-1 - i]) for i in range(8)])
    picture = circuit_diagram(many)
    axis = picture.axes[0]
    assert not [t for t in axis.texts if t.get_text() in OPS[1:15]]
    places = np.concatenate([v for v in scattered(axis).values() if len(v)])
    left, right, low, high = *axis.get_xlim(), *axis.get_ylim()
    assert ((places > [left, low]) & (places < [right, high])).all()
    assert picture.get_figwidth() <= 16
    assert picture.get_figheight() <= 11


def test_a_circuit_without_gates_is_drawn():
    picture = circuit_diagram(Builder(1).done([4]))
    assert len(lines(picture.axes[0])) == 1
    assert picture.legends == []
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_the_names_of_the_ops_say_what_they_do():
    symbols = {"∧": "and", "∨": "or", "¬": "not ", "≡": "==", "⊕": "!="}
    bare = {"∧": "a∧b", "∨": "a∨b", "⊕": "a⊕b", "≡": "a≡b", "⊽": "¬(a∨b)", "⊼": "¬(a∧b)"}
    for name, table in zip(OPS, TABLES, strict=True):
        text = bare.get(name, name)
        for symbol, word in symbols.items():
            text = text.replace(symbol, f" {word} ")
        values = [bool(eval(text, {}, {"a": a, "b": b})) for a in (0, 1) for b in (0, 1)]
        assert values == table.tolist(), name


def test_bars_are_shares_and_say_their_counts():
    before, after = np.zeros(16, int), np.zeros(16, int)
    before[3], after[[1, 3, 7]] = 40, [10, 25, 5]
    picture = gate_histogram({"before": before, "after": after})
    (axis,) = picture.axes
    heights = [[bar.get_height() for bar in bars] for bars in axis.containers]
    np.testing.assert_allclose(heights, [before / 40, after / 40])
    assert [t.get_text() for t in axis.texts if t.get_text()] == ["40", "10", "25", "5"]
    assert [t.get_text() for t in axis.get_xticklabels()] == list(OPS)
    assert axis.get_yscale() == "log"
    assert axis.get_ylim()[0] < 1 / 40
    texts = [t.get_text() for t in picture.legends[0].get_texts()]
    assert texts == ["before, 40 gates", "after, 40 gates"]
    assert len({bars[0].get_hatch() for bars in axis.containers}) == 2


def test_soft_and_hard_losses_are_drawn_as_they_are_told():
    rows = {"step": [25, 50], "val_loss": [2.0, 0.1], "val_hard_loss": [3.0, 0.0]}
    losses, right = soft_and_hard(pd.DataFrame({**rows, "val_accuracy": [0.5, 1.0]})).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in losses.lines}
    assert drawn == {"soft": [2.0, 0.1], "hard": [3.0, 0.0]}
    assert list(right.lines[0].get_xydata().ravel()) == [25, 0.5, 50, 1.0]
    with pytest.raises(ValueError, match="history has no rows"):
        soft_and_hard(pd.DataFrame())


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
    for counts in ({}, {"x": [1] * 15}, {"x": [0] * 16}):
        with pytest.raises(ValueError, match=r"counts is .*16 ops"):
            gate_histogram(counts)
    with pytest.raises(ValueError, match=r"give a name that ends in .gif"):
        save_rollouts(tmp_path / "life.mp4", two)
    with pytest.raises(ValueError, match="fps is 0: give 1"):
        save_rollouts(tmp_path / "life.gif", two, fps=0)
