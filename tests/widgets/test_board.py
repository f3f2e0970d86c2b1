"""The live board: what it draws, how seldom, and that it never stands in the way of training."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from astkit.runs import arms
from astkit.widgets import LiveBoard, board, frontend
from astkit.widgets.board import _thinned


class Handle:
    """Stands for a display in a notebook."""

    def __init__(self):
        self.frames = []

    def __call__(self, bundle, raw, display_id):
        assert raw
        assert display_id
        self.frames.append(bundle)
        return self

    def update(self, bundle, raw):
        assert raw
        self.frames.append(bundle)


@pytest.fixture
def shown(monkeypatch):
    """A notebook that shows what it is given: the frames."""
    handle = Handle()
    monkeypatch.setattr("IPython.display.display", handle)
    monkeypatch.setattr(frontend, "mode", lambda live=None: "headless")
    return handle.frames


@pytest.fixture
def clock(monkeypatch):
    """Wall and CPU time that pass only when told; a frame takes ``cost`` of both."""

    class Clock:
        now, cost = 100.0, 0.0

    def png(self):
        Clock.now += Clock.cost
        return b"png"

    monkeypatch.setattr(board.time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(board.time, "thread_time", lambda: Clock.now)
    monkeypatch.setattr(board.LiveFigure, "png", png)
    return Clock


def feed(live, steps, **metrics):
    numbers = {"threshold": 1.0, "rate": 0.1, "target_rate": 0.1, "loss": 2.0, "flops": 1e9}
    for step in steps:
        live.log(step, phase="train", **{**numbers, "flops_dense": 2e9, **metrics})


def test_frames_keep_their_distance_and_their_share(shown, clock):
    live = LiveBoard(every_s=2.0, max_share=0.02)
    clock.cost = 0.1
    times = []
    for step in range(2_000):
        clock.now += 0.05
        before = live.frames
        feed(live, [step])
        if live.frames > before:
            times.append(clock.now)
    assert len(shown) == live.frames == len(times) > 3
    assert np.diff(times).min() >= 2.0
    assert live.set_up == pytest.approx(0.1)
    assert live.spent == pytest.approx(0.1 * (live.frames - 1))
    assert live.spent <= 0.02 * (clock.now - 100.0) + 0.1
    assert np.diff(times)[-1] == pytest.approx(5.0, abs=0.2)  # 0.1 s is 2 % of 5 s


def test_a_frame_that_costs_nothing_still_waits(shown, clock):
    live = LiveBoard(every_s=2.0)
    for step in range(100):
        clock.now += 0.1
        feed(live, [step])
    assert live.frames == 5


def test_the_last_frame_is_drawn_always(shown, clock):
    live = LiveBoard(every_s=1e9)
    feed(live, range(50))
    assert live.frames == 1
    live.close()
    assert live.frames == 2
    assert [set(frame) for frame in shown] == [{"image/png", "text/plain"}] * 2
    assert len({frame["text/plain"] for frame in shown}) == 1


def test_a_board_without_steps_shows_nothing(shown):
    LiveBoard().close()
    assert shown == []


def test_frames_are_pictures_that_change(shown):
    live = LiveBoard(every_s=0, max_share=1)
    feed(live, range(10))
    feed(live, range(10, 20), threshold=5.0)
    live.draw()
    pictures = [Image.open(io.BytesIO(base64.b64decode(f["image/png"]))) for f in shown]
    assert pictures[0].size[0] > 3 * pictures[0].size[1]
    assert {picture.size for picture in pictures} == {pictures[0].size}
    first, last = (np.asarray(pictures[i].convert("L"), dtype=float) for i in (0, -1))
    assert np.abs(first - last).max() > 100
    assert first.std() > 5


def test_a_drawing_error_ends_the_board_and_not_the_training(shown, monkeypatch, capsys):
    def broken(self):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(board.LiveFigure, "png", broken)
    live = LiveBoard(every_s=0, max_share=1)
    task = arms.task("digits", epochs=1)
    trainer = arms.trainer(task, "batched gate", 0, observers=[live])
    trainer.run()
    assert trainer.done
    assert not live.shown
    assert live.frames == 1
    assert "training goes on: RuntimeError('no fonts')" in capsys.readouterr().err
    assert len(live.steps["step"]) == len(trainer.history.steps) == 11


def test_what_it_draws_is_what_the_run_logged():
    live = LiveBoard(live=False)
    task = arms.task("digits", epochs=2)
    trainer = arms.trainer(task, "batched gate", 0, observers=[live])
    trainer.steer("target_rate", 0.2)
    trainer.run()
    figure = live.picture()
    threshold, rate, learning, cost = figure.axes[:4]
    steps = trainer.history.steps
    for axis, line, name in (
        (threshold, 0, "threshold"),
        (rate, 0, "rate"),
        (rate, 1, "target_rate"),
        (learning, 0, "loss"),
        (cost, 0, "flops_dense"),
        (cost, 1, "flops"),
    ):
        assert axis.lines[line].get_ydata() == pytest.approx([step[name] for step in steps])
        assert axis.lines[line].get_xdata() == pytest.approx([step["step"] for step in steps])
    accuracies = [epoch["val_accuracy"] for epoch in trainer.history.epochs]
    assert figure.axes[4].lines[0].get_ydata() == pytest.approx(accuracies)
    title = cost.get_title().replace("\n", " ").removesuffix("[...]").strip()
    assert f"joules not measured: {steps[-1]['joules_reason']}".startswith(title)
    assert cost.get_ylabel() == "FLOPs, counted"
    assert len(threshold.lines) == 2  # the threshold, and the change of the set point
    dense = steps[-1]["flops_dense"]
    assert (
        steps[-1]["flops"]
        < dense
        == pytest.approx(
            trainer.ledger.samples.scored
            * (trainer.ledger.flops.forward / trainer.ledger.samples.trained)
            + trainer.ledger.samples.scored
            * (trainer.ledger.flops.backward / trainer.ledger.samples.trained)
        )
    )


def test_measured_joules_take_the_place_of_flops(shown):
    live = LiveBoard(every_s=0, max_share=1)
    feed(live, range(5), joules=None, joules_reason="too short")
    assert live.picture().axes[3].get_title() == "joules not measured: too short"
    feed(live, range(5, 10), joules=3.0)
    live.draw()
    assert live._figure.figure.axes[3].get_title() == "joules"


def test_without_a_meter_it_says_so():
    live = LiveBoard(live=False)
    feed(live, range(5))
    assert live.picture().axes[3].get_title() == "joules not measured: no meter was given"


def test_the_picture_is_independent_of_what_was_shown(shown):
    live = LiveBoard(every_s=0, max_share=1)
    feed(live, range(30))
    live.picture()
    feed(live, range(30, 60))
    assert live.shown


@pytest.mark.parametrize("length", [0, 1, 499, 500, 501, 1_000, 12_345])
def test_long_series_are_thinned_to_means_of_stretches(length):
    values = np.random.default_rng(0).random(length).tolist()
    thin = _thinned(values)
    assert len(thin) <= board.POINTS
    stretch = max(1, -(-length // board.POINTS))
    plain = [np.mean(values[i : i + stretch]) for i in range(0, length, stretch)]
    assert thin == pytest.approx(plain)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_share": 0}, "max_share is 0"),
        ({"max_share": 1.1}, "max_share is 1.1"),
        ({"every_s": -1}, "every_s is -1"),
    ],
)
def test_bad_settings_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        LiveBoard(**options)


def test_no_clock_runs_while_the_board_draws(shown, monkeypatch):
    running = []

    class Clock:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            running.append(self.name)

        def __exit__(self, *exception):
            running.remove(self.name)

    seen = []
    monkeypatch.setattr(board.LiveFigure, "png", lambda self: seen.append(list(running)) or b"png")
    live = LiveBoard(every_s=0, max_share=1)
    trainer = arms.trainer(arms.task("digits", epochs=1), "batched gate", 0, observers=[live])
    trainer.ledger.clock = Clock
    trainer.run()
    assert len(seen) == live.frames > 5
    assert seen == [[]] * live.frames


@pytest.mark.full
def test_its_share_of_an_epoch_stays_under_two_percent(shown):
    torch.set_num_threads(1)
    live = LiveBoard()
    task = arms.task("digits", epochs=400)
    start = board.time.process_time()
    arms.trainer(task, "batched gate", 0, observers=[live]).run()
    share = (live.set_up + live.spent) / (board.time.process_time() - start)
    assert live.frames >= 3
    assert share < 0.02
