"""Progress: few bar updates, one line an epoch outside of notebooks, and an ETA that adds up."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from astkit.background import BackgroundError
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from astkit.datasets import Loader
from astkit.trainers import Budget, Progress, Trainer
from astkit.trainers import progress as module
from tests.trainers.states import leave_after

MODEL = nn.Linear(3, 2)


class FakeBar:
    """Counts its redraws and remembers what it showed."""

    def __init__(self):
        self.n, self.shown, self.postfix, self.closed = 0.0, [], "", 0

    def set_postfix_str(self, text, refresh):
        assert refresh is False  # or it would be one redraw more
        self.postfix = text

    def refresh(self):
        self.shown.append(self.n)

    def close(self):
        self.closed += 1


def with_bar(**options):
    observer = Progress(bar=False, **options)
    observer.bar = FakeBar()
    return observer


def rows(count):
    return TensorDataset(torch.zeros(count, 3), torch.zeros(count, dtype=torch.long))


def run(observer, epochs, batches, validation=None, budget=None, also=()):
    trainer = Trainer(
        MODEL,
        Loader(rows(batches), 1),
        validation,
        budget=budget or Budget(epochs=epochs),
        observers=[observer, *also],
    )
    trainer.run()
    return trainer


class PerEpoch:
    """Counts the redraws that each epoch caused."""

    def __init__(self, observer):
        self.observer, self.counts, self.last = observer, [], 0

    def log(self, step, *, phase, **metrics):
        self.observer.log(step, phase=phase, **metrics)
        self.observer.writer.flush()
        if phase == "epoch":
            self.counts.append(len(self.observer.bar.shown) - self.last)
            self.last = len(self.observer.bar.shown)

    def close(self):
        self.observer.close()


def test_the_bar_moves_at_most_ten_times_an_epoch(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.0)
    for epochs, batches in itertools.product((1, 3), (1, 3, 10, 64)):
        watched, numbers = PerEpoch(with_bar()), itertools.product(range(epochs), range(batches))
        for step, (epoch, batch) in enumerate(numbers, start=1):
            of_epoch = (batch + 1) / batches
            told = {"epoch": epoch, "progress": (epoch + of_epoch) / epochs}
            watched.log(step, phase="train", of_epoch=of_epoch, loss=1.0, **told)
            if batch + 1 == batches:
                watched.log(step, phase="validate", **told)
                watched.log(step, phase="epoch", **told)
        assert max(watched.counts) <= 10
        assert min(watched.counts) >= min(batches, 10) / 2  # yet it does move
        bar = watched.observer.bar
        assert bar.shown == sorted(bar.shown)
        assert bar.shown[-1] == 1.0


def test_the_bar_rests_between_two_updates(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    observer = with_bar()
    for part in range(1, 10):
        told = {"epoch": 0, "of_epoch": part / 10, "progress": part / 10}
        observer.log(part, phase="train", loss=1.0, **told)
        observer.writer.flush()
        now[0] += module.PAUSE / 3.2
    assert observer.bar.shown == [0.1, 0.5, 0.9]


def test_the_bar_follows_other_budgets_and_loaders_of_unknown_length():
    class Unsized(IterableDataset):
        def __iter__(self):
            return iter(rows(10))

    watched = PerEpoch(with_bar())
    run(watched, None, 20, budget=Budget(flops=24.0 * 50))  # two and a half epochs
    assert max(watched.counts) <= 10
    assert len(watched.counts) == 3
    assert watched.observer.bar.shown[-1] == 1.0
    watched = PerEpoch(with_bar())
    Trainer(MODEL, DataLoader(Unsized(), 1), epochs=2, observers=[watched]).run()
    assert watched.counts == [1, 1]
    assert watched.observer.bar.shown == [0.5, 1.0]


def test_the_bar_says_how_it_stands_and_is_closed():
    observer = with_bar()
    trainer = run(observer, 2, 12, validation=Loader(rows(5), 5))
    final = trainer.history.epochs[-1]
    loss = trainer.history.steps[-1]["loss"]
    expected = f"epoch 2, loss {loss:.4f}, validation accuracy {final['val_accuracy']:.2%}"
    assert observer.bar.postfix == expected
    assert observer.bar.closed == 1


def test_a_run_that_goes_on_has_a_new_bar(monkeypatch):
    bars = []
    monkeypatch.setattr(module, "_tqdm", lambda label: bars.append(FakeBar()) or bars[-1])
    trainer = Trainer(MODEL, Loader(rows(8), 1), epochs=2, observers=[Progress(bar=True)])
    leave_after(trainer, 4)
    assert len(bars) == 1
    trainer.run()
    assert [bar.closed for bar in bars] == [1, 1]
    assert bars[1].initial == 5 / 16
    assert bars[1].shown[-1] == 1.0


def clock(monkeypatch, *seconds):
    """Let the observer's clock show ``seconds``, one after the other."""
    times = iter(seconds)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))


