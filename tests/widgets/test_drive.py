"""Driving a run: pause, step, stop and interrupts, each leaving a complete record."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time

import pytest

from astkit.trainers import TimeIsUp
from astkit.trainers.switching import Switch
from astkit.widgets import Dashboard, LiveBoard, Run, dashboard, frontend, strip
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


async def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


async def begun(trainer, step, pace=None):
    run = Run(trainer)
    run.begin(pace)
    assert run.status == "ready"
    await until(lambda: trainer.position.step >= step)
    return run


def test_a_task_runs_to_the_end_as_draining_does(trainer):
    async def scene():
        return await (await begun(trainer, 1)).finished()

    run = asyncio.run(scene())
    check(run, "finished", [33])
    assert len(run.record()["epochs"]) == 3
    assert not run.record()["steered"]
    drained = Run(small_trainer())
    drained.drain()
    losses = [[step["loss"] for step in each.record()["steps"]] for each in (drained, run)]
    assert losses[0] == losses[1]


def test_pause_freezes_resume_moves_step_takes_one_stop_ends(trainer):
    async def scene():
        run = await begun(trainer, 3)
        run.pause()
        await until(lambda: run.status == "paused")
        held = trainer.position.step
        await asyncio.sleep(0.1)
        assert trainer.position.step == held
        run.step()
        await until(lambda: trainer.position.step == held + 1 and run.status == "paused")
        await asyncio.sleep(0.1)
        assert trainer.position.step == held + 1
        run.resume()
        await until(lambda: trainer.position.step > held + 2)
        run.pause()
        await until(lambda: run.status == "paused")
        run.stop()
        return await run.finished()

    check(asyncio.run(scene()), "stopped", range(7, 33))


def test_cancelling_the_wait_ends_the_run_and_not_the_task(trainer):
    async def scene():
        run = await begun(trainer, 1, pace=50)
        waiting = asyncio.create_task(run.finished())
        await until(lambda: trainer.position.step >= 4)
        waiting.cancel()
        assert await waiting is run
        return run

    check(asyncio.run(scene()), "interrupted", range(4, 33))


class Kernel:
    """ipykernel's habit with SIGINT: its own handler in a cell, the saved one between cells."""

    saved_sigint_handler = None

    def start_cell(self):
        self.saved_sigint_handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def end_cell(self):
        signal.signal(signal.SIGINT, self.saved_sigint_handler)


@pytest.fixture
def kernel(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel = Kernel()
    monkeypatch.setattr(frontend, "kernel", lambda: kernel)
    yield kernel
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("paused", [False, True])
def test_an_interrupt_between_cells_ends_the_run(trainer, kernel, paused):
    async def scene():
        kernel.start_cell()
        run = await begun(trainer, 2, pace=50)
        kernel.end_cell()
        if paused:
            run.pause()
        await until(lambda: signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGINT)
        return await run.finished()

    check(asyncio.run(scene()), "interrupted", range(2, 33))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_handler_is_given_back_even_if_the_run_ends_in_a_later_cell(trainer, kernel):
    async def scene():
        kernel.start_cell()
        run = await begun(trainer, 2, pace=50)
        kernel.end_cell()
        await until(lambda: signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)
        kernel.start_cell()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        run.stop()
        await run.finished()
        kernel.end_cell()

    asyncio.run(scene())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_interrupt_while_draining_ends_after_the_batch(trainer):
    before = signal.getsignal(signal.SIGINT)

    def after(run):
        if trainer.position.step == 4 and run.status == "running":
            os.kill(os.getpid(), signal.SIGINT)

    run = Run(trainer, after)
    run.drain()
    check(run, "interrupted", [4])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_in_another_thread_leaves_signals_alone(trainer):
    before = signal.getsignal(signal.SIGINT)
    run = Run(trainer)
    thread = threading.Thread(target=run.drain)
    thread.start()
    thread.join()
    check(run, "finished", [33])
    assert signal.getsignal(signal.SIGINT) is before


class Broken:
    """An observer that raises at the sixth batch, or when it is closed."""

    def __init__(self, error, closing=False):
        self.error, self.closing = error, closing

    def log(self, step, *, phase, **metrics):
        if step == 6 and not self.closing:
            raise self.error

    def close(self):
        if self.closing:
            raise self.error


@pytest.mark.parametrize("task", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError("disk full"), "failed"),
        (SystemExit(3), "failed"),
        (TimeIsUp(6, None), "out of time"),
    ],
    ids=lambda value: getattr(type(value), "__name__", value),
)
def test_what_is_raised_ends_the_run_alone_and_is_raised_where_one_waits(
    trainer, task, error, status, monkeypatch
):
    drawn = []
    monkeypatch.setattr(LiveBoard, "close", lambda self: drawn.append(self))
    trainer.observers += [Broken(error), LiveBoard(live=False)]
    run = Run(trainer)

    async def scene():
        run.begin()
        await until(lambda: run.status == status)  # the loop, and so the kernel, goes on
        await asyncio.sleep(0.01)
        await run.finished()

    with pytest.raises(type(error)) as caught:
        asyncio.run(scene()) if task else run.drain()
    assert caught.value is error
    check(run, status, [6])
    assert run.record()["error"] == repr(error)
    assert len(drawn) == 1
    assert strip.readout(run, 0.0).endswith(f"{type(error).__name__}: {error}")
    shown = getattr(error, "_render_traceback_", list)()
    assert shown == ([f"TimeIsUp: {error}"] if status == "out of time" else [])


