"""Curves and costs: the pictures hold the means, bands and parts of the table they were given."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from astkit.widgets import plots
from astkit.widgets.style import COLOURS

ARMS = ("dense", "batched gate", "random")


@pytest.fixture
def epochs():
    passes = [(arm, s, e) for arm in ARMS[:2] for s in (0, 1) for e in (1, 2, 3)]
    table = pd.DataFrame(passes, columns=["arm", "seed", "epoch"])
    return table.assign(
        seconds=table["epoch"] + table["seed"],
        flops=10.0 * table["epoch"],
        val_accuracy=table["epoch"] / 10 + 0.02 * table["seed"],
        val_loss=1.0 / table["epoch"] + table["seed"],
    )


@pytest.fixture
def results():
    costs = {
        "dense": (0.0, 10.0, 20.0),
        "batched gate": (8.0, 1.0, 2.0),
        "random": (0.0, 4.0, 38.0),
    }
    rows = [(arm, seed, *(part + seed for part in costs[arm])) for arm in ARMS for seed in (0, 2)]
    columns = ["arm", "seed", "flops_scoring", "flops_forward", "flops_backward"]
    return pd.DataFrame(rows, columns=columns)


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def bands(axis):
    """Lowest and highest y of each shaded band by x."""
    found = []
    for shade in axis.collections:
        points = shade.get_paths()[0].vertices
        x = np.unique(points[:, 0])
        ys = [points[points[:, 0] == at, 1] for at in x]
        found.append([(at, y.min(), y.max()) for at, y in zip(x, ys, strict=True)])
    return found


def test_curves_hold_the_mean_of_the_seeds_and_the_band_all_of_them(epochs):
    picture = plots.training_curves(epochs)
    loss, accuracy = picture.axes
    for line in loss.lines:
        assert list(line.get_xdata()) == [1, 2, 3]
        assert list(line.get_ydata()) == pytest.approx([1.5, 1.0, 1 / 3 + 0.5])
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([0.11, 0.21, 0.31])
    assert len(bands(loss)) == len(bands(accuracy)) == 2
    expected = [(1, 1, 2), (2, 0.5, 1.5), (3, 1 / 3, 4 / 3)]
    assert np.allclose(bands(loss)[0], expected)
    assert np.allclose(bands(accuracy)[1], [(e, e / 10, e / 10 + 0.02) for e in (1, 2, 3)])
    assert [axis.get_title() for axis in picture.axes] == ["validation loss", "validation accuracy"]
    assert legend(picture) == ["dense", "batched gate"]
    words = "mean of 2 seeds, shaded from the lowest to the highest"
    assert picture.get_suptitle() == words


def test_one_seed_is_no_mean(epochs):
    assert plots.training_curves(epochs[epochs["seed"] == 0]).get_suptitle() == ""
    assert plots.accuracy_against_cost(epochs[epochs["seed"] == 0]).get_suptitle() == ""
    assert plots.accuracy_against_cost(epochs).get_suptitle() == "mean of 2 seeds"


@pytest.mark.parametrize(
    ("by", "x", "label"),
    [
        ("flops", [10, 20, 30], "training FLOPs"),
        ("seconds", [1.5, 2.5, 3.5], "training seconds"),
        ("epoch", [1, 2, 3], "epoch"),
    ],
)
def test_curves_can_be_drawn_against_each_cost(epochs, by, x, label):
    for axis in plots.training_curves(epochs, by).axes:
        assert list(axis.lines[0].get_xdata()) == x
        assert axis.get_xlabel() == label
    needless = {"flops", "seconds"} - {by}
    plots.training_curves(epochs.drop(columns=list(needless)), by)


def test_an_unknown_cost_is_refused(epochs):
    with pytest.raises(ValueError, match="by is 'joules': choose one of epoch, flops, seconds"):
        plots.training_curves(epochs, "joules")


def test_a_pass_cut_short_comes_after_the_whole_ones():
    rows = [
        {"epoch": e, "val_loss": 1.0, "val_accuracy": a} for e, a in ((1, 0.1), (2, 0.2), (2, 0.3))
    ]
    line = plots.training_curves(rows).axes[1].lines[0]
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == [0.1, 0.2, 0.3]


def test_a_pass_that_one_seed_did_not_reach_is_that_of_the_other(epochs):
    shorter = epochs.drop(epochs[(epochs["seed"] == 1) & (epochs["epoch"] == 3)].index)
    line = plots.training_curves(shorter).axes[0].lines[0]
    assert list(line.get_ydata()) == pytest.approx([1.5, 1.0, 1 / 3])


def test_accuracy_against_cost_draws_means_over_seeds(epochs):
    left, right = plots.accuracy_against_cost(epochs).axes
    assert list(left.lines[0].get_xdata()) == [1.5, 2.5, 3.5]
    assert list(right.lines[1].get_xdata()) == [10, 20, 30]
    assert list(right.lines[1].get_ydata()) == pytest.approx([0.11, 0.21, 0.31])
    assert [line.get_label() for line in left.lines] == ["dense", "batched gate"]
    assert (left.get_xscale(), right.get_xscale()) == ("log", "log")


def test_arms_are_told_apart_without_colour(epochs):
    for draw in (plots.accuracy_against_cost, plots.training_curves):
        axis = draw(epochs).axes[0]
        assert len({line.get_linestyle() for line in axis.lines}) == 2
        assert len({line.get_marker() for line in axis.lines}) == 2


def test_of_twins_on_one_curve_the_later_is_thinner(epochs):
    first, second = plots.accuracy_against_cost(epochs).axes[1].lines
    assert list(first.get_ydata()) == list(second.get_ydata())
    assert first.get_linewidth() > second.get_linewidth()
    assert first.get_markersize() > second.get_markersize()


def test_arms_can_be_chosen_and_ordered_and_keep_their_colour(epochs):
    for draw in (plots.accuracy_against_cost, plots.training_curves):
        axis = draw(epochs, arms=["batched gate"]).axes[0]
        assert [line.get_label() for line in axis.lines] == ["batched gate"]
        assert axis.lines[0].get_color() == COLOURS[1]
        turned = draw(epochs, arms=["batched gate", "dense"])
        assert legend(turned) == ["batched gate", "dense"]


def test_the_last_point_is_marked_however_many_there_are():
    rows = [{"epoch": e, "val_loss": 1.0, "val_accuracy": 0.5} for e in range(40)]
    marked = plots.training_curves(rows).axes[0].lines[0].get_markevery()
    assert marked[-1] == 39
    assert 4 < len(marked) < 8


@pytest.mark.parametrize(("low", "stretched"), [(0.2, True), (0.75, False)])
def test_an_axis_from_low_to_high_is_stretched_and_says_so(low, stretched):
    accuracy = [low, 0.9, 0.99, 1.0]
    rows = [{"seconds": s, "flops": s, "val_accuracy": a} for s, a in enumerate(accuracy, start=1)]
    for axis in plots.accuracy_against_cost(rows).axes:
        assert ("stretched towards 1" in axis.get_ylabel()) == stretched
        place = axis.transData.transform([(1, a) for a in (0.8, 0.9, 0.98, 0.99, 1.0)])[:, 1]
        gaps = np.diff(place)
        assert np.all(gaps > 0)
        # a tenth of accuracy at the top takes more room than one below, or the same
        upper, lower = place[4] - place[1], place[1] - place[0]
        assert (upper > 1.5 * lower) == stretched
        assert list(axis.lines[0].get_ydata()) == accuracy
        bottom, top = axis.get_ylim()
        assert bottom <= low < 1.0 <= top


def stacks(axis):
    """Per label of the legend: (left, width) of each row's bar."""
    return {
        group.get_label(): [(bar.get_x(), bar.get_width()) for bar in group]
        for group in axis.containers
    }


