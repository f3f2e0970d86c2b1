"""Figures hold the data they were given and show themselves in a notebook."""

import subprocess
import sys

import pandas as pd
import pytest

from astkit.widgets import plots


@pytest.fixture
def steps():
    return pd.DataFrame(
        [
            {"seed": seed, "step": step, "threshold": 2.0 / step, "rate": 0.1 * (step % 3)}
            for seed in (0, 1)
            for step in range(1, 61)
        ]
    )


@pytest.fixture
def epochs():
    passes = [(arm, s, e) for arm in ("dense", "batched gate") for s in (0, 1) for e in (1, 2, 3)]
    table = pd.DataFrame(passes, columns=["arm", "seed", "epoch"])
    return table.assign(
        seconds=table["epoch"] + table["seed"],
        flops=10.0 * table["epoch"],
        val_accuracy=table["epoch"] / 10,
    )


def test_threshold_and_rate_draw_each_seed_and_the_set_point(steps):
    left, right = plots.threshold_and_rate(steps, 0.1, window=3).axes
    assert [list(line.get_ydata()) for line in left.lines] == [
        list(run["threshold"]) for _, run in steps.groupby("seed")
    ]
    assert left.get_yscale() == "log"  # it falls sixtyfold
    assert len(right.lines) == 5  # rate and mean of each of two seeds, set point
    assert set(right.lines[-1].get_ydata()) == {0.1}
    assert right.lines[1].get_ydata()[-1] == pytest.approx(0.1)  # the mean of 0, 0.1 and 0.2


def test_accuracy_against_cost_draws_means_over_seeds(epochs):
    left, right = plots.accuracy_against_cost(epochs).axes
    assert list(left.lines[0].get_xdata()) == [1.5, 2.5, 3.5]
    assert list(right.lines[1].get_xdata()) == [10, 20, 30]
    assert list(right.lines[1].get_ydata()) == pytest.approx([0.1, 0.2, 0.3])
    assert [line.get_label() for line in left.lines] == ["dense", "batched gate"]


def test_arms_are_told_apart_without_colour(epochs):
    axis = plots.accuracy_against_cost(epochs).axes[0]
    assert len({(line.get_linestyle(), line.get_marker()) for line in axis.lines}) == 2


def test_arms_can_be_chosen_and_ordered(epochs):
    axis = plots.accuracy_against_cost(epochs, ["batched gate"]).axes[0]
    assert [line.get_label() for line in axis.lines] == ["batched gate"]


def test_a_figure_shows_itself_and_leaves_pyplot_alone(steps):
    assert plots.threshold_and_rate(steps, 0.1)._repr_png_().startswith(b"\x89PNG")
    code = "import sys, astkit.widgets.plots; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
