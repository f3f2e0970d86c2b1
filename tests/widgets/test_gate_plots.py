"""Pictures of a gate's work hold the thresholds and rates they were given."""

import numpy as np
import pandas as pd
import pytest

from astkit.widgets import plots


@pytest.fixture
def steps():
    return pd.DataFrame(
        [
            {"seed": seed, "step": step, "threshold": 2.0 / step, "rate": 0.1 * (step % 3) ** 2}
            for seed in (0, 1)
            for step in range(1, 61)
        ]
    )


def shade(axis, place=-1):
    """x, lowest and highest y of a shaded band at its corners."""
    points = axis.collections[place].get_paths()[0].vertices
    return {x: (y.min(), y.max()) for x, y in pd.DataFrame(points).groupby(0)[1]}


def legend(picture):
    return {text.get_text() for text in picture.legends[0].get_texts()}


def test_threshold_and_rate_draw_the_median_and_the_set_point(steps):
    later = steps.assign(threshold=steps["threshold"] * (1 + steps["seed"]))
    picture = plots.threshold_and_rate(later, 0.1, window=3)
    rate, threshold = picture.axes
    assert list(threshold.lines[0].get_ydata()) == pytest.approx([3 / s for s in range(1, 61)])
    assert shade(threshold)[2] == pytest.approx((1.05, 1.95))  # 5 and 95 % between 1 and 2
    assert threshold.get_yscale() == "log"  # it falls sixtyfold
    assert len(rate.lines) == 2
    assert list(rate.lines[0].get_ydata())[:2] == pytest.approx([0.1, 0.25])
    assert rate.lines[0].get_ydata()[-1] == pytest.approx(0.5 / 3)  # of 0.1, 0.4 and 0
    assert set(rate.lines[1].get_ydata()) == {0.1}
    assert legend(picture) == {"this run", "set point 0.1", "set point ±20%"}
    assert "mean of the last 3 batches" in rate.get_title()
    assert picture.get_suptitle() == "median of 2 seeds, shaded from 5 % to 95 %"


def test_a_set_point_that_moves_is_drawn_in_steps_with_its_band(steps):
    moved = steps.assign(target_rate=np.where(steps["step"] < 30, 0.1, 0.25))
    picture = plots.threshold_and_rate(moved)
    axis = picture.axes[0]
    line = axis.lines[-1]
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == list(range(1, 61))
    assert list(line.get_ydata()) == [0.1] * 29 + [0.25] * 31
    assert shade(axis)[10] == pytest.approx((0.08, 0.12))
    assert shade(axis)[30] == pytest.approx((0.08, 0.3))  # the edge of the step
    assert shade(axis)[40] == pytest.approx((0.2, 0.3))
    assert "set point" in legend(picture)


def test_controllers_are_curves_beside_the_shock_and_the_stream(steps):
    both = [steps.assign(controller=name, stream="a jump") for name in ("slow", "fast")]
    picture = plots.threshold_and_rate(pd.concat(both), 0.1, window=1, shock=5)
    rate, threshold = picture.axes
    assert [line.get_label() for line in threshold.lines[:2]] == ["slow", "fast"]
    assert all(set(axis.lines[-1].get_xdata()) == {5} for axis in picture.axes)
    assert legend(picture) >= {"slow", "fast", "shock at step 5"}
    # matplotlib calls every dash pattern of its own "--"
    assert len({str(line._unscaled_dash_pattern) for line in rate.lines[:2]}) == 2
    assert picture.get_suptitle().startswith("a jump: median of 2 seeds")


def test_a_threshold_without_end_does_not_hide_the_others(steps):
    steps["threshold"] = steps["threshold"].clip(1.0)
    steps.loc[3, "threshold"] = np.inf  # as where the quota of a batch is no row
    axis = plots.threshold_and_rate(steps, 0.1).axes[1]
    assert axis.get_yscale() == "linear"
    assert np.isfinite(axis.get_ylim()).all()


def test_a_long_run_is_drawn_in_windows_of_equal_length():
    steps = [{"step": s, "threshold": float(s), "rate": 0.1} for s in range(1000)]
    line = plots.threshold_and_rate(steps, 0.1, window=1).axes[1].lines[0]
    assert list(line.get_xdata()) == list(range(0, 1000, 4))
    assert list(line.get_ydata())[:2] == [1.5, 5.5]
