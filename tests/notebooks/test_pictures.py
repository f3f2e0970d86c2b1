"""The figures beside the notebooks: what is drawn where."""

import importlib.util

import numpy as np
import pandas as pd
import pytest

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


def test_learning_shows_the_mean_over_seeds_and_the_marks():
    curves = pd.DataFrame(
        {"model": "lattice", "seed": [0, 1], "step": [10, 10], "val_mrr": [0.2, 0.4]}
    )
    axis = figures.learning(curves, {"ridge": 0.39}).axes[0]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([0.3])
    assert axis.lines[1].get_ydata() == [0.39, 0.39]
    assert [text.get_text() for text in axis.texts] == ["ridge"]
    assert axis.get_title() == "MRR on validation data: mean of 2 seeds and their range"


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
