"""Figures of a comparison: what is drawn where, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from astkit.widgets import comparison_plots as plots
from astkit.widgets.style import PAPER, SOFT, line

FOREST = [
    {"arm": "infobatch", "against": "dense", "mean": 0.4, "low": -0.3, "high": 1.1},
    {"arm": "infobatch", "against": "random", "mean": 0.9, "low": 0.2, "high": 1.6},
    {"arm": "gate(0.25)", "against": "dense", "mean": -2.0, "low": np.nan, "high": np.nan},
]
OUTCOMES = {"infobatch": "undecided", "gate(0.25)": "costs"}


def forest(**others):
    return plots.differences([{**row, "outcome": OUTCOMES[row["arm"]]} for row in FOREST], **others)


def curves(arm, final, cost=1.0, seeds=2):
    shares = np.array([0.2, 0.5, 1.0]) * cost
    ends = [final + 0.02 * seed for seed in range(seeds)]
    return [
        {
            "arm": arm,
            "seed": seed,
            "flops": share,
            "seconds": 2 * share,
            "value": end * share / cost,
        }
        for seed, end in enumerate(ends)
        for share in shares
    ]


@pytest.fixture(scope="module")
def figure():
    rows = [
        *curves("dense", 0.8),
        *curves("infobatch", 0.9, cost=1.5),
        *curves("random at 0.3", 0.7),
    ]
    reached = [{"arm": "infobatch", "flops": 0.9, "seconds": np.nan}]
    return plots.cost_to_reach(rows, reached, "accuracy")


def test_a_forest_plot_has_a_row_for_each_policy_and_its_outcome():
    axis = forest().axes[0]
    assert axis.lines[0].get_xdata() == [0, 0]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == list(OUTCOMES)
    (right,) = axis.child_axes
    assert [tick.get_text() for tick in right.get_yticklabels()] == list(OUTCOMES.values())
    bars = {bar.lines[0].get_xdata()[0]: bar for bar in axis.containers}
    assert list(bars) == [0.4, 0.9, -2.0]
    for row in FOREST[:2]:
        (segment,) = bars[row["mean"]].lines[2][0].get_segments()
        assert segment[:, 0] == pytest.approx([row["low"], row["high"]])
    (segment,) = bars[-2.0].lines[2][0].get_segments()  # one seed: a point without an interval
    assert segment.size == 0
    policy, random = (bars[mean].lines[0] for mean in (0.4, 0.9))
    assert (policy.get_color(), policy.get_marker()) == (
        line("infobatch")["color"],
        line("infobatch")["marker"],
    )
    assert (random.get_color(), random.get_markerfacecolor()) == (SOFT, PAPER)
    assert policy.get_ydata()[0] < random.get_ydata()[0] < 0.5
    assert axis.get_ylim() == (1.5, -0.5)  # the first on top


def test_better_is_to_the_right_in_both_directions():
    for higher, word in ((True, "difference"), (False, "reduction")):
        axis = forest(quantity="loss", higher=higher).axes[0]
        sign = 1 if higher else -1
        assert axis.containers[0].lines[0].get_xdata() == pytest.approx([sign * FOREST[0]["mean"]])
        (segment,) = axis.containers[0].lines[2][0].get_segments()
        ends = sorted(sign * FOREST[0][end] for end in ("low", "high"))
        assert segment[:, 0] == pytest.approx(ends)
        assert axis.get_xlabel() == f"{word} of loss, better to the right"


def test_curves_are_means_with_bands_and_the_final_value_of_dense(figure):
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["validation accuracy against FLOPs", "validation accuracy against seconds"]
    for axis, scale in zip(figure.axes, (1, 2), strict=True):
        drawn = {each.get_label(): each for each in axis.lines}
        x, y = drawn["infobatch"].get_data()
        assert (x[0], x[-1]) == pytest.approx((0.3 * scale, 1.5 * scale))
        assert (y[0], y[-1]) == pytest.approx((0.182, 0.91))
        assert np.allclose(y, 0.91 * x / (1.5 * scale))
        assert drawn["dense's final value"].get_ydata() == pytest.approx([0.81, 0.81])
        assert drawn["random at 0.3"].get_color() == SOFT
        assert len(axis.collections) == 2  # no band of the random control
        ends = axis.collections[1].get_paths()[0].vertices
        assert ends[:, 1].max() == pytest.approx(0.92)
        low, high = axis.get_ylim()
        assert 0 < low < 0.81 < 0.92 < high < 1
    assert figure.get_suptitle() == "mean of 2 seeds, shaded from the lowest to the highest"


def test_where_a_policy_reaches_dense_is_marked_on_denses_value(figure):
    first, second = figure.axes
    (mark,) = (each for each in first.lines if each.get_xdata()[0] == 0.9)
    assert mark.get_ydata() == pytest.approx([0.81])
    assert to_hex(mark.get_color()) == line("infobatch")["color"].lower()
    assert [
        bool("it is reached" in axis.get_legend_handles_labels()[1]) for axis in (first, second)
    ] == [True, False]
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == ["infobatch", "dense", "random at 0.3"]
    assert set(texts[3:]) == {"dense's final value", "it is reached"}


def test_only_measured_costs_are_drawn():
    rows = pd.DataFrame([*curves("dense", 0.8, seeds=1), *curves("$x$", 0.9, seeds=1)])
    rows["seconds"] = None
    figure = plots.cost_to_reach(rows, [{"arm": "$x$", "flops": 0.9}], "loss")
    assert [axis.get_ylabel() for axis in figure.axes] == ["validation loss"]
    assert figure.get_suptitle() == ""
    figure.png()  # dollar signs are no formula
    rows["flops"] = np.nan
    refused = {
        "cost_to_reach needs a column flops or seconds without gaps": lambda: plots.cost_to_reach(
            rows, [{"arm": "$x$"}]
        ),
        "differences needs the columns low, high": lambda: plots.differences(
            [{"arm": "a", "against": "dense", "mean": 1, "outcome": "pays"}]
        ),
        "differences was given the same arm and against twice": lambda: plots.differences(
            [{**FOREST[0], "outcome": "pays"}] * 2
        ),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
