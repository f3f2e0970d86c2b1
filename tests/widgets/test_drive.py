"""Driving a run: pause, step, stop and interrupts, each leaving a complete record."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time

import pytest

from astkit.runs import arms
from astkit.widgets import Dashboard, LiveBoard, Run, dashboard, frontend, strip


@pytest.fixture
def trainer():
    return arms.trainer(arms.task("digits", epochs=3), "batched gate", 0)


def complete(run):
    """Whether the record holds all that was trained, and the model is as a run leaves it."""
    record = json.loads(json.dumps(run.record()))
    steps = [step["step"] for step in record["steps"]]
    return steps == list(range(1, record["training_steps"] + 1)) and len(steps) > 0


async def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


def test_a_task_runs_to_the_end(trainer):
    async def scene():
        run = Run(trainer)
        run.begin()
        assert run.status == "ready"
        return await run.finished()

    run = asyncio.run(scene())
    assert run.status == "finished"
    assert run.record()["training_steps"] == 33
    assert len(run.record()["epochs"]) == 3
    assert complete(run)
    assert not run.record()["steered"]


def test_draining_is_the_same_run(trainer):
    other = arms.trainer(arms.task("digits", epochs=3), "batched gate", 0)
    run = Run(trainer)
    run.drain()
    Run(other).drain()
    assert run.status == "finished"
    assert other.history.steps == trainer.history.steps
    assert complete(run)


def test_pause_freezes_resume_moves_step_takes_one(trainer):
    async def scene():
        run = Run(trainer)
        run.begin()
        await until(lambda: trainer.position.step >= 3)
        run.pause()
        await until(lambda: run.status == "paused")
        held = trainer.position.step
        await asyncio.sleep(0.2)
        assert trainer.position.step == held
        run.step()
        await until(lambda: trainer.position.step == held + 1 and run.status == "paused")
        await asyncio.sleep(0.2)
        assert trainer.position.step == held + 1
        run.resume()
        await until(lambda: trainer.position.step > held + 2)
        return await run.finished()

    run = asyncio.run(scene())
    assert run.status == "finished"
    assert complete(run)


@pytest.mark.parametrize("paused", [False, True])
def test_stop_keeps_what_was_done(trainer, paused):
    async def scene():
        run = Run(trainer)
        run.begin()
        await until(lambda: trainer.position.step >= 5)
        if paused:
            run.pause()
            await until(lambda: run.status == "paused")
        run.stop()
        return await run.finished()

    run = asyncio.run(scene())
    assert run.status == "stopped"
    assert 5 <= run.record()["training_steps"] < 33
    assert complete(run)
    assert trainer.model.training


def test_cancelling_the_wait_ends_the_run_and_not_the_task(trainer):
    async def scene():
        run = Run(trainer)
        run.begin(pace=50)
        waiting = asyncio.create_task(run.finished())
        await until(lambda: trainer.position.step >= 4)
        waiting.cancel()
        result = await waiting
        assert result is run
        return run

    run = asyncio.run(scene())
    assert run.status == "interrupted"
    assert run.record()["training_steps"] < 33
    assert complete(run)


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
        run = Run(trainer)
        run.begin(pace=50)
        await until(lambda: trainer.position.step >= 2)
        kernel.end_cell()
        if paused:
            run.pause()
        await until(lambda: signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGINT)
        return await run.finished()

    run = asyncio.run(scene())
    assert run.status == "interrupted"
    assert complete(run)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_handler_is_given_back_even_if_the_run_ends_in_a_later_cell(trainer, kernel):
    async def scene():
        kernel.start_cell()
        run = Run(trainer)
        run.begin(pace=50)
        await until(lambda: trainer.position.step >= 2)
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
    assert run.status == "interrupted"
    assert run.record()["training_steps"] == 4
    assert complete(run)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_in_another_thread_leaves_signals_alone(trainer):
    before = signal.getsignal(signal.SIGINT)
    run = Run(trainer)
    thread = threading.Thread(target=run.drain)
    thread.start()
    thread.join()
    assert run.status == "finished"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("task", [False, True])
def test_a_failure_is_kept_and_raised_where_one_waits(trainer, task):
    class Broken:
        def log(self, step, *, phase, **metrics):
            if step == 6:
                raise OSError("disk full")

        def close(self):
            pass

    trainer.observers.append(Broken())
    run = Run(trainer)

    async def scene():
        run.begin()
        await run.finished()

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(scene()) if task else run.drain()
    assert run.status == "failed"
    assert run.record()["error"] == "OSError('disk full')"
    assert len(run.record()["steps"]) == 6


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


def start(live, trainer, monkeypatch, mode):
    monkeypatch.setattr(frontend, "mode", lambda wish=None: mode)
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: None)
    return asyncio.run(live.start(trainer))


@pytest.mark.parametrize("mode", ["off", "headless"])
def test_nobody_there_runs_to_the_end_without_a_widget(trainer, monkeypatch, mode):
    monkeypatch.setattr(dashboard.Dashboard, "_somebody", pytest.fail)
    board = LiveBoard(live=False)
    begun = time.monotonic()
    run = start(Dashboard(board), trainer, monkeypatch, mode)
    assert run.status == "finished"
    assert time.monotonic() - begun < 4 + 20
    assert len(board.steps["step"]) == 33


def test_no_answer_runs_to_the_end(trainer, monkeypatch):
    notes = []
    monkeypatch.setattr(strip.Strip, "close", lambda self, note: notes.append(note))
    run = start(Dashboard(LiveBoard(live=False), wait_s=0.1), trainer, monkeypatch, "ask")
    assert run.status == "finished"
    assert notes == ["no front end answered within 0.1 s, so the run went to its end"]


def test_an_answer_lets_the_cell_end_while_the_run_goes_on(trainer, monkeypatch):
    monkeypatch.setattr(frontend, "mode", lambda wish=None: "ask")
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: None)
    seen = []
    monkeypatch.setattr(strip, "READOUT_SECONDS", 0.0)

    async def scene():
        live = Dashboard(LiveBoard(live=False), wait_s=20, pace=200)
        asyncio.get_running_loop().call_later(0.05, lambda: answer(live))
        run = await live.start(trainer)
        assert not trainer.done
        controls = live._strip
        await until(lambda: run.status == "running")
        with pytest.raises(RuntimeError, match="steers a run already"):
            await live.start(trainer)
        await until(lambda: trainer.position.step >= 3)
        controls._target.value = 0.4
        await until(lambda: trainer.step.gate.target_rate == 0.4)
        seen.append([child.description for child in controls._gains.children])
        controls.box.children[0].children[1].value = "origin_pi"
        await until(lambda: len(controls._gains.children) == 3)
        seen.append([child.description for child in controls._gains.children])
        controls._gains.children[0].value = 0.01
        await run.finished()
        return run, controls

    def answer(live):
        live._strip._ready._handle_custom_msg({"ready": True}, [])

    run, controls = asyncio.run(scene())
    assert run.status == "finished"
    assert [e["name"] for e in run.record()["events"]] == ["target_rate", "controller", "kp"]
    assert seen == [["gain"], ["kp", "ki", "alpha"]]
    assert "<b>finished</b> · step 33" in controls._readout.value
    assert "no joules" in controls._readout.value
    assert "threshold" in controls._readout.value


def test_without_the_widget_library_it_says_so(trainer, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "astkit.widgets.strip", None)
    run = start(Dashboard(LiveBoard(live=False)), trainer, monkeypatch, "ask")
    assert run.status == "finished"
    assert "no controls, the run goes to its end" in capsys.readouterr().out


def test_a_pace_of_nothing_is_refused():
    with pytest.raises(ValueError, match="pace is 0: give batches a second above 0"):
        Dashboard(pace=0)