def test_bars_stack_the_parts_up_to_the_dense_total(results):
    picture = plots.cost_breakdown(results)
    (axis,) = picture.axes
    assert stacks(axis) == {
        "scoring": [(0, 1), (0, 9), (0, 1)],
        "forward": [(1, 11), (9, 2), (1, 5)],
        "backward": [(12, 21), (11, 3), (6, 39)],
        "not spent, up to dense": [(33, 0), (14, 19), (45, 0)],
    }
    assert [tick.get_text() for tick in axis.get_yticklabels()] == list(ARMS)
    assert [text.get_text().strip() for text in axis.texts] == ["1.00 ×", "0.42 ×", "1.36 ×"]
    assert legend(picture) == list(stacks(axis))
    assert axis.get_xlabel() == "FLOPs, 2 per multiply-add"
    picture.canvas.draw()
    heights = [axis.transData.transform((0, place))[1] for place in range(3)]
    assert heights == sorted(heights, reverse=True)  # the first arm on top


def test_bars_are_told_apart_without_colour(results):
    groups = plots.cost_breakdown(results).axes[0].containers
    assert len({(group[0].get_facecolor(), group[0].get_hatch()) for group in groups}) == 4
    assert len({group[0].get_hatch() for group in groups}) == 3


def test_without_a_control_nothing_is_compared(results):
    axis = plots.cost_breakdown(results, ["random"], control=None).axes[0]
    assert set(stacks(axis)) == {"scoring", "forward", "backward"}
    assert stacks(axis)["scoring"] == [(0, 1)]
    assert not axis.texts


def test_the_control_counts_where_it_is_not_shown(results):
    axis = plots.cost_breakdown(results, ["batched gate"]).axes[0]
    assert stacks(axis)["not spent, up to dense"] == [(14, 19)]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({}, "the results hold none"),
        ({"joules": None}, "the results hold none"),
        ({"joules": math.nan, "joules_reason": "no counter here"}, "no counter here"),
    ],
)
def test_joules_that_were_not_measured_are_said_to_be(results, columns, reason):
    picture = plots.cost_breakdown(results.assign(**columns))
    assert picture.get_suptitle() == f"joules not measured: {reason}"
    assert len(picture.axes) == 1


def test_joules_that_were_measured_are_drawn_and_gaps_named(results):
    joules = results["arm"].map({"dense": 5.0, "batched gate": None, "random": 2.0})
    picture = plots.cost_breakdown(results.assign(joules=joules + results["seed"]))
    energy = picture.axes[1]
    assert [bar.get_width() for bar in energy.patches] == [6, 0, 3]
    assert [text.get_text().strip() for text in energy.texts] == ["6 J", "not measured", "3 J"]
    assert energy.get_xlabel() == "joules"
    assert "not measured" not in picture.get_suptitle()
