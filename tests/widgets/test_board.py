"""The live board: what it keeps of a run, and what its picture shows."""

import numpy as np
import pytest

from astkit.profiling.energy import EnergyCounter, EnergyMeter
from astkit.widgets import LiveBoard, board
from astkit.widgets.board import BATCHES, CURVES, POINTS
from astkit.widgets.style import SELECTED, SKIPPED
from tests import build


def feed(live, steps, **metrics):
    numbers = {"threshold": 1.0, "measured_rate": 0.1, "rate": 0.1, "loss": 2.0, "flops": 1e9}
    for step in steps:
        live.log(step, phase="train", **{**numbers, "flops_dense": 2e9, **metrics})


def drawn(live):
    """The axes of the picture by title, and what is written below them."""
    picture = live.picture()
    (said,) = picture.texts
    return {axis.get_title("left"): axis for axis in picture.axes}, said.get_text()


def shown(**options):
    live = LiveBoard()
    trainer = build.gated(**options)
    trainer.reports.add(live)
    return live, trainer


def test_what_it_draws_is_what_the_run_logged():
    live, trainer = shown()
    trainer.steer("rate", 0.2)
    history = trainer.run()
    axes, said = drawn(live)
    threshold, rate, loss, accuracy, cost = axes.values()
    for axis, line, name in (
        (threshold, 2, "threshold"),
        (rate, 0, "measured_rate"),
        (rate, 2, "rate"),
        (loss, 0, "loss"),
        (cost, 0, "flops"),
        (cost, 1, "flops_dense"),
    ):
        logged = np.array([s[name] for s in history.steps])
        assert axis.lines[line].get_ydata() == pytest.approx(logged)
        assert axis.lines[line].get_xdata() == pytest.approx([s["step"] for s in history.steps])
    for axis, name in ((rate, "measured_rate"), (loss, "loss")):
        logged, half = [s[name] for s in history.steps], board.WINDOW // 2
        for place in (-1, -10):
            near = logged[place - half : min(0, place + half + 1) or None]
            assert axis.lines[1].get_ydata()[place] == pytest.approx(np.median(near))
    for line, name in ((loss.lines[2], "val_loss"), (accuracy.lines[0], "val_accuracy")):
        assert line.get_ydata() == pytest.approx([epoch[name] for epoch in history.epochs])
    (changes,) = threshold.collections  # of the set point
    assert [segment[0, 0] for segment in changes.get_segments()] == [0]
    assert live.events == [(0, "rate", 0.2)]
    assert "no joules: no meter was given" in said
    assert {axis.get_xlim() for axis in axes.values()} == {(0, 100)}
    assert all("scores" not in step for step in history.steps)


def test_scores_lie_on_both_sides_of_the_threshold_in_their_colours():
    live, trainer = shown()
    trainer.run()
    thresholds = dict(live.series["threshold"])
    for step, dots in live.cloud:
        assert dots.shape == (8, 3)
        scores, selected = dots[:, 1], dots[:, 2]
        above = np.array(scores) > thresholds[step]
        if above.any():  # else the fallback chose
            assert np.array_equal(above, np.array(selected) == 1)
    axis = drawn(live)[0]["score of each sample"]
    dots = {line.get_color(): line.get_ydata() for line in axis.lines[:2]}
    assert len(dots[SELECTED]) == sum(dots[:, 2].sum() for _, dots in live.cloud)
    assert len(dots[SELECTED]) + len(dots[SKIPPED]) == 8 * len(live.cloud)


def words(live):
    """What is written above each panel, by its name."""
    return {each.name: (each.value, each.more) for each in live.panels()}


def test_the_latest_values_are_said_above_the_panels():
    live, trainer = shown()
    history = trainer.run()
    flops, dense = trainer.ledger.flops.total, trainer.ledger.flops_dense
    ratio, said = flops / dense, words(live)
    saved = f"{100 * abs(1 - ratio):.0f} % {'saved' if ratio < 1 else 'more'}"
    assert said["cost"] == (saved, f"{flops / 1e3:.3g} of {dense / 1e3:.3g} kFLOPs")
    for name, panel, scale in (("measured_rate", "rate", 100), ("loss", "loss", 1)):
        latest = np.median([step[name] for step in history.steps[-5:]])
        assert float(said[panel][0].split()[0]) == pytest.approx(scale * latest, abs=0.5, rel=0.05)
    assert said["rate"][1] == "of 30 %"
    assert said["metric"][0] == f"{100 * history.epochs[-1]['val_accuracy']:.1f} %"
    assert said["loss"][1] == f"validation {history.epochs[-1]['val_loss']:#.2g}"