def test_one_line_an_epoch_outside_of_notebooks(monkeypatch):
    clock(monkeypatch, 0.0, 100.0, 130.0, 250.0, 310.0, 340.0)
    text = io.StringIO()
    observer = Progress("a run", bar=False, stream=text)
    run(observer, 4, 3, validation=Loader(rows(5), 5))
    lines = text.getvalue().splitlines()
    assert len(lines) == 4
    assert text.getvalue().endswith("\n")
    shares = ["25% of the budget", "50% of the budget", "75% of the budget", "100% of the budget"]
    # from the first batch at 1 / 12 and 100 s on: elapsed * (1 - p) / (p - 1 / 12)
    left = ["2:15 left", "3:00 left", "1:19 left", "0:00 left"]
    for number, line in enumerate(lines):
        assert line.startswith(f"a run: epoch {number + 1}, loss ")
        assert "validation accuracy " in line
        assert line.endswith(f"{shares[number]}, {left[number]}")


def test_the_time_left_of_a_resumed_run_counts_its_own_progress(monkeypatch):
    clock(monkeypatch, 0.0, 100.0, 160.0, 500.0, 530.0)
    text = io.StringIO()
    observer = Progress(bar=False, stream=text)
    observer.log(81, phase="train", epoch=8, of_epoch=0.1, progress=0.8, loss=1.0)
    observer.log(90, phase="epoch", epoch=9, progress=0.9)
    observer.close()  # and used again later
    observer.log(90, phase="epoch", epoch=9, progress=0.9)  # from which nothing follows
    observer.log(95, phase="epoch", epoch=10, progress=0.95)
    observer.close()
    ends = [line.partition("budget")[2] for line in text.getvalue().splitlines()]
    assert ends == [", 1:00 left", "", ", 0:30 left"]


def test_so_does_the_bar(capsys):
    observer = Progress(bar=True)
    observer.log(81, phase="train", epoch=8, of_epoch=0.1, progress=0.5, loss=1.0)
    observer.bar.start_t -= 100
    observer.log(90, phase="epoch", epoch=9, progress=0.75)
    observer.close()
    assert "01:40<01:40" in capsys.readouterr().err  # and not <00:33


def test_lines_go_to_standard_output_and_omit_what_was_not_measured(capsys):
    run(Progress(bar=False), 1, 3)
    captured = capsys.readouterr()
    assert captured.out.startswith("epoch 1, loss ")
    assert "validation" not in captured.out
    assert captured.err == ""


def test_a_batch_without_a_loss_keeps_the_last_one():
    text = io.StringIO()
    observer = Progress(bar=False, stream=text)
    told = {"epoch": 0, "of_epoch": 0.5, "progress": 0.5}
    observer.log(1, phase="train", loss=0.25, **told)
    observer.log(2, phase="train", loss=None, **told)
    observer.log(2, phase="epoch", epoch=1, progress=0.5)
    observer.close()
    assert "loss 0.2500" in text.getvalue()


def test_a_notebook_keeps_the_last_line_of_the_bar(monkeypatch, capsys):
    shown = []
    handle = SimpleNamespace(update=lambda text: shown.append(text.data))
    monkeypatch.setattr("IPython.display.display", lambda *_, display_id: handle)
    monkeypatch.setattr(module, "_in_notebook", lambda: True)
    run(Progress("dense"), 2, 4)
    assert shown[0].startswith("dense:   0%|")
    assert shown[-1].startswith("dense: 100%|██")
    assert "epoch 2, loss" in shown[-1]
    assert not any("\n" in text or "\r" in text for text in shown)
    assert capsys.readouterr() == ("", "")


def test_durations():
    expected = {0: "0:00", 0.4: "0:00", 9.6: "0:10", 59.7: "1:00", 90: "1:30", 3599.6: "1:00:00",
                3700: "1:01:40", 90061: "25:01:01"}  # fmt: skip
    assert {seconds: module.duration(seconds) for seconds in expected} == expected


def test_a_bar_is_drawn_in_notebooks_and_terminals(monkeypatch):
    notebook, ipython = SimpleNamespace(kernel=object()), SimpleNamespace()
    bar = FakeBar()
    monkeypatch.setattr(module, "_tqdm", lambda label: bar)
    for shell, terminal, expected in (
        (notebook, False, True),
        (ipython, False, False),  # in a pipe
        (ipython, True, True),
        (None, False, False),
        (None, True, True),
    ):
        monkeypatch.setitem(
            sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell)
        )
        monkeypatch.setattr(sys.stderr, "isatty", lambda on=terminal: on, raising=False)
        assert Progress().bar is (bar if expected else None)
        assert Progress(bar=not expected).bar is (None if expected else bar)


