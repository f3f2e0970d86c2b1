"""Driving a run: in a cell, and between cells; pause, step, stop, interrupts and errors."""

import asyncio
import base64
import json
import os
import signal
import threading
import time
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from astkit.trainers import Checkpoints
from astkit.widgets import Dashboard, Run, frontend, screen
from tests import build

STEPS = 24


@pytest.fixture
def trainer():
    return build.gated()


def check(run, status, steps=range(1, STEPS + 1)):
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
        await asyncio.sleep(0.002)


class Kernel:
    """Stands for a kernel whose front end shows widgets, its shell, and the events of cells."""

    def __init__(self):
        self.shell = self.events = self
        self.output, self.screens = Output(), []
        self.heard = {"pre_execute": [], "post_execute": []}

    def register(self, name, function):
        self.heard[name].append(function)

    def unregister(self, name, function):
        self.heard[name].remove(function)

    def cell(self, name):
        for function in self.heard[name]:
            function()

    def get_parent(self, channel):
        return {"header": {"msg_type": "execute_request"}, "metadata": {"cellId": "a"}}


class Output:
    """Stands for the output of a cell: every bundle that it showed."""

    def __init__(self):
        self.shown = []

    def __call__(self, bundle, metadata, raw, display_id=True):
        assert raw
        self.shown.append({**bundle, "about": metadata})
        return self

    update = __call__

    @property
    def kinds(self):
        """Whether each was a widget or a picture."""
        return ["picture" if "image/png" in each else "widget" for each in self.shown]

    @property
    def caption(self):
        return self.shown[-1]["about"]["image/png"]["alt"]


@pytest.fixture
def notebook(monkeypatch):
    """A notebook: its kernel, the output of the cell, and the screens that are made."""
    kernel, made = Kernel(), screen.Screen.__init__

    def init(self, *args, **options):
        made(self, *args, **options)
        kernel.screens.append(self)

    monkeypatch.setattr(screen.Screen, "__init__", init)
    monkeypatch.setattr(frontend, "kernel", lambda: kernel)
    monkeypatch.setattr("IPython.display.display", kernel.output)
    return kernel


def started(notebook, trainer, use, heard=True, **options):
    """Start a run in a cell, and ``use(run, screen)`` it between cells; returns the run."""

    async def session():
        dashboard = Dashboard(**options)
        run = dashboard.start(trainer)
        assert run is dashboard.last
        (shown,) = notebook.screens
        if heard:
            shown.take({"ready": True})
        notebook.cell("post_execute")
        await use(run, shown)
        return run

    return asyncio.run(session())


def test_a_run_is_that_of_its_trainer(trainer, tmp_path):
    trainer.steer("rate", 0.4)
    run = Run(trainer)
    run.drive()
    check(run, "finished", [STEPS])
    run.save(tmp_path / "run.json")
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["steered"] is True
    assert record["events"] == [{"step": 0, "name": "rate", "value": 0.4}]
    alone = build.gated()
    alone.steer("rate", 0.4)
    losses = [[step["loss"] for step in steps] for steps in (record["steps"], alone.run().steps)]
    assert losses[0] == losses[1]


async def awaited(run):
    return await run


def test_in_a_script_it_trains_at_once_and_shows_nothing(trainer):
    run = Dashboard().start(trainer)
    check(run, "finished", [STEPS])
    assert asyncio.run(awaited(run)) is run.wait() is run


def test_without_a_front_end_start_blocks_and_ends_in_a_picture(notebook, trainer, monkeypatch):
    monkeypatch.setattr(frontend, "mode", lambda live=None: "headless")

    async def cell():
        return Dashboard().start(trainer)

    check(asyncio.run(cell()), "finished", [STEPS])
    assert set(notebook.output.kinds) == {"picture"}
    assert f"finished after {STEPS} batches · rate 0.3 · controller log_integral" in (
        notebook.output.caption
    )


def test_it_trains_between_cells_in_one_thread_and_touches_no_generator(notebook, trainer):
    threads, state = threading.active_count(), torch.get_rng_state()

    async def use(run, shown):
        assert (run.status, trainer.step) == ("ready", 0)
        await until(lambda: trainer.step >= 5)
        assert threading.active_count() == threads
        notebook.cell("pre_execute")
        assert "paused while another cell runs" in " ".join(shown.readout())
        step = trainer.step
        await asyncio.sleep(0.1)  # an asynchronous cell
        assert (run.status, trainer.step) == ("waiting", step)
        assert torch.equal(torch.get_rng_state(), state)
        notebook.cell("post_execute")
        await run

    check(started(notebook, trainer, use), "finished", [STEPS])
    assert not any(notebook.heard.values())
    alone = build.gated()
    assert [s["loss"] for s in alone.run().steps] == [s["loss"] for s in trainer.history.steps]


