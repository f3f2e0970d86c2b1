"""Figures of a comparison: what is drawn where, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from astkit.widgets import comparison_plots as plots
from astkit.widgets.style import PAPER, SOFT, line

FOREST = [
    {"arm": "random at 0.30", "against": "dense", "mean": -0.5, "low": -0.9, "high": -0.1, "n": 5},
    {"arm": "infobatch", "against": "dense", "mean": 0.4, "low": -0.3, "high": 1.1, "n": 5},
    {"arm": "infobatch", "against": "random", "mean": 0.9, "low": 0.2, "high": 1.6, "n": 3},
    {"arm": "gate(0.25)", "against": "dense", "mean": -2.0, "low": np.nan, "high": np.nan, "n": 1},
]
OUTCOMES = {"random at 0.30": "", "infobatch": "cannot tell yet", "gate(0.25)": "worse"}


def forest(rows=(), **others):
    shown = [{**row, "outcome": OUTCOMES.get(row["arm"], "")} for row in [*FOREST, *rows]]
    return plots.differences(shown, **others)


def segment(bar):
    (ends,) = bar.lines[2][0].get_segments()
    return ends[:, 0] if ends.size else ends


def curves(arm, final, cost=1.0):
    share = np.array([0.2, 0.5, 1.0])
    spent = pd.DataFrame({"arm": arm, "flops": cost * share, "seconds": 2 * cost * share})
    runs = [spent.assign(seed=seed, value=(final + 0.02 * seed) * share) for seed in range(2)]
    return pd.concat(runs)


def test_a_forest_plot_has_a_row_for_each_method_and_its_outcome():
    axis = forest().axes[0]
    assert axis.lines[0].get_xdata() == [0, 0]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == list(OUTCOMES)
    (right,) = axis.child_axes
    assert [tick.get_text() for tick in right.get_yticklabels()] == list(OUTCOMES.values())
    bars = {bar.lines[0].get_xdata()[0]: bar for bar in axis.containers}
    assert list(bars) == [-0.5, 0.4, 0.9, -2.0]
    for row in FOREST[:3]:
        assert segment(bars[row["mean"]]) == pytest.approx([row["low"], row["high"]])
    assert segment(bars[-2.0]).size == 0  # one seed: a point without an interval
    random, policy, to_random = (bars[mean].lines[0] for mean in (-0.5, 0.4, 0.9))
    assert policy.get_color() == to_random.get_color() == line("infobatch")["color"]
    assert (policy.get_markerfacecolor(), to_random.get_markerfacecolor()) == (
        line("infobatch")["color"],
        PAPER,
    )
    assert random.get_color() == SOFT
    assert random.get_ydata()[0] < policy.get_ydata()[0] < to_random.get_ydata()[0] < 1.5
    assert axis.get_ylim() == (2.5, -0.5)  # the first on top
    title = "test accuracy against dense training and random samples, 1 to 5 seeds, 95 % intervals"
    assert axis.get_title() == title


@pytest.mark.parametrize("higher", [True, False])
def test_better_is_to_the_right_and_what_lies_far_outside_is_an_arrow(higher):
    ends = {"mean": -44.0, "low": -46.0, "high": -41.0}
    if not higher:
        ends = {"mean": 44.0, "low": 41.0, "high": 46.0}
    far = {"arm": "rho", "against": "dense", **ends, "n": 5}
    wide = {"arm": "seta", "against": "dense", "mean": 1.0, "low": -30.0, "high": 32.0, "n": 2}
    (axis,) = forest([far, wide], quantity="loss", higher=higher).axes
    limit = plots.WIDEST * np.median([0.9, 1.1, 1.6, 2.0, 32.0, 46.0])
    (arrow,) = axis.texts
    assert arrow.get_text() == ("◀ -44" if higher else "◀ 44")
    assert arrow.get_ha() == "left"
    assert arrow.get_position() == pytest.approx((-limit if higher else limit, 2.86))
    assert segment(axis.containers[1]) == pytest.approx([FOREST[1]["low"], FOREST[1]["high"]])
    assert segment(axis.containers[-1]) == pytest.approx([-limit, limit])
    found = [each for each in axis.lines if len(each.get_xdata()) == 1]
    arrows = {each.get_marker(): each.get_xdata()[0] for each in found}
    cut = (arrows["<"], arrows[">"])
    assert cut == pytest.approx((-limit, limit) if higher else (limit, -limit))
    assert sorted(axis.get_xlim()) == pytest.approx((-1.08 * limit, 1.08 * limit))
    assert axis.xaxis_inverted() == (not higher)
    assert axis.get_xlabel() == "difference of loss, better to the right"


def test_curves_are_means_with_bands_and_the_final_value_of_dense():
    rows = [curves("dense", 0.8), curves("infobatch", 0.9, cost=1.5), curves("random at 0.3", 0.7)]
    figure = plots.values_by_cost(pd.concat(rows), "accuracy", rows=143)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["validation accuracy against FLOPs", "validation accuracy against time"]
    for axis, scale in zip(figure.axes, (1, 2), strict=True):
        drawn = {each.get_label(): each for each in axis.lines}
        x, y = drawn["infobatch"].get_data()
        assert (x[0], x[-1]) == pytest.approx((0.3 * scale, 1.5 * scale))
        assert (y[0], y[-1]) == pytest.approx((0.182, 0.91))
        assert np.allclose(y, 0.91 * x / (1.5 * scale))
        assert drawn["final value of dense"].get_ydata() == pytest.approx([0.81, 0.81])
        assert drawn["random at 0.3"].get_color() == SOFT
        assert len(axis.collections) == 2  # no band of the random control
        ends = axis.collections[1].get_paths()[0].vertices
        assert ends[:, 1].max() == pytest.approx(0.92)
        assert (ends[:, 0].min(), ends[:, 0].max()) == pytest.approx((0.3 * scale, 1.5 * scale))
    words = "143 validation rows: mean of 2 seeds, shaded from the lowest to the highest"
    assert figure.get_suptitle() == words
    low, high = figure.axes[0].get_ylim()
    assert low < 0.14 < 0.92 < high  # whole curves: no difference is made large by a zoom
