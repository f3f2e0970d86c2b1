"""The live board: what it keeps of a run, and what its picture shows."""

import numpy as np
import pytest

from astkit.profiling.energy import EnergyCounter, EnergyMeter
from astkit.widgets import LiveBoard, board
from astkit.widgets.board import BATCHES, POINTS
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
    return {axis.get_title(): axis for axis in picture.axes}, said.get_text()


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
        last = [s[name] for s in history.steps][-board.WINDOW :]
        assert axis.lines[1].get_ydata()[-1] == pytest.approx(np.mean(last))
    for line, name in ((loss.lines[2], "val_loss"), (accuracy.lines[0], "val_accuracy")):
        assert line.get_ydata() == pytest.approx([epoch[name] for epoch in history.epochs])
    (changes,) = threshold.collections  # of the set point
    assert [segment[0, 0] for segment in changes.get_segments()] == [0]
    assert live.events == [(0, "rate", 0.2)]
    assert "no joules here: no meter was given" in said
    assert {axis.get_xlim()[0] for axis in axes.values()} == {0}
    assert all("scores" not in step for step in history.steps)


def test_scores_lie_on_both_sides_of_the_threshold_in_their_colours():
    live, trainer = shown()
    trainer.run()
    thresholds = dict(live.series["threshold"])
    for step, scores, selected in live.cloud:
        assert len(scores) == len(selected) == 8
        above = np.array(scores) > thresholds[step]
        if above.any():  # else the fallback chose
            assert np.array_equal(above, np.array(selected) == 1)
    axis = drawn(live)[0]["threshold and scores"]
    dots = {line.get_color(): line.get_ydata() for line in axis.lines[:2]}
    assert len(dots[SELECTED]) == sum(sum(selected) for _, _, selected in live.cloud)
    assert len(dots[SELECTED]) + len(dots[SKIPPED]) == 8 * len(live.cloud)


def test_the_cost_is_said_in_flops_and_in_the_units_of_the_original():
    live, trainer = shown()
    trainer.run()
    flops, dense = trainer.ledger.flops.total, trainer.ledger.flops_dense
    cost, units, joules = live.cost()
    ratio = flops / dense
    said = f"{1 - ratio:.0%} of the FLOPs saved" if ratio < 1 else f"{ratio - 1:.0%} more FLOPs"
    assert cost.endswith(said)
    every = 10 * (trainer.ledger.samples.trained + trainer.ledger.samples.skipped)
    assert units.startswith("the original's units (10 an activation, 0.1 a skip): ")
    assert units.endswith(f"{trainer.ledger.origin_energy_units:,.0f} of {every:,.0f}")
    assert joules == "no joules here: no meter was given"


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
    assert axes[""].get_ylabel() == "joules"
    assert axes[""].lines[0].get_ydata() == pytest.approx(joules)
    assert said.endswith(" J")


def test_panels_show_what_was_measured_and_the_words_name_the_rest():
    live = LiveBoard()
    live.log(1, phase="train", loss=1.0, flops=None, measured_rate=None)
    axes, said = drawn(live)
    assert list(axes) == ["loss", "cost and energy"]
    assert said == "FLOPs not counted\nno joules here: no meter was given"
    feed(live, range(2, 5), joules=None, joules_reason="too short")
    assert drawn(live)[1] == (
        "1.00 GFLOPs, dense training of the same rows 2.00 GFLOPs: 50% of the FLOPs saved\n"
        "no joules here: too short"
    )
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