def test_pause_freezes_resume_moves_step_takes_one_stop_ends(notebook, trainer):
    sent = []

    async def use(run, shown):
        shown.widget.observe(lambda change: sent.append(change["new"]["content"]), "sent")

        def drawn():
            """The newest step sent so far."""
            return sent[-1]["step"]

        await until(lambda: trainer.step >= 3)
        shown.take({"press": "pause"})
        await until(lambda: run.status == "paused")
        at = trainer.step
        assert drawn() == at
        for more in (1, 2):
            shown.take({"press": "step"})
            await until(lambda more=more: trainer.step == at + more and run.status == "paused")
            assert drawn() == at + more
        await asyncio.sleep(0.1)
        assert trainer.step == at + 2
        shown.take({"press": "resume"})
        await until(lambda: trainer.step > at + 4)
        shown.take({"press": "stop"})
        await run
        check(run, "stopped", range(at + 5, STEPS))

    started(notebook, trainer, use, pace=100)
    *before, last = [content["state"] for content in sent]
    assert {state["enabled"] for state in before} == {True}
    assert (last["enabled"], last["ended"]) == (False, True)
    assert notebook.output.kinds == ["widget", "picture"]
    assert "stopped after" in notebook.output.caption


def test_settings_from_the_front_end_reach_the_gate(notebook, trainer):
    async def use(run, shown):
        await until(lambda: trainer.step >= 3)
        shown.take({"press": "pause"})
        await until(lambda: run.status == "paused")
        assert [name for name, _ in shown.gate()["gains"]] == ["gain"]
        shown.take({"set": ["rate", 0.4]})
        assert shown.gate()["rate"] == 0.4  # waits for the next batch
        shown.take({"set": ["controller", "origin_pi"]})
        shown.take({"press": "step"})
        await until(lambda: trainer.policy.rate == 0.4)
        assert [name for name, _ in shown.gate()["gains"]] == ["kp", "ki", "alpha"]
        shown.take({"set": ["kp", 0.01]})
        shown.take({"press": "resume"})
        await run

    run = started(notebook, trainer, use)
    assert [event["name"] for event in run.record()["events"]] == ["rate", "controller", "kp"]
    assert "controller origin_pi · kp 0.01" in notebook.output.caption


def test_a_second_start_of_a_running_trainer_is_one_sentence(notebook, trainer):
    async def use(run, shown):
        for begin in (Dashboard().start, Dashboard().run):
            with pytest.raises(RuntimeError, match="its run has not ended: await it"):
                begin(trainer)
        with pytest.raises(RuntimeError, match="wait: the run trains between cells"):
            run.wait()
        run.stop()
        await run

    check(started(notebook, trainer, use), "stopped", range(STEPS))
    assert notebook.output.kinds == ["widget", "picture"]


def test_a_trainer_may_be_started_again_and_goes_on_with_its_board():
    live, trainer = Dashboard(live=False), build.gated()
    boards = []
    for each in (trainer, trainer, build.gated()):
        live.run(each)
        boards.append(live.board)
    assert boards[0] is boards[1] is not boards[2]
    assert [len(board.series["loss"]) for board in boards] == [STEPS] * 3


@pytest.mark.parametrize("heard", [False, True])
def test_an_interrupt_between_cells_ends_the_run_and_is_raised_by_await(notebook, trainer, heard):
    async def use(run, shown):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in an idle kernel
        try:
            await until(lambda: trainer.step >= 4)
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                await run
        finally:
            signal.signal(signal.SIGINT, before)

    check(started(notebook, trainer, use, heard, pace=100), "interrupted", range(4, STEPS))


def test_an_interrupt_of_await_ends_the_run_after_its_batch(notebook, trainer):
    async def use(run, shown):
        waiting = asyncio.ensure_future(awaited(run))
        notebook.cell("pre_execute")
        await until(lambda: trainer.step >= 4)  # it goes on while a cell awaits it
        waiting.cancel()  # as ipykernel does
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), KeyboardInterrupt)

    with pytest.raises(KeyboardInterrupt):  # which asyncio raises too, and IPython does not
        check(started(notebook, trainer, use, pace=100), "interrupted", range(4, STEPS))
    assert trainer.step < STEPS


def test_an_interrupt_in_a_cell_is_raised_when_the_state_is_saved(tmp_path):
    def log(step, *, phase, **metrics):
        if step == 5 and phase == "train":
            os.kill(os.getpid(), signal.SIGINT)

    interrupting = SimpleNamespace(log=log, close=lambda: None)
    options = {"checkpoints": Checkpoints(tmp_path, every=1000), "observers": [interrupting]}
    live = Dashboard()
    with pytest.raises(KeyboardInterrupt):
        live.run(build.gated(**options))
    check(live.last, "interrupted", range(5, STEPS))
    options["observers"] = []
    assert build.gated(**options, resume=True).step == live.last.trainer.step


def broken(closing):
    """An observer that raises at the report of the sixth batch, or when it is closed."""

    def fail(step, **metrics):
        if step == 6:
            raise OSError("disk full")

    done = partial(fail, 6 if closing else 0)
    return SimpleNamespace(log=(lambda *_, **__: None) if closing else fail, close=done)