def test_the_time_budget_of_the_process_ends_a_run(trainer, monkeypatch):
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "1e-9")
    run = Run(trainer)
    with pytest.raises(TimeIsUp, match="time budget"):
        run.drain()
    check(run, "out of time", [1])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_interrupt_that_is_raised_ends_the_run_without_an_error(trainer, error):
    trainer.observers.append(Broken(error))
    run = Run(trainer)
    run.drain()
    assert run.status == "interrupted"
    assert run.error is None


def test_a_fault_of_closing_is_kept_too(trainer):
    trainer.observers.append(Broken(OSError("disk full"), closing=True))
    run = Run(trainer)
    with pytest.raises(OSError, match="disk full"):
        run.drain()
    check(run, "failed", [33])


def test_a_steered_run_says_so_and_is_saved_whole(trainer, tmp_path):
    run = Run(trainer)
    trainer.steer("target_rate", 0.3)
    run.drain()
    run.save(tmp_path / "run.json")
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["steered"] is True
    assert record["events"] == [{"step": 0, "name": "target_rate", "value": 0.3}]
    assert record["status"] == "finished"


# --- the dashboard around it -------------------------------------------------------------------


def quiet_dashboard(**options):
    live = Dashboard(**options)
    live.board.shown = False
    return live


@pytest.fixture
def begin(trainer, monkeypatch):
    """Start a dashboard where the front end is as told."""
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: None)

    def begin(mode):
        monkeypatch.setattr(frontend, "mode", lambda wish=None: mode)
        live = quiet_dashboard()
        run = asyncio.run(live.start(trainer))
        assert len(live.board.series["loss"].points()) == 33
        return run

    return begin


def test_another_trainer_has_curves_of_its_own(trainer):
    live = quiet_dashboard(live=False)
    asyncio.run(live.start(trainer))
    first = live.board
    live.board.shown = False
    asyncio.run(live.start(small_trainer()))
    assert len(first.series["loss"].points()) == 33
    assert len(live.board.series["loss"].points()) == 33


@pytest.mark.parametrize("mode", ["off", "headless"])
def test_nobody_there_runs_to_the_end_without_a_widget(begin, monkeypatch, mode):
    monkeypatch.setattr(Dashboard, "_answered", pytest.fail)
    assert begin(mode).status == "finished"


def test_no_answer_runs_to_the_end(begin, monkeypatch):
    notes = []
    monkeypatch.setattr(strip.Strip, "close", lambda self, note: notes.append(note))
    monkeypatch.setattr(dashboard, "ANSWER_S", 0.1)
    assert begin("ask").status == "finished"
    assert notes == ["no front end answered within 0.1 s: training ran to its end"]


def test_without_the_widget_library_it_says_so(begin, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "astkit.widgets.strip", None)
    assert begin("ask").status == "finished"
    assert "training runs to its end" in capsys.readouterr().out


def test_an_answer_lets_the_cell_end_while_the_run_goes_on(trainer, monkeypatch):
    monkeypatch.setattr(frontend, "mode", lambda wish=None: "ask")
    monkeypatch.setattr(strip, "READOUT_SECONDS", 0.0)
    monkeypatch.setattr(dashboard, "ANSWER_S", 20.0)
    strips, seen = [], []
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: None)
    ready = strip.Strip.answered

    async def answered(self, seconds):
        strips.append(self)
        self._ready._handle_custom_msg({"ready": True}, [])
        return await ready(self, seconds)

    monkeypatch.setattr(strip.Strip, "answered", answered)

    async def scene():
        live = quiet_dashboard(pace=200)
        run = await live.start(trainer)
        assert not trainer.done
        (controls,) = strips
        await until(lambda: run.status == "running")
        with pytest.raises(RuntimeError, match="already steers a run"):
            await live.start(trainer)
        await until(lambda: trainer.position.step >= 3)
        controls._target.value = 0.4
        await until(lambda: trainer.step.gate.target_rate == 0.4)
        seen.append([child.description for child in controls._gains.children])
        controls.box.children[0].children[1].value = "origin_pi"
        await until(lambda: len(controls._gains.children) == 3)
        seen.append([child.description for child in controls._gains.children])
        controls._gains.children[0].value = 0.01
        return await run.finished()

    run = asyncio.run(scene())
    assert run.status == "finished"
    assert [e["name"] for e in run.record()["events"]] == ["target_rate", "controller", "kp"]
    assert seen == [["gain"], ["kp", "ki", "alpha"]]
    for words in ("<b>finished</b> · step 33", "joules not measured", "threshold", "rate"):
        assert words in strips[0]._readout.value


def test_a_run_without_a_gate_has_a_strip_without_its_rows(monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: None)
    dense = small_trainer(gated=False)

    async def rows():
        return len(strip.Strip(Run(dense)).box.children)

    assert asyncio.run(rows()) == 3
    resumed = Run(dense)
    resumed.status, dense.position.spent = "running", 0.92
    assert "8 s left" in strip.readout(resumed, time.perf_counter() - 2, 0.9)  # 2 % took 2 s
    assert "threshold" not in strip.readout(Run(dense), 0.0)
    assert "selection" not in strip.readout(Run(dense), 0.0)
    dense.switch = Switch("Gate")
    assert "dense step (selection is off" in strip.readout(Run(dense), 0.0)


def test_a_pace_of_nothing_is_refused():
    with pytest.raises(ValueError, match="pace is 0: pass batches a second above 0"):
        Dashboard(pace=0)
