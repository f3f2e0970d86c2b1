"""Driving a run: pause, step, stop and interrupts, each leaving a complete record."""

import json
import os
import signal
import threading
import time

import pytest

from astkit.widgets import Dashboard, LiveBoard, Run, frontend, strip
from tests.widgets.small import small_trainer


@pytest.fixture
def trainer():
    return small_trainer()


def check(run, status, steps=range(1, 34)):
    """The run ended as told, its record holds all that was trained, its model is as before."""
    record = json.loads(json.dumps(run.record()))
    assert run.status == record["status"] == status
    assert record["training_steps"] in steps
    trained = [step["step"] for step in record["steps"]]
    assert trained == list(range(1, record["training_steps"] + 1))
    assert run.trainer.model.training


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def in_thread(*actions):
    """Run ``actions`` one after the other, as callbacks of a front end do; wait with `join`."""
    thread = threading.Thread(target=lambda: [action() for action in actions])
    thread.start()
    return thread


def test_a_run_is_that_of_its_trainer(trainer, tmp_path):
    trainer.steer("rate", 0.4)
    run = Run(trainer)
    run.drive()
    check(run, "finished", [33])
    run.save(tmp_path / "run.json")
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["steered"] is True
    assert record["events"] == [{"step": 0, "name": "rate", "value": 0.4}]
    alone = small_trainer()
    alone.steer("rate", 0.4)
    losses = [[step["loss"] for step in steps] for steps in (record["steps"], alone.run().steps)]
    assert losses[0] == losses[1]


def test_pause_freezes_resume_moves_step_takes_one_stop_ends(trainer):
    run, steps = Run(trainer), []

    def note():
        steps.append(trainer.step)

    def paused():
        until(lambda: run.status == "paused")
        note()
        time.sleep(0.15)
        note()

    thread = in_thread(
        lambda: until(lambda: trainer.step >= 3),
        run.pause,
        paused,
        run.step,
        lambda: until(lambda: trainer.step > steps[0]),
        paused,
        run.resume,
        lambda: until(lambda: trainer.step > steps[0] + 3),
        run.pause,
        paused,
        run.stop,
    )
    run.drive(pace=100)
    thread.join()
    at = steps[0]
    assert steps[:4] == [at, at, at + 1, at + 1]
    check(run, "stopped", range(at + 4, 33))


@pytest.mark.parametrize("paused", [False, True])
def test_an_interrupt_ends_the_run_without_an_error(trainer, paused):
    run = Run(trainer)
    thread = in_thread(
        lambda: until(lambda: trainer.step >= 4),
        *([run.pause, lambda: until(lambda: run.status == "paused")] if paused else []),
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    run.drive(pace=100)
    thread.join()
    check(run, "interrupted", range(4, 33))


class Broken:
    """An observer that raises at the report of the sixth batch, or when it is closed."""

    def __init__(self, closing):
        self.closing = closing

    def log(self, step, *, phase, **metrics):
        if step == 6 and not self.closing:
            raise OSError("disk full")

    def close(self):
        if self.closing:
            raise OSError("disk full")


@pytest.mark.parametrize(("closing", "reported"), [(False, 6), (True, 33)])
def test_an_error_is_raised_and_the_record_kept(trainer, monkeypatch, closing, reported):
    drawn = []
    monkeypatch.setattr(LiveBoard, "close", lambda self: drawn.append(self))
    trainer.reports.observers += [Broken(closing), LiveBoard(live=False)]
    run = Run(trainer)
    with pytest.raises(OSError, match="disk full"):
        run.drive()
    record = run.record()
    assert (run.status, record["status"], len(record["steps"])) == ("failed", "failed", reported)
    assert len(drawn) == 1


class Handle:
    """Stands for the display of the controls."""

    def __init__(self):
        self.said = []

    def update(self, bundle, raw):
        self.said.append(bundle["text/plain"])


@pytest.fixture
def begin(monkeypatch):
    """Run a dashboard where the front end is as told."""
    handle = Handle()
    monkeypatch.setattr(strip, "display", lambda *a, **k: handle)

    def begin(trainer, mode, **options):
        monkeypatch.setattr(frontend, "mode", lambda wish=None: mode)
        live = Dashboard(**options)
        live.board.shown = False
        run = live.run(trainer)
        assert len(live.board.series["loss"]) == trainer.step
        return run

    begin.said = handle.said
    return begin


@pytest.mark.parametrize("mode", ["off", "headless"])
def test_nobody_there_runs_to_the_end_without_a_widget(begin, trainer, monkeypatch, mode):
    monkeypatch.setattr(strip.Strip, "__init__", pytest.fail)
    check(begin(trainer, mode, pace=1), "finished", [33])


def test_a_second_run_has_a_board_of_its_own(trainer):
    live = Dashboard(live=False)
    boards = []
    for each in (trainer, trainer, small_trainer()):
        live.run(each)
        boards.append(live.board)
    assert boards[0] is boards[1] is not boards[2]
    assert [len(board.series["loss"]) for board in boards] == [33] * 3


def test_no_answer_is_said_and_runs_to_the_end(begin, trainer, monkeypatch):
    monkeypatch.setattr(strip, "ANSWER_S", 0.0)
    check(begin(trainer, "ask", pace=1), "finished", [33])
    (said,) = begin.said
    assert said.startswith("no controls: steering needs a front end")


def test_controls_are_heard_from_another_thread(begin, trainer, monkeypatch):
    monkeypatch.setattr(strip, "READOUT_SECONDS", 0.0)
    strips, seen, made = [], [], strip.Strip.__init__

    def gains():
        return [child.description for child in strips[0]._gains.children]

    def touch():
        until(lambda: trainer.step >= 3)
        target, choice = strips[0].box.children[0].children
        seen.append(gains())
        target.value = 0.4
        until(lambda: trainer.policy.rate == 0.4)
        choice.value = "origin_pi"
        until(lambda: len(gains()) == 3)
        seen.append(gains())
        strips[0]._gains.children[0].value = 0.01

    def init(self, run):
        made(self, run)
        strips.append(self)
        self.box.children[-1]._handle_custom_msg({"ready": True}, [])
        threads.append(in_thread(touch))

    threads = []
    monkeypatch.setattr(strip.Strip, "__init__", init)
    run = begin(trainer, "ask", pace=50)
    threads[0].join()
    check(run, "finished", [33])
    assert [e["name"] for e in run.record()["events"]] == ["rate", "controller", "kp"]
    assert seen == [["gain"], ["kp", "ki", "alpha"]]
    for words in ("<b>finished</b> · step 33", "joules not measured", "threshold", "rate"):
        assert words in strips[0]._readout.value


def test_a_run_without_a_gate_has_controls_without_its_rows(monkeypatch):
    monkeypatch.setattr(strip, "display", lambda *a, **k: None)
    dense = small_trainer(gated=False)
    run = Run(dense)
    controls = strip.Strip(run)
    assert len(controls.box.children) == 3
    assert "threshold" not in controls.readout()
    run.status, dense.progress = "running", 0.92
    controls._started, controls._first = time.perf_counter() - 2, 0.9
    assert "8 s left" in controls.readout()  # 2 % took 2 s