def test_joules_are_a_line_on_an_axis_of_their_own_where_a_counter_rises():
    read = iter(np.arange(1e6))
    meter = EnergyMeter()
    meter.counter = EnergyCounter("rapl", "a test", lambda: float(next(read)), 1e-9)
    live, trainer = shown(meter=meter)
    trainer.run()
    steps, joules = np.transpose(live.series["joules"])
    assert (np.diff(joules) > 0).all()
    assert steps[-1] == trainer.step
    axes, said = drawn(live)
    assert axes[""].lines[0].get_ydata() == pytest.approx(joules)
    assert axes[""].get_ylim()[1] > joules[-1]
    assert said == ""
    assert words(live)["cost"][0] == f"{joules[-1]:.3g} J"


def test_panels_show_what_was_measured_and_the_words_name_the_rest():
    live = LiveBoard()
    live.log(1, phase="train", loss=1.0, flops=None, measured_rate=None)
    axes, said = drawn(live)
    assert list(axes) == ["loss (dashed: validation)", "energy and work (dashed: dense)"]
    assert said == "no joules: no meter was given"
    assert words(live)["cost"] == ("FLOPs not counted", "")
    feed(live, range(2, 5), joules=None, joules_reason="too short")
    assert words(live)["cost"] == ("50 % saved", "1 of 2 GFLOPs")
    assert drawn(live)[1] == "no joules: too short"
    assert "" not in drawn(live)[0]  # no axis of joules
    live.log(5, phase="epoch", val_loss=1.0, val_auc=0.7)
    assert "validation auc" in drawn(live)[0]


def test_many_steps_take_bounded_memory_and_keep_even_distances():
    live = LiveBoard()
    for step in range(20_000):
        feed(live, [step], loss=float(step), scores=[1.0], selected=[0.0])
        if step % 10 == 9:
            live.log(step, phase="epoch", val_accuracy=0.5)
    steps, losses = np.array(live.series["loss"]).T
    assert POINTS / 2 <= len(steps) <= POINTS
    assert (steps == losses).all()
    assert len(set(np.diff(steps)[:-1])) == 1
    assert (steps[0], steps[-1]) == (0, 19_999)
    for kept in (live.series["val_accuracy"], live.cloud):
        assert len(set(np.diff([step for step, *_ in kept])[:-1])) == 1
    assert len(live.cloud) <= BATCHES


def test_all_panels_of_a_run_are_there_before_its_first_batch():
    live = LiveBoard({"threshold": "loss of each sample", "rate": "share", "metric": "auc"}, 400)
    assert [each.name for each in live.panels()] == ["threshold", "rate", "metric", "cost"]
    assert {each.value for each in live.panels()} == {"–"}
    before = drawn(live)
    feed(live, range(1, 5))
    assert [each.name for each in live.panels()] == [*CURVES]
    assert list(before[0]) == [title for title in drawn(live)[0] if not title.startswith("loss (")]
    assert live.total == 400


def test_the_axis_doubles_where_the_budget_names_no_batches():
    live, totals = LiveBoard(), []
    for step in (1, 100, 101, 250, 401):
        feed(live, [step])
        totals.append(live.total)
    assert totals == [100, 100, 200, 400, 800]


def test_scales_grow_by_half_decades_and_never_shrink():
    live, seen = LiveBoard(), []
    for step in range(1, 200):
        score = 3 * 10 ** (-step / 60)
        feed(live, [step], threshold=score, loss=score, scores=[score, 2 * score], selected=[0, 1])
        live.log(step, phase="epoch", val_rmse=1000 / step)
        seen.append([(each.low, each.high) for each in live.panels()])
    for ranges in zip(*seen, strict=True):
        assert list(ranges) == sorted(ranges, key=lambda each: each[1] / max(each[0], 1e-9))
        assert len(set(ranges)) < 9
    ends = np.log10([end for each in seen for end in (*each[0], *each[2])])
    assert np.allclose(2 * ends, np.round(2 * ends))
    feed(live, [200], threshold=1e6)  # one outlier in 200 batches
    assert live.panels()[0].high < 1e3


def test_an_image_of_the_trainer_has_a_place_beside_the_first_panel():
    live = LiveBoard()
    feed(live, [1])
    live.image = np.zeros((4, 6, 3), np.uint8)
    axes, _ = drawn(live)
    assert axes["current state"].images[0].get_array().shape == (4, 6, 3)