@pytest.mark.parametrize("closing", [False, True])
def test_an_error_is_shown_and_raised_by_await_and_the_record_is_kept(notebook, trainer, closing):
    trainer.reports.observers += [broken(closing)]

    async def use(run, shown):
        for _ in range(2):
            with pytest.raises(OSError, match="disk full"):
                await run

    run = started(notebook, trainer, use)
    assert run.status == run.record()["status"] == "failed"
    assert len(run.record()["steps"]) == (STEPS if closing else 6)
    assert "OSError: disk full" in notebook.output.caption
    with pytest.raises(OSError, match="disk full"):
        Dashboard().run(build.gated(observers=[broken(closing)]))


@pytest.mark.parametrize(("installed", "late"), [(False, False), (True, False), (True, True)])
def test_without_an_answer_pictures_take_the_place_and_say_so(
    notebook, trainer, monkeypatch, installed, late
):
    monkeypatch.setattr(screen, "ANSWER_S", 0.05)
    monkeypatch.setattr(screen, "FRAME_S", 0.0)
    if not installed:
        monkeypatch.setitem(__import__("sys").modules, "anywidget", None)

    async def use(run, shown):
        await until(lambda: shown.pictures)
        if late:
            run.pause()
            shown.take({"ready": True})
            run.step()
            await until(lambda: not shown.pictures)
            assert notebook.output.kinds[-1] == "widget"
            run.resume()
            await run
            return
        await run
        said = "no controls, since "
        said += "the front end shows no widget" if installed else "anywidget is not installed"
        assert shown.note.startswith(said)
        pictures = [each for each in notebook.output.shown if "image/png" in each]
        assert pictures[0]["about"]["image/png"]["alt"] == f"board of a run: {shown.note}"

    check(started(notebook, trainer, use, heard=False, pace=50), "finished", [STEPS])
    first, *others = notebook.output.kinds
    assert first == ("widget" if installed else "picture")
    assert others.count("picture") >= 1 + installed  # before the end too
    assert others.count("widget") == late
    assert others[-1] == "picture"


def png(colour):
    """A picture as a page sends it, and its colour as the kernel shows it."""
    Image.new("RGB", (4, 4), colour).save(file := BytesIO(), "png")
    return {"picture": base64.b64encode(file.getvalue()).decode()}


def colour(shown):
    """The colour of a picture of one colour that a cell displays."""
    return Image.open(BytesIO(base64.b64decode(shown["image/png"]))).convert("RGB").getpixel((0, 0))


def answering(shown, answers):
    """The page draws its picture when it is told that the run has ended."""

    def answer(change):
        if change["new"]["content"]["state"]["ended"] and answers:
            shown.take(png("red"))

    shown.widget.observe(answer, "sent")


@pytest.mark.parametrize("late", [False, True])
def test_the_picture_that_the_page_draws_is_stored(notebook, trainer, late, monkeypatch):
    monkeypatch.setattr(screen, "PICTURE_S", 0.05)

    async def use(run, shown):
        answering(shown, not late)
        await run
        assert notebook.output.kinds == ["widget", "picture"]
        if late:
            drawn = notebook.output.shown[-1]
            assert len(drawn["image/png"]) > 10_000
            shown.take(png("red"))
        assert colour(notebook.output.shown[-1]) == (255, 0, 0)
        assert notebook.output.shown[-1]["text/plain"] == "<LiveBoard>"
        assert "finished after 24 batches" in notebook.output.caption
        assert (shown.widget.comm is None) is not late  # stays open for an answer

    started(notebook, trainer, use)


def test_after_a_reload_the_widget_stays_and_await_shows_the_picture(notebook, trainer):
    async def use(run, shown):
        answering(shown, True)
        await until(lambda: trainer.step >= 3)
        shown.take({"ready": "the page, opened again"})
        await run
        assert notebook.output.kinds == ["widget", "picture", "picture"]  # the second by await
        assert shown.widget.comm is not None
        await run
        assert len(notebook.output.shown) == 4

    started(notebook, trainer, use, pace=100)


def test_a_trainer_that_shows_its_state_has_a_picture_on_the_board(notebook, trainer):
    trainer.picture = lambda: np.full((3, 5, 3), trainer.step, np.uint8)

    async def use(run, shown):
        await run
        assert shown.widget.sent["content"]["image"] == {"height": 3, "width": 5}
        assert len(shown.widget.sent["buffers"][2]) == 45

    started(notebook, trainer, use)


def test_a_controller_that_is_asked_for_shows_its_own_sliders_at_once(notebook, trainer):
    async def use(run, shown):
        run.pause()
        await until(lambda: run.status == "paused")
        shown.take({"set": ["controller", "origin_pi"]})
        assert [name for name, _ in shown.gate()["gains"]] == ["kp", "ki", "alpha"]
        assert shown.gate()["controller"] == "origin_pi"
        run.stop()
        await run

    started(notebook, trainer, use)