def test_without_tqdm_there_are_lines(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    observer = Progress(bar=True)
    assert observer.bar is None
    run(observer, 1, 3)
    assert capsys.readouterr().out.count("\n") == 1


def test_the_real_bar_shows_its_label_and_its_end(capsys):
    run(Progress("dense", bar=True), 2, 4)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "dense: 100%" in captured.err
    assert "epoch 2, loss" in captured.err


class Pipe(io.StringIO):
    """A pipe that nobody reads until it is released."""

    def __init__(self):
        super().__init__()
        self.ready = threading.Event()

    def write(self, text):
        assert self.ready.wait(30)
        return super().write(text)


class StuckBar(FakeBar):
    """A front end that takes nothing until it is released."""

    def __init__(self):
        super().__init__()
        self.ready = threading.Event()

    def refresh(self):
        assert self.ready.wait(30)
        super().refresh()


class Release:
    """An observer that releases a front end at step ``at``, or else at the end."""

    def __init__(self, event, at):
        self.event, self.at, self.reached = event, at, False

    def log(self, step, **metrics):
        if step == self.at and not self.event.is_set():
            self.reached = True
            self.event.set()

    def close(self):
        self.event.set()


def test_a_front_end_that_hangs_delays_no_step_and_shows_the_end():
    pipe, bar = Pipe(), StuckBar()
    release = Release(pipe.ready, at=5 * 8)
    run(Progress(bar=False, stream=pipe), 6, 8, also=[release])
    assert release.reached
    written = pipe.getvalue().splitlines()
    assert [line.split(",")[0] for line in written] == [f"epoch {epoch}" for epoch in range(1, 7)]
    drawn = Progress(bar=False)
    drawn.bar, release = bar, Release(bar.ready, at=4 * 40)
    run(drawn, 4, 40, also=[release])
    assert release.reached
    assert len(bar.shown) <= 4  # the others were left out
    assert (bar.shown[-1], bar.closed) == (1.0, 1)
    assert bar.postfix.startswith("epoch 4, loss ")


def test_the_end_of_a_run_waits_for_a_front_end_for_a_while_only(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    pipe = Pipe()
    observer = Progress(bar=False, stream=pipe)
    run(observer, 1, 3)
    assert pipe.getvalue() == ""
    pipe.ready.set()
    observer.writer.flush()
    assert pipe.getvalue().startswith("epoch 1, loss ")


def test_a_process_ends_though_nobody_reads_its_pipe():
    code = """if True:
        from astkit.trainers import Progress, progress
        progress.PATIENCE = 0.1
        observer = Progress("more than a pipe holds " * 100_000, bar=False)
        observer.log(1, phase="epoch", epoch=1, progress=1.0)
        observer.close()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_a_pipe_that_breaks_ends_the_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    observer = Progress(bar=False, stream=Broken())
    with pytest.raises(BackgroundError, match=r"progress failed in the background \(BrokenPipe"):
        run(observer, 3, 4)


class Direct:
    """Runs each job at once."""

    def put(self, job, what):
        job()

    def flush(self, timeout):
        pass


def share(writer=None, **options):
    """Seconds in the observer over seconds of the run, with steps of the size of digits."""
    observer, spent = Progress(**options), 0.0
    observer.writer = writer or observer.writer
    log = observer.log

    def timed(step, **metrics):
        nonlocal spent
        start = time.perf_counter()
        log(step, **metrics)
        spent += time.perf_counter() - start

    observer.log = timed
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    data = TensorDataset(torch.zeros(64 * 32, 64), torch.zeros(64 * 32, dtype=torch.long))
    start = time.perf_counter()
    Trainer(model, Loader(data, 32), budget=Budget(epochs=6), observers=[observer]).run()
    return spent / (time.perf_counter() - start)


@pytest.mark.full
@pytest.mark.benchmark
def test_its_whole_cost_is_a_small_share_of_a_run(capsys):
    class Slow(io.StringIO):
        def write(self, text):
            time.sleep(0.02)
            return super().write(text)

    # all in one process, so a slow machine slows all; the best of three runs
    for bar in (True, False):
        assert min(share(bar=bar) for _ in range(3)) < 0.05
    held = share(Direct(), bar=False, stream=Slow())
    free = min(share(bar=False, stream=Slow()) for _ in range(3))
    assert free < 0.05
    assert free < held / 2
