"""The live board: what it draws, how seldom, and that it never stands in the way of training."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from astkit.widgets import LiveBoard, board, frontend
from astkit.widgets.board import POINTS
from tests.widgets.small import STEPS, small_trainer


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
    """Time that passes only when told; a frame takes ``cost`` of it."""

    class Clock:
        now, cost = 100.0, 0.0

    def draw(self, file, **options):
        Clock.now += Clock.cost

    monkeypatch.setattr(board.time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(board.Picture, "savefig", draw)
    return Clock


def feed(live, steps, **metrics):
    numbers = {"threshold": 1.0, "measured_rate": 0.1, "rate": 0.1, "loss": 2.0, "flops": 1e9}
    for step in steps:
        live.log(step, phase="train", **{**numbers, "flops_dense": 2e9, **metrics})


def note(picture):
    (text,) = picture.texts
    return text.get_text()


def test_frames_keep_their_distance_and_their_share(shown, clock):
    live = LiveBoard()
    for cost, distance in ((0.1, 2.0), (0.5, 5.0)):  # 0.5 s is a tenth of 5 s
        clock.cost = cost
        times = []
        for step in range(500):
            clock.now += 0.05
            before = len(shown)
            feed(live, [step])
            if len(shown) > before:
                times.append(clock.now)
        assert len(times) > 3
        assert np.diff(times)[1:] == pytest.approx(distance + cost, abs=0.1)


def test_the_last_frame_is_drawn_always_and_none_without_steps(shown):
    LiveBoard().close()
    assert shown == []
    live = LiveBoard()
    feed(live, range(50))
    assert len(shown) == 1
    feed(live, [50], threshold=5.0)
    live.close()
    assert [set(frame) for frame in shown] == [{"image/png", "text/plain"}] * 2
    assert len({frame["text/plain"] for frame in shown}) == 1
    first, last = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(f["image/png"]))).convert("L"), float)
        for f in shown
    )
    assert np.abs(first - last).max() > 100
    assert first.std() > 5


def test_a_drawing_error_ends_the_board_and_not_the_training(shown, monkeypatch, capsys):
    def broken(self, file, **options):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(board.Picture, "savefig", broken)
    live = LiveBoard()
    trainer = small_trainer(observers=[live])
    trainer.run()
    assert trainer.done
    assert not live.shown
    said = capsys.readouterr().err
    assert said == "the live board is off, training continues: RuntimeError('no fonts')\n"
    assert len(live.series["loss"]) == len(trainer.history.steps) == STEPS


def test_what_it_draws_is_what_the_run_logged():
    live = LiveBoard(live=False)
    trainer = small_trainer(observers=[live])
    trainer.steer("rate", 0.2)
    history = trainer.run()
    figure = live.picture()
    threshold, rate, learning, accuracy, cost, empty = figure.axes
    assert not empty.axison
    for axis, line, name in (
        (threshold, 0, "threshold"),
        (rate, 0, "measured_rate"),
        (rate, 2, "rate"),
        (learning, 0, "loss"),
        (cost, 0, "flops"),
        (cost, 1, "flops_dense"),
    ):
        logged = np.array([s[name] for s in history.steps])
        assert axis.lines[line].get_ydata() == pytest.approx(logged)
        assert axis.lines[line].get_xdata() == pytest.approx([s["step"] for s in history.steps])
    for axis, name in ((rate, "measured_rate"), (learning, "loss")):
        last = [s[name] for s in history.steps][-board.WINDOW :]
        assert axis.lines[1].get_ydata()[-1] == pytest.approx(np.mean(last))
    for line, name in ((learning.lines[2], "val_loss"), (accuracy.lines[0], "val_accuracy")):
        assert line.get_ydata() == pytest.approx([epoch[name] for epoch in history.epochs])
    (changes,) = threshold.collections  # of the set point
    assert [segment[0, 0] for segment in changes.get_segments()] == live.events
    assert note(figure) == f"joules not measured: {history.steps[-1]['joules_reason']}"
    assert {axis.get_xlim()[0] for axis in figure.axes} == {0}
    assert [axis.get_ylim()[0] for axis in figure.axes[1:5]] == [0, 0, 0, 0]


def test_panels_show_what_was_measured_and_the_note_names_the_rest():
    live = LiveBoard(live=False)
    live.log(1, phase="train", loss=1.0, flops=None, measured_rate=None)
    assert [axis.get_title() for axis in live.picture().axes if axis.axison] == ["loss"]
    assert note(live.picture()) == "joules not measured: no meter was given · FLOPs not counted"
    feed(live, range(2, 5), joules=None, joules_reason="too short")
    assert note(live.picture()) == "joules not measured: too short"
    feed(live, range(5, 10), joules=3.0)
    assert live.picture().axes[4].get_ylabel() == "energy (J)"
    assert note(live.picture()) == ""


def test_many_steps_take_bounded_memory_and_keep_even_distances():
    live = LiveBoard(live=False)
    for step in range(20_000):
        feed(live, [step], loss=float(step))
        if step % 10 == 9:
            live.log(step, phase="epoch", val_accuracy=0.5)
    steps, losses = np.array(live.series["loss"]).T
    assert POINTS / 2 <= len(steps) <= POINTS
    assert (steps == losses).all()
    assert len(set(np.diff(steps)[:-1])) == 1
    assert (steps[0], steps[-1]) == (0, 19_999)
    assert len(set(np.diff([step for step, _ in live.series["val_accuracy"]])[:-1])) == 1


def test_one_point_is_a_marker_and_a_loss_that_is_lost_ends_its_line():
    live = LiveBoard(live=False)
    feed(live, range(1, 31))
    feed(live, range(31, 41), loss=float("inf"))
    live.log(40, phase="epoch", val_accuracy=0.5)
    _, _, loss, accuracy, *_ = live.picture().axes
    assert np.isfinite(loss.lines[1].get_ydata()).sum() == 30
    assert accuracy.lines[0].get_marker() == "o"
