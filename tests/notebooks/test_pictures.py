"""The figures beside the notebooks: what is drawn where."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from tests.notebooks.conftest import FOLDER


def beside(name):
    """A module beside the notebooks."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures, pictures = beside("figures"), beside("pictures")


def test_shares_have_a_row_for_each_condition_and_the_possible_gain_beside_it():
    undefined = {"share": None, "share_low": None, "share_high": None}
    rows = [
        {"policy": "aim", "share": 0.5, "share_low": 0.4, "share_high": 0.6, "gain": 2.5},
        {"policy": "random", "share": -3.0, "share_low": -4.0, "share_high": -2.0, "gain": -15.0},
        {"policy": "oracle", **undefined, "gain": 5.0},
    ]
    table = [{"condition": "drift", "unit": "points", "n": 5, **row} for row in rows]
    figure = pictures.shares(pd.DataFrame(table))
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["drift"]
    right = axis.child_axes[0]
    assert [label.get_text() for label in right.get_yticklabels()] == ["5.0 points higher"]
    assert [text.get_text() for text in axis.texts] == ["◀ -3"]  # outside of the axis
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["aim", "random"]


def test_bars_are_numbers_of_gates_without_plain_wires():
    counts = np.zeros(16, int)
    counts[[1, 3, 7]] = [10, 25, 5]
    (axis,) = figures.gate_histogram(counts).axes
    names = [tick.get_text() for tick in axis.get_yticklabels()]
    bars = dict(zip(names, [bar.get_width() for bar in axis.patches], strict=True))
    assert len(bars) == 15
    assert "a" not in bars
    assert list(bars.items())[-2:] == [("a or b", 5), ("a and b", 10)]  # the largest on top


def test_every_seed_has_a_line_and_no_wrong_cells_are_at_zero():
    rows = [
        {"seed": seed, "step": step, "val_loss": 0.1 / step, "val_wrong": 250 * (step < 3)}
        for seed in (0, 1)
        for step in (1, 2, 3)
    ]
    figure = figures.soft_and_hard(pd.DataFrame(rows))
    losses, wrong = figure.axes
    assert [line.get_label() for line in losses.lines] == ["seed 0", "seed 1"]
    assert wrong.lines[1].get_ydata().tolist() == [250, 250, 0]
    assert wrong.get_yticks().tolist() == [0, 1, 10, 100]


def test_learning_shows_the_mean_over_seeds_and_names_every_end():
    curves = pd.DataFrame(
        {"model": "lattice", "seed": [0, 1], "step": [10, 10], "val_mrr": [0.2, 0.4]}
    )
    axis = pictures.learning(curves, {"ridge": 0.31, "copy input": 0.6}).axes[0]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([0.3])
    assert [line.get_ydata()[0] for line in axis.lines[1:]] == [0.31, 0.6]
    names = [text.get_text() for text in axis.texts]
    assert names == ["lattice 0.30", "ridge 0.31", "copy input 0.60"]
    first, second, third = (text.xy[1] for text in axis.texts)
    assert (first, third) == pytest.approx((0.3, 0.6))
    assert second >= first + 0.03  # names of near ends lie apart


def test_the_threshold_runs_through_the_losses_of_its_batch():
    steps = [([0.5, 2.0, 3.0, 4.0], 1.0), ([0.1, 0.2, 0.3, 9.0], 0.5)]
    cloud, share = pictures.threshold(steps, 0.5).axes
    trained, skipped, limit = cloud.lines
    assert trained.get_xydata().tolist() == [[0, 2], [0, 3], [0, 4], [1, 9]]
    assert skipped.get_xydata().tolist() == [[0, 0.5], [1, 0.1], [1, 0.2], [1, 0.3]]
    assert limit.get_ydata().tolist() == [1.0, 0.5]
    assert share.lines[0].get_ydata().tolist() == [0.75, 0.25]
    words = [text.get_text() for text in share.texts]
    assert words == ["asked for: 50 %", "trained on: 50 %"]


def test_bars_of_speeds_tell_by_their_colour_what_the_interval_decides():
    rows = [("fast", 2, 1.8, 2.5), ("slow", 0.5, 0.4, 0.55), ("?", 2.1, 0.9, 3)]
    table = pd.DataFrame(rows, columns=["arm", "speedup", "speedup_low", "speedup_high"])
    here, there = pictures.speeds({"here": table, "there": table[:1]}, "plain").axes
    assert [tick.get_text() for tick in here.get_yticklabels()] == ["slow", "fast", "?"]
    looks = [to_hex(bar.get_facecolor()).lower() for bar in here.patches]
    expected = (pictures.SLOWER, pictures.FASTER, pictures.UNKNOWN)
    assert looks == [colour.lower() for colour in expected]
    spans = [tuple(segment[:, 0]) for segment in here.collections[0].get_segments()]
    assert np.allclose(spans, [rows[place][2:] for place in (1, 0, 2)])
    assert [text.get_text().strip() for text in here.texts] == ["0.50", "2.0", "2.1"]
    assert (there.get_title("left"), len(there.patches)) == ("there", 1)


def test_ratios_of_a_gpu_become_speeds_whichever_was_divided(tmp_path):
    ratio = {"median": 4.0, "low": 2.0, "high": 5.0, "n": 15}
    parts = {"steps, cnn, 128": {"ratios": {"a / b": ratio}}, "joules, cnn, 128": {}}
    (tmp_path / "gpu.json").write_text(json.dumps({"parts": parts}))
    for slow, fast, speeds in (("a", "b", [4, 2, 5]), ("b", "a", [0.25, 0.2, 0.5])):
        (row,) = pictures.on_gpu(tmp_path / "gpu.json", slow, fast).to_numpy().tolist()
        assert row == ["cnn, 128 rows", *speeds]


def test_a_line_by_size_for_each_method_on_logarithmic_axes():
    rows = [
        {"method": name, "samples": size, "speed": speed * size}
        for name, speed in (("batch", 0.9), ("loop", 1.0))
        for size in (1, 20)
    ]
    (axis,) = figures.by_size(pd.DataFrame(rows), "samples", "speed", "times as fast").axes
    assert [each.get_label() for each in axis.lines] == ["batch", "loop"]
    assert axis.lines[0].get_xydata().tolist() == [[1, 0.9], [20, 18]]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "20"]
    assert axis.get_ylabel() == "times as fast"
