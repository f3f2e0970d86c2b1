"""Figures of a comparison: what is drawn where, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from astkit.widgets import comparison_plots as plots
from astkit.widgets.style import SOFT, line

LOSSES = {"dense": (26.0, 25.0, 27.0), "random at 0.0773": (20.0, 21.0, 22.0), "aim": (2.0, 2.2)}
BESIDE = {
    "random at 0.0773": {"gap": "19 % lower", "ends": [20.5, 21.5]},
    "aim": {"gap": "92 % lower", "ends": [-1.0, 3.0], "words": "better", "bold": True},
}


def values(losses=LOSSES, beside=BESIDE, quantity="loss", **others):
    runs = [
        {"arm": arm, "seed": seed, "value": value}
        for arm, of_seeds in losses.items()
        for seed, value in enumerate(of_seeds)
    ]
    return plots.values_by_method(runs, beside, quantity, **others)


def drawn(axis, **look):
    """The data of the lines that have this look."""
    found = [
        each for each in axis.lines if all(getattr(each, f"get_{k}")() == look[k] for k in look)
    ]
    return [each.get_data() for each in found]


def test_each_run_is_a_dot_in_its_unit_and_lines_join_those_of_a_seed():
    axis = values(higher=False).axes[0]
    names = [tick.get_text() for tick in axis.get_yticklabels()]
    assert names == ["dense training", "random at 0.077", "aim"]
    for (x, y), (place, losses) in zip(
        drawn(axis, marker="o"), enumerate(LOSSES.values()), strict=True
    ):
        assert list(x[np.isfinite(x)]) == list(losses)
        assert set(y) == {place}
    joined = [list(x) for x, _ in drawn(axis, color=plots.JOINED)]
    assert joined == [[26.0, 20.0, 2.0], [25.0, 21.0, 2.2], [27.0, 22.0]]
    bars = [x[0] for x, y in drawn(axis, linewidth=3.5)]
    assert bars == pytest.approx([26.0, 21.0, 2.1])
    assert [list(x) for x, _ in drawn(axis, linestyle=":")] == [[26.0, 26.0]]
    assert axis.get_ylim() == (2.6, -0.6)  # the first on top
    colours = [each.get_color() for each in axis.lines if each.get_marker() == "o"]
    assert colours == [line("dense")["color"], SOFT, line("aim")["color"]]


def test_differences_and_outcomes_are_written_beside_the_rows():
    axis = values(higher=False).axes[0]
    written = {text.get_text(): text for text in axis.texts if text.get_text()}
    assert list(written) == ["26.0", "21.0", "19 % lower", "2.10", "92 % lower", "better"]
    assert written["92 % lower"].get_weight() == written["2.10"].get_weight() == "bold"
    assert written["19 % lower"].get_weight() == "normal"


@pytest.mark.parametrize("higher", [True, False])
def test_the_axis_is_logarithmic_where_values_differ_by_more_than_3_times(higher):
    far, near = values(higher=higher).axes[0], values({"dense": (26.0,), "x": (9.0,)}).axes[0]
    assert (far.get_xscale(), near.get_xscale()) == ("log", "linear")
    assert not far.xaxis_inverted()
    word = "higher" if higher else "lower"
    assert far.get_xlabel() == f"test loss, logarithmic, {word} is better"
    shares = values({"dense": (10.0,), "x": (97.0,)}, quantity="accuracy (%)").axes[0]
    assert shares.get_xscale() == "linear"  # the ends that matter would be squeezed
    assert values({"dense": (-1.0,), "x": (9.0,)}).axes[0].get_xscale() == "linear"


@pytest.mark.parametrize("others", [{}, {"dense": (26.0, 24.0), "aim": (23.0, 22.0)}])
def test_wide_intervals_run_to_the_edge_of_the_axis(others):
    wide = {"aim": {**BESIDE["aim"], "ends": [-900.0, 30.0]}}
    figure = values(others or LOSSES, wide)
    (axis,) = figure.axes
    ((x, _),) = drawn(axis, linewidth=1.2, color=line("aim")["color"])
    assert list(x) == [-900.0, 30.0]
    low, high = axis.get_xlim()
    assert low > -900.0
    assert high > 30.0
    for x, _ in drawn(axis, marker="o"):  # every run is shown
        assert low < np.nanmin(x) <= np.nanmax(x) < high
    assert figure.png()


def test_methods_that_have_no_run_yet_have_their_place():
    figure = values({"dense": (26.0,)}, {}, names=["dense", "both", "aim"])
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names == ["dense training", "both", "aim"]
    assert "interval" not in figure.get_supxlabel()


@pytest.mark.parametrize(
    ("mean", "means", "words"),
    [
        (26.21, (26.21, 1.46), "26.2"),
        (1.46, (26.21, 1.46), "1.46"),
        (97.84, (97.84, 97.79), "97.84"),
        (13451.2, (13451.2, 13020.0), "13,451"),
        (0.00213, (0.00213, 0.1), "0.00213"),
        (0.0, (0.0, 0.0), "0"),
    ],
)
def test_numbers_have_the_digits_that_tell_them_apart(mean, means, words):
    assert plots.in_digits(mean, means) == words


def test_curves_are_means_with_bands():
    share, rows = np.array([0.2, 0.5, 1.0]), []
    for arm, final, cost in (
        ("dense", 0.8, 1.0),
        ("infobatch", 0.9, 1.5),
        ("random at 0.3", 0.7, 1),
    ):
        spent = pd.DataFrame({"arm": arm, "FLOPs": cost * share, "time": 2 * cost * share})
        rows += [spent.assign(seed=s, value=(final + 0.02 * s) * share) for s in range(2)]
    figure = plots.values_by_cost(pd.concat(rows), "accuracy")
    for axis, name, scale in zip(figure.axes, ("FLOPs", "time"), (1, 2), strict=True):
        assert axis.get_xlabel() == f"{name}, as a share of dense training"
        drawn = {each.get_label(): each.get_data() for each in axis.lines}
        assert list(drawn) == ["dense training", "infobatch", "random at 0.3"]
        x, y = drawn["infobatch"]
        assert list(x) == pytest.approx([0.3 * scale, 0.75 * scale, 1.5 * scale])
        assert list(y) == pytest.approx([0.182, 0.455, 0.91])
        ends = axis.collections[1].get_paths()[0].vertices
        assert ends[:, 1].max() == pytest.approx(0.92)
    assert figure.get_suptitle() == "mean of 2 seeds, shaded to the extremes"
    low, high = figure.axes[0].get_ylim()
    assert low < 0.14 < 0.92 < high  # whole curves: no difference is made large by a zoom
    unknown = pd.concat(rows).assign(FLOPs=None)
    assert len(plots.values_by_cost(unknown).axes) == 1
