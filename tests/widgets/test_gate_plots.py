"""Pictures of a gate's work hold the thresholds, rates, scores and classes they were given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from astkit import models
from astkit.datasets import Loader, load
from astkit.gating import Gate
from astkit.trainers import Budget, GatedStep, Trainer, Watch
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


@pytest.fixture
def responses():
    return pd.DataFrame(
        [
            {
                "controller": name,
                "seed": seed,
                "step": step,
                "rate": 0.1 + 0.01 * seed + (0.3 if step == 5 else 0),
                "threshold": 1.0 + seed,
                "target": 0.1 if step < 5 else 0.2,
            }
            for name in ("slow", "fast")
            for seed in (0, 2)
            for step in range(1, 11)
        ]
    )


def shade(axis, place=-1):
    """x, lowest and highest y of a shaded band at its corners."""
    points = axis.collections[place].get_paths()[0].vertices
    return {x: (y.min(), y.max()) for x, y in pd.DataFrame(points).groupby(0)[1]}


def labels(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_threshold_and_rate_draw_each_seed_and_the_set_point(steps):
    left, right = plots.threshold_and_rate(steps, 0.1, window=3).axes
    assert [list(line.get_ydata()) for line in left.lines] == [
        list(run["threshold"]) for _, run in steps.groupby("seed")
    ]
    assert left.get_yscale() == "log"  # it falls sixtyfold
    assert len(right.lines) == 5  # rate and mean of each of two seeds, set point
    assert set(right.lines[-1].get_ydata()) == {0.1}
    assert right.lines[1].get_ydata()[-1] == pytest.approx(0.5 / 3)  # of 0.1, 0.4 and 0
    assert labels(left) == ["seed 0", "seed 1"]
    assert labels(right) == ["within ±20% of it", "set point 0.1"]
    assert "mean of 3 batches" in right.get_title()


def test_the_settling_band_lies_around_the_set_point(steps):
    axis = plots.threshold_and_rate(steps, 0.5, tolerance=0.1).axes[1]
    assert all(y == pytest.approx((0.45, 0.55)) for y in shade(axis).values())
    assert set(shade(axis)) == set(range(1, 61))
    assert labels(axis)[0] == "within ±10% of it"


def test_a_set_point_that_moves_is_drawn_in_steps(steps):
    moved = steps.assign(target_rate=np.where(steps["step"] < 30, 0.1, 0.25))
    axis = plots.threshold_and_rate(moved, 0.7).axes[1]  # the steps know better
    line = axis.lines[-1]
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == list(range(1, 61))
    assert list(line.get_ydata()) == [0.1] * 29 + [0.25] * 31
    assert shade(axis)[10] == pytest.approx((0.08, 0.12))
    assert shade(axis)[30] == pytest.approx((0.08, 0.3))  # the edge of the step
    assert shade(axis)[40] == pytest.approx((0.2, 0.3))
    assert labels(axis)[1] == "set point"


def test_without_any_set_point_it_is_asked_for(steps):
    for table in (steps, steps.assign(target_rate=None)):
        with pytest.raises(ValueError, match="pass the set point as target"):
            plots.threshold_and_rate(table)
        plots.threshold_and_rate(table, 0.1)


def test_set_points_that_differ_between_runs_are_refused(steps):
    with pytest.raises(ValueError, match="target_rate differs between runs"):
        plots.threshold_and_rate(steps.assign(target_rate=0.1 + steps["seed"]))


def test_a_threshold_without_end_does_not_hide_the_others(steps):
    steps["threshold"] = steps["threshold"].clip(1.0)
    steps.loc[3, "threshold"] = np.inf  # as where the quota of a batch is no row
    axis = plots.threshold_and_rate(steps, 0.1).axes[0]
    assert axis.get_yscale() == "linear"
    assert np.isfinite(axis.get_ylim()).all()


def test_responses_hold_means_bands_set_point_and_shock(responses):
    picture = plots.step_response(responses, shock=5)
    rate, threshold = picture.axes
    assert [line.get_label() for line in threshold.lines[:2]] == ["slow", "fast"]
    for line in rate.lines[:2]:
        assert list(line.get_xdata()) == list(range(1, 11))
        assert list(line.get_ydata()) == pytest.approx([0.11] * 4 + [0.41] + [0.11] * 5)
    assert list(threshold.lines[0].get_ydata()) == [2.0] * 10
    assert shade(rate, 0)[1] == pytest.approx((0.1, 0.12))
    assert shade(threshold, 1)[7] == pytest.approx((1.0, 3.0))
    assert list(rate.lines[2].get_ydata()) == [0.1] * 4 + [0.2] * 6
    assert shade(rate, 2)[8] == pytest.approx((0.16, 0.24))
    for axis in picture.axes:
        assert set(axis.lines[-1].get_xdata()) == {5}
    named = {text.get_text() for text in picture.legends[0].get_texts()}
    assert named == {"slow", "fast", "set point", "within ±20% of it", "shock at step 5"}
    assert picture.get_suptitle() == "mean of 2 seeds, shaded from the lowest to the highest"
    assert len({line.get_linestyle() for line in rate.lines[:2]}) == 2


def test_responses_are_averaged_within_each_run_alone(responses):
    rate = plots.step_response(responses, window=2).axes[0]
    wanted = [0.11, 0.11, 0.11, 0.11, 0.26, 0.26, 0.11, 0.11, 0.11, 0.11]
    for line in rate.lines[:2]:
        assert list(line.get_ydata()) == pytest.approx(wanted)
    assert rate.get_title() == "activation rate, mean of 2 batches"


def test_controllers_can_be_chosen(responses):
    rate = plots.step_response(responses, controllers=["fast"]).axes[0]
    assert [line.get_label() for line in rate.lines] == ["fast", "set point"]


def heat(picture):
    mesh = picture.axes[0].collections[0]
    return np.asarray(mesh.get_array()).T, mesh.get_coordinates()  # [steps, bins], corners


LEVELS = tuple(np.linspace(0, 1, 21))


def scores(make, steps=range(1, 9), levels=LEVELS, threshold=0.8):
    return [
        {"step": s, "level": q, "score": make(s, q), "threshold": threshold}
        for s in steps
        for q in levels
    ]


def test_evenly_spread_scores_fill_their_cells_evenly():
    shares, corners = heat(plots.score_heatmap(scores(lambda s, q: q - 0.5), bins=10))
    assert shares.shape == (8, 10)
    assert np.allclose(shares, 0.1)
    assert np.allclose(corners[:, 0, 1], np.linspace(-0.5, 0.5, 11))
    assert list(corners[0, :, 0]) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_cells_hold_the_share_of_the_scores_between_their_edges():
    random = np.random.default_rng(0)
    batches = {s: np.sort(random.gamma(2.0, s, 200)) - 3 for s in range(1, 9)}
    levels = np.linspace(0, 1, 200)
    table = scores(lambda s, q: np.quantile(batches[s], q), levels=levels)
    shares, corners = heat(plots.score_heatmap(table, bins=12))
    edges = corners[:, 0, 1]
    assert np.allclose(shares.sum(axis=1), 1.0)
    for step, batch in batches.items():
        counted = np.histogram(batch, edges)[0] / 200
        assert np.abs(shares[step - 1] - counted).max() < 0.01  # a level lies between two samples


def test_wide_positive_scores_have_a_logarithmic_axis_and_zeros_its_lowest_row():
    table = scores(lambda s, q: 0.0 if q < 0.25 else 10 ** (4 * q - 3))
    picture = plots.score_heatmap(table, bins=10)
    shares, corners = heat(picture)
    assert picture.axes[0].get_yscale() == "log"
    assert np.allclose(np.diff(np.log(corners[:, 0, 1])), np.diff(np.log(corners[:2, 0, 1])))
    assert np.allclose(shares.sum(axis=1), 1.0)
    assert np.all(shares[:, 0] > 0.2)
    few = scores(lambda s, q: 10 ** (4 * q - 3), levels=(0, 0.5, 1))
    shares, _ = heat(plots.score_heatmap(few, bins=8))
    assert np.allclose(shares[:, 1:], shares[0, 1], atol=1e-3)  # even in the logarithm


@pytest.mark.parametrize("make", [lambda s, q: q, lambda s, q: 1 + q, lambda s, q: 100**q - 2])
def test_scores_that_are_even_or_negative_have_a_linear_axis(make):
    assert plots.score_heatmap(scores(make)).axes[0].get_yscale() == "linear"


def test_a_score_that_all_samples_share_fills_one_cell():
    shares, _ = heat(plots.score_heatmap(scores(lambda s, q: 1.0 if s < 5 else 2.0), bins=4))
    assert np.allclose(shares[:4], [1, 0, 0, 0])
    assert np.allclose(shares[4:], [0, 0, 0, 1])
    for value in (0.0, -7e9):
        shares, corners = heat(plots.score_heatmap(scores(lambda s, q, v=value: v), bins=4))
        assert np.allclose(shares.sum(axis=1), 1)
        assert np.all(np.diff(corners[:, 0, 1]) > 0)


def test_many_steps_are_averaged_in_windows_and_seeds_too():
    rows = [
        {**row, "seed": seed, "threshold": row["step"] + seed}
        for seed in (0, 1)
        for row in scores(lambda s, q, seed=seed: q + seed, steps=range(1, 41))
    ]
    picture = plots.score_heatmap(rows, bins=4, columns=10)
    shares, corners = heat(picture)
    assert shares.shape == (10, 4)
    assert np.allclose(shares, 0.25)  # one seed holds the lower half, one the upper
    assert list(corners[0, :, 0]) == [*range(1, 41, 4), 41]
    line = picture.axes[0].lines[0]
    assert list(line.get_ydata()) == pytest.approx([s + 2.0 for s in range(1, 41, 4)])
    assert list(line.get_xdata()) == [s + 2.0 for s in range(1, 41, 4)]  # the windows' middles


def test_the_threshold_of_each_step_is_drawn_over_the_scores():
    table = [{**row, "threshold": row["step"] / 8} for row in scores(lambda s, q: q)]
    picture = plots.score_heatmap(table)
    axis, bar = picture.axes
    assert list(axis.lines[0].get_ydata()) == [s / 8 for s in range(1, 9)]
    assert labels(axis) == ["threshold"]
    assert bar.get_ylabel() == "share of the batch in a cell"
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("step", "score")


def test_one_level_says_nothing_of_a_distribution():
    with pytest.raises(ValueError, match="at one level"):
        plots.score_heatmap(scores(lambda s, q: q, levels=[0.5]))


@pytest.fixture
def classes():
    return pd.DataFrame(
        [
            {"step": step, "class": label, "seen": 10 * (label + 1), "active": active}
            for step in range(1, 9)
            for label, active in enumerate((1, 1, 2) if step < 5 else (4, 0, 0))
        ]
    )


def test_bars_hold_the_shares_over_all_steps(classes):
    picture = plots.class_activation(classes)
    (axis,) = picture.axes
    seen, active = ([bar.get_height() for bar in group] for group in axis.containers)
    assert seen == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert active == pytest.approx([20 / 32, 4 / 32, 8 / 32])
    assert labels(axis) == ["among the seen", "among the active"]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0", "1", "2"]


def test_windows_hold_the_ratio_of_the_shares(classes):
    picture = plots.class_activation(classes, windows=2)
    axis, bar = picture.axes
    first = [(1 / 4) / (1 / 6), (1 / 4) / (2 / 6), (2 / 4) / (3 / 6)]
    second = [1 / (1 / 6), 0, 0]
    cells = np.asarray(axis.collections[0].get_array())
    assert np.allclose(cells, np.transpose([first, second]))
    written = {tuple(text.get_position()): text.get_text() for text in axis.texts}
    assert written[0.5, 0.5] == "1.5"
    assert written[1.5, 0.5] == "6.0"
    assert written[0.5, 2.5] == "1.0"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "5"]
    assert bar.get_ylabel() == "share among the active / among the seen"


def test_a_window_without_active_samples_or_a_class_without_seen_ones_is_left_blank(classes):
    table = classes.assign(active=classes["active"].where(classes["step"] < 5, 0))
    table = table[(table["class"] != 2) | (table["step"] > 4)]
    axis = plots.class_activation(table, windows=2).axes[0]
    cells = axis.collections[0].get_array()
    assert np.ma.getmaskarray(cells).tolist() == [[False, True], [False, True], [True, True]]
    assert [text.get_text() for text in axis.texts].count("–") == 4


def test_steps_without_any_active_sample_are_refused(classes):
    with pytest.raises(ValueError, match="no sample was active"):
        plots.class_activation(classes.assign(active=0))


def test_a_hundred_classes_stay_legible():
    rows = [
        {"step": s, "class": c, "seen": 5, "active": 1 + c % 2} for s in (1, 2) for c in range(100)
    ]
    bars, cells = plots.class_activation(rows), plots.class_activation(rows, windows=2)
    assert len(bars.axes[0].get_xticks()) <= 25
    assert len(cells.axes[0].get_yticks()) <= 25
    assert len(plots.class_activation(rows * 2).axes[0].containers[0]) == 100
    assert max(*bars.get_size_inches(), *cells.get_size_inches()) <= 14


def test_a_watched_run_goes_into_both_pictures():
    data = Loader(load("digits")[0].subset(range(256)), 64, shuffle=True)
    watch = Watch(GatedStep(Gate(0.25)))
    model = models.build("digits_cnn", (1, 8, 8), 10, 0)
    trainer = Trainer(model, data, budget=Budget(epochs=2), step=watch)
    history = trainer.run()
    axis = plots.score_heatmap(watch.scores).axes[0]
    thresholds = [step["threshold"] for step in history.steps]
    assert list(axis.lines[0].get_ydata()) == pytest.approx(thresholds)
    seen, active = plots.class_activation(watch.classes).axes[0].containers
    assert sum(bar.get_height() for bar in seen) == pytest.approx(1)
    assert sum(bar.get_height() for bar in active) == pytest.approx(1)
    rate = plots.threshold_and_rate(history.steps, 0.25).axes[1]
    assert list(rate.lines[0].get_ydata()) == [step["rate"] for step in history.steps]
