"""Pictures of a gate's work hold the thresholds, rates, scores and classes they were given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from astkit.trainers import Watch
from astkit.widgets import gate_plots
from tests.widgets.small import small_trainer


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


def legend(picture):
    return {text.get_text() for text in picture.legends[0].get_texts()}


def test_threshold_and_rate_draw_the_median_and_the_set_point(steps):
    later = steps.assign(threshold=steps["threshold"] * (1 + steps["seed"]))
    picture = gate_plots.threshold_and_rate(later, 0.1, window=3)
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


def test_many_steps_of_many_runs_become_one_line_and_a_band():
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {"step": np.tile(np.arange(2_000), 20), "seed": np.repeat(np.arange(20), 2_000)}
    ).assign(threshold=random.normal(5.0, 1.0, 40_000), rate=0.1)
    axis = gate_plots.threshold_and_rate(table, 0.1).axes[1]
    (line,) = axis.lines
    assert len(line.get_xdata()) == gate_plots.POINTS
    assert np.abs(line.get_ydata() - 5.0).max() < 0.5
    low, high = np.transpose(list(shade(axis).values()))
    assert low.mean() == pytest.approx(5 - 1.645, abs=0.1)
    assert high.mean() == pytest.approx(5 + 1.645, abs=0.1)


def test_a_set_point_that_moves_is_drawn_in_steps_with_its_band(steps):
    moved = steps.assign(target_rate=np.where(steps["step"] < 30, 0.1, 0.25))
    picture = gate_plots.threshold_and_rate(moved, 0.7)  # the steps know better
    axis = picture.axes[0]
    line = axis.lines[-1]
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == list(range(1, 61))
    assert list(line.get_ydata()) == [0.1] * 29 + [0.25] * 31
    assert shade(axis)[10] == pytest.approx((0.08, 0.12))
    assert shade(axis)[30] == pytest.approx((0.08, 0.3))  # the edge of the step
    assert shade(axis)[40] == pytest.approx((0.2, 0.3))
    assert "set point" in legend(picture)


def test_a_set_point_is_needed_and_only_one(steps):
    for table in (steps, steps.assign(target_rate=None)):
        with pytest.raises(ValueError, match="pass the set point as target"):
            gate_plots.threshold_and_rate(table)
    with pytest.raises(ValueError, match="set point differs between runs"):
        gate_plots.threshold_and_rate(steps.assign(target_rate=0.1 + steps["seed"]))


def test_a_threshold_without_end_does_not_hide_the_others(steps):
    steps["threshold"] = steps["threshold"].clip(1.0)
    steps.loc[3, "threshold"] = np.inf  # as where the quota of a batch is no row
    axis = gate_plots.threshold_and_rate(steps, 0.1).axes[1]
    assert axis.get_yscale() == "linear"
    assert np.isfinite(axis.get_ylim()).all()


def test_responses_hold_medians_bands_set_point_and_shock(responses):
    picture = gate_plots.step_response(responses, shock=5)
    rate, threshold = picture.axes
    assert [line.get_label() for line in threshold.lines[:2]] == ["slow", "fast"]
    for line in rate.lines[:2]:
        assert list(line.get_xdata()) == list(range(1, 11))
        assert list(line.get_ydata()) == pytest.approx([0.11] * 4 + [0.41] + [0.11] * 5)
    assert list(threshold.lines[0].get_ydata()) == [2.0] * 10
    assert shade(rate, 0)[1] == pytest.approx((0.101, 0.119))
    assert shade(threshold, 1)[7] == pytest.approx((1.1, 2.9))
    assert list(rate.lines[2].get_ydata()) == [0.1] * 4 + [0.2] * 6
    assert shade(rate, 2)[8] == pytest.approx((0.16, 0.24))
    for axis in picture.axes:
        assert set(axis.lines[-1].get_xdata()) == {5}
    named = {"slow", "fast", "set point", "set point ±20%", "shock at step 5"}
    assert legend(picture) == named
    # matplotlib calls every dash pattern of its own "--"
    assert len({str(line._unscaled_dash_pattern) for line in rate.lines[:2]}) == 2
    named = gate_plots.step_response(responses.assign(stream="a jump"))
    assert named.get_suptitle() == "a jump: " + picture.get_suptitle()


def test_responses_are_averaged_within_each_run_alone(responses):
    rate = gate_plots.step_response(responses, window=2).axes[0]
    wanted = [0.11, 0.11, 0.11, 0.11, 0.26, 0.26, 0.11, 0.11, 0.11, 0.11]
    for line in rate.lines[:2]:
        assert list(line.get_ydata()) == pytest.approx(wanted)
    assert rate.get_title() == "activation rate, mean of the last 2 batches"


def test_a_loops_noise_is_drawn_beside_theory_and_bound():
    rows = [
        {"family": f, "batch": b, "gain x f": g, "RMSE / floor": g + i, "predicted": predicted}
        for i, f in enumerate(("gamma", "normal"))
        for b in (8, 64)
        for g, predicted in ((1.0, 1.5), (2.5, np.inf))
    ]
    picture = gate_plots.stability_bound(rows)
    (axis,) = picture.axes
    assert [list(line.get_ydata()) for line in axis.lines[:4:2]] == [[1.0, 2.5], [2.0, 3.5]]
    assert list(axis.lines[4].get_ydata()) == [1.5]  # where the theory is finite
    assert set(axis.lines[5].get_xdata()) == {2}
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    assert names == ["gamma", "normal", "theory, linear loop", "bound: gain x f = 2"]
    assert [text.get_text() for text in axis.texts] == ["8 a batch", "64 a batch"]
    assert not any(axis.yaxis.get_minor_formatter().format_ticks([3.0, 4.0]))


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
    shares, corners = heat(gate_plots.score_heatmap(scores(lambda s, q: q - 0.5), bins=10))
    assert shares.shape == (8, 10)
    assert np.allclose(shares, 0.1)
    assert np.allclose(corners[:, 0, 1], np.linspace(-0.5, 0.5, 11))
    assert list(corners[0, :, 0]) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_cells_hold_the_share_of_the_scores_between_their_edges():
    random = np.random.default_rng(0)
    batches = {s: np.sort(random.gamma(2.0, s, 200)) - 3 for s in range(1, 9)}
    levels = np.linspace(0, 1, 200)
    table = scores(lambda s, q: np.quantile(batches[s], q), levels=levels)
    shares, corners = heat(gate_plots.score_heatmap(table, bins=12))
    edges = corners[:, 0, 1]
    assert np.allclose(shares.sum(axis=1), 1.0)
    for step, batch in batches.items():
        counted = np.histogram(batch, edges)[0] / 200
        assert np.abs(shares[step - 1] - counted).max() < 0.01  # a level lies between two samples


def test_wide_positive_scores_have_a_logarithmic_axis_and_zeros_its_lowest_row():
    table = scores(lambda s, q: 0.0 if q < 0.25 else 10 ** (4 * q - 3))
    picture = gate_plots.score_heatmap(table, bins=10)
    shares, corners = heat(picture)
    assert picture.axes[0].get_yscale() == "log"
    assert np.allclose(np.diff(np.log(corners[:, 0, 1])), np.diff(np.log(corners[:2, 0, 1])))
    assert np.allclose(shares.sum(axis=1), 1.0)
    assert np.all(shares[:, 0] > 0.2)
    few = scores(lambda s, q: 10 ** (4 * q - 3), levels=(0, 0.5, 1))
    shares, _ = heat(gate_plots.score_heatmap(few, bins=8))
    assert np.allclose(shares[:, 1:], shares[0, 1], atol=1e-3)  # even in the logarithm
    for make in (lambda s, q: q, lambda s, q: 1 + q, lambda s, q: 100**q - 2):
        assert gate_plots.score_heatmap(scores(make)).axes[0].get_yscale() == "linear"


def test_a_score_that_all_samples_share_fills_one_cell():
    shares, _ = heat(gate_plots.score_heatmap(scores(lambda s, q: 1.0 if s < 5 else 2.0), bins=4))
    assert np.allclose(shares[:4], [1, 0, 0, 0])
    assert np.allclose(shares[4:], [0, 0, 0, 1])
    for value in (0.0, -7e9):
        shares, corners = heat(gate_plots.score_heatmap(scores(lambda s, q, v=value: v), bins=4))
        assert np.allclose(shares.sum(axis=1), 1)
        assert np.all(np.diff(corners[:, 0, 1]) > 0)


def test_many_steps_are_averaged_in_windows_and_seeds_too():
    rows = [
        {**row, "seed": seed, "threshold": row["step"] + seed}
        for seed in (0, 1)
        for row in scores(lambda s, q, seed=seed: q + seed, steps=range(1, 41))
    ]
    picture = gate_plots.score_heatmap(rows, bins=4, columns=10)
    shares, corners = heat(picture)
    assert shares.shape == (10, 4)
    assert np.allclose(shares, 0.25)  # one seed holds the lower half, one the upper
    assert list(corners[0, :, 0]) == [*range(1, 41, 4), 41]
    line = picture.axes[0].lines[0]
    assert list(line.get_ydata()) == pytest.approx([s + 2.0 for s in range(1, 41, 4)])
    assert list(line.get_xdata()) == [s + 2.0 for s in range(1, 41, 4)]  # the windows' middles


def test_the_threshold_is_drawn_over_the_scores_and_not_cut_off():
    table = [{**row, "threshold": 0.2 + row["step"] / 8} for row in scores(lambda s, q: q)]
    axis, bar = gate_plots.score_heatmap(table).axes
    assert list(axis.lines[0].get_ydata()) == pytest.approx([0.2 + s / 8 for s in range(1, 9)])
    assert axis.get_ylim()[1] > 1.2
    far = gate_plots.score_heatmap([{**row, "threshold": 1e9} for row in table]).axes[0]
    assert far.get_ylim()[1] < 1.5  # a threshold far away does not hide the scores
    assert bar.get_ylabel() == "share of the batch in a cell"
    with pytest.raises(ValueError, match="at one level"):
        gate_plots.score_heatmap(scores(lambda s, q: q, levels=[0.5]))


def test_bars_hold_the_shares_of_the_classes_over_all_steps():
    rows = [
        {"step": step, "class": label, "seen": 10 * (label + 1), "active": active}
        for step in range(1, 9)
        for label, active in enumerate((1, 1, 2) if step < 5 else (4, 0, 0))
    ]
    picture = gate_plots.class_activation(rows)
    (axis,) = picture.axes
    seen, active = ([bar.get_height() for bar in group] for group in axis.containers)
    assert seen == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert active == pytest.approx([20 / 32, 4 / 32, 8 / 32])
    assert legend(picture) == {"samples seen", "active samples"}
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0", "1", "2"]
    with pytest.raises(ValueError, match="no sample was active"):
        gate_plots.class_activation([{**row, "active": 0} for row in rows])


def test_a_hundred_classes_stay_legible():
    rows = [{"class": c, "seen": 5, "active": 1 + c % 2} for c in range(100)]
    picture = gate_plots.class_activation(rows)
    assert len(picture.axes[0].get_xticks()) <= 25
    assert len(picture.axes[0].containers[0]) == 100
    assert picture.get_size_inches().max() <= 14


def test_a_watched_run_goes_into_the_pictures():
    trainer = small_trainer()
    trainer.step = watch = Watch(trainer.step)
    history = trainer.run()
    axis = gate_plots.score_heatmap(watch.scores).axes[0]
    thresholds = [step["threshold"] for step in history.steps]
    assert list(axis.lines[0].get_ydata()) == pytest.approx(thresholds)
    for bars in gate_plots.class_activation(watch.classes).axes[0].containers:
        assert sum(bar.get_height() for bar in bars) == pytest.approx(1)
    rate = gate_plots.threshold_and_rate(history.steps, window=1).axes[0]
    assert list(rate.lines[0].get_ydata()) == [step["rate"] for step in history.steps]
