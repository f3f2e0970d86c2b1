"""Progress: few bar updates, one line a pass where nobody watches, and an ETA that adds up."""

from __future__ import annotations

import io
import itertools
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from astkit.background import BackgroundError, BackgroundWriter
from astkit.datasets import Loader
from astkit.trainers import Budget, Progress, Trainer
from astkit.trainers import progress as module

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


def run(observer, epochs, batches, validation=None, budget=None):
    trainer = Trainer(
        MODEL,
        Loader(rows(batches), 1),
        validation,
        budget=budget or Budget(epochs=epochs),
        observers=[observer],
    )
    trainer.run()
    return trainer


class PerEpoch:
    """Counts the redraws that each pass caused."""

    def __init__(self, observer):
        self.observer, self.counts, self.last = observer, [], 0

    def log(self, step, *, phase, **metrics):
        self.observer.log(step, phase=phase, **metrics)
        if phase == "epoch":
            self.counts.append(len(self.observer.bar.shown) - self.last)
            self.last = len(self.observer.bar.shown)

    def close(self):
        self.observer.close()


@pytest.mark.parametrize(("epochs", "batches"), [(1, 3), (1, 10), (3, 21), (0.5, 64)])
def test_the_bar_moves_at_most_ten_times_an_epoch(epochs, batches):
    watched = PerEpoch(with_bar())
    run(watched, epochs, batches)
    assert len(watched.counts) == -(-epochs // 1)
    assert max(watched.counts) <= 10
    if epochs >= 1 and batches >= 10:
        assert min(watched.counts) >= 5  # yet it does move
    bar = watched.observer.bar
    assert bar.shown == sorted(bar.shown)
    assert bar.shown[-1] == 1.0


@settings(max_examples=40, deadline=None)
@given(batches=st.integers(1, 200), per_epoch=st.integers(1, 30), epochs=st.integers(1, 4))
def test_the_bar_keeps_to_its_number(batches, per_epoch, epochs):
    watched = PerEpoch(with_bar(per_epoch=per_epoch))
    batch_numbers = itertools.product(range(epochs), range(1, batches + 1))
    for step, (epoch, batch) in enumerate(batch_numbers, start=1):
        done = (epoch + batch / batches) / epochs
        told = {"epoch": epoch, "progress": done, "of_epoch": batch / batches, "loss": 1.0}
        watched.log(step, phase="train", **told)
        if batch == batches:
            watched.log(step, phase="validate", epoch=epoch, progress=done)
            watched.log(step, phase="epoch", epoch=epoch + 1, progress=done)
    assert max(watched.counts) <= per_epoch
    assert min(watched.counts) >= min(batches, per_epoch) / 2


def test_the_bar_follows_other_budgets_and_loaders_of_unknown_length():
    class Unsized(IterableDataset):
        def __iter__(self):
            return iter(rows(30))

    watched = PerEpoch(with_bar())
    run(watched, None, 40, budget=Budget(flops=24.0 * 100))  # two and a half passes
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


def test_one_line_a_pass_where_nobody_watches(monkeypatch):
    seconds = iter([100.0, 130.0, 250.0, 310.0, 340.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    text = io.StringIO()
    observer = Progress("a run", bar=False, stream=text)
    run(observer, 4, 3, validation=Loader(rows(5), 5))
    lines = text.getvalue().splitlines()
    assert len(lines) == 4
    assert text.getvalue().endswith("\n")
    shares = ["25% of the budget", "50% of the budget", "75% of the budget", "100% of the budget"]
    left = ["1:30 left", "2:30 left", "1:10 left", "0:00 left"]  # elapsed * (1 - p) / p
    for number, line in enumerate(lines):
        assert line.startswith(f"a run: epoch {number + 1}, loss ")
        assert "validation accuracy " in line
        assert line.endswith(f"{shares[number]}, {left[number]}")


def test_lines_go_to_standard_output_and_say_nothing_of_what_is_not_there(capsys):
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
    assert "loss 0.2500" in text.getvalue()
    observer.close()


def test_durations():
    expected = {0: "0:00", 0.4: "0:00", 9.6: "0:10", 59.7: "1:00", 90: "1:30", 3599.6: "1:00:00",
                3700: "1:01:40", 90061: "25:01:01"}  # fmt: skip
    assert {seconds: module.duration(seconds) for seconds in expected} == expected


def test_who_is_watching(monkeypatch):
    notebook, ipython = SimpleNamespace(kernel=object()), SimpleNamespace()
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
        assert module.interactive() is expected


@pytest.mark.parametrize("watching", [True, False])
def test_a_bar_is_drawn_where_somebody_watches(monkeypatch, watching):
    bar = FakeBar()
    monkeypatch.setattr(module, "interactive", lambda: watching)
    monkeypatch.setattr(module, "_tqdm", lambda label: bar)
    assert Progress().bar is (bar if watching else None)
    assert Progress(bar=not watching).bar is (None if watching else bar)


def test_without_tqdm_there_are_lines(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
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
    """A pipe that nobody reads until it is let go."""

    def __init__(self):
        super().__init__()
        self.ready, self.tries = threading.Event(), 0

    def write(self, text):
        self.tries += 1
        assert self.ready.wait(30)
        return super().write(text)


class StuckBar(FakeBar):
    """A front end that takes nothing until it is let go."""

    def __init__(self):
        super().__init__()
        self.ready = threading.Event()

    def refresh(self):
        assert self.ready.wait(30)
        super().refresh()


def letting_go(event, at):
    """An observer that lets go when step ``at`` has been reached, or else at the end."""

    class Release:
        reached = False

        def log(self, step, **metrics):
            if step == at and not event.is_set():
                self.reached = True
                event.set()

        def close(self):
            event.set()

    return Release()


def test_a_pipe_that_nobody_reads_holds_no_step_and_loses_no_line():
    pipe = Pipe()
    release = letting_go(pipe.ready, at=5 * 8)
    with BackgroundWriter(limit=1) as writer:
        observer = Progress(bar=False, stream=pipe, writer=writer)
        data = Loader(rows(8), 1)
        Trainer(MODEL, data, budget=Budget(epochs=6), observers=[observer, release]).run()
        assert release.reached
        assert pipe.tries > 0
        lines = pipe.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [f"epoch {epoch}" for epoch in range(1, 7)]


def test_a_front_end_that_hangs_holds_no_step_and_sees_the_end():
    bar = StuckBar()
    release = letting_go(bar.ready, at=4 * 40)
    with BackgroundWriter(limit=2) as writer:
        observer = Progress(bar=False, writer=writer)
        observer.bar = bar
        data = Loader(rows(40), 1)
        Trainer(MODEL, data, budget=Budget(epochs=4), observers=[observer, release]).run()
    assert release.reached
    assert len(bar.shown) <= 4  # what it had no time for was left out
    assert bar.shown[-1] == 1.0
    assert bar.postfix.startswith("epoch 4, loss ")
    assert bar.closed == 1


def test_the_end_of_a_run_waits_for_a_front_end_for_a_while_only(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    pipe = Pipe()
    with BackgroundWriter() as writer:
        run(Progress(bar=False, stream=pipe, writer=writer), 1, 3)
        assert pipe.getvalue() == ""
        pipe.ready.set()
    assert pipe.getvalue().startswith("epoch 1, loss ")


def test_with_a_writer_the_same_is_drawn():
    def drawn(**options):
        text, barred = io.StringIO(), with_bar(**options)
        for observer in (barred, Progress("a run", bar=False, stream=text, **options)):
            observer.log(1, phase="train", epoch=0, of_epoch=0.5, progress=0.25, loss=0.25)
            observer.log(1, phase="epoch", epoch=1, progress=0.5, val_accuracy=0.5)
            observer.log(2, phase="epoch", epoch=2, progress=1.0, val_accuracy=0.75)
            observer.close()
        bar = barred.bar
        return bar.postfix, bar.shown[-1], bar.closed, text.getvalue()

    with BackgroundWriter() as writer:
        assert drawn(writer=writer) == drawn()


def test_a_pipe_that_breaks_ends_the_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    writer = BackgroundWriter()
    observer = Progress(bar=False, stream=Broken(), writer=writer)
    with pytest.raises(BackgroundError, match=r"progress failed in the background \(BrokenPipe"):
        run(observer, 3, 4)
    with suppress(BackgroundError):  # the line of the end may have failed after that
        writer.close()


class Timed:
    """An observer and the seconds that it takes."""

    def __init__(self, observer):
        self.observer, self.seconds = observer, 0.0

    def log(self, step, **metrics):
        start = time.perf_counter()
        self.observer.log(step, **metrics)
        self.seconds += time.perf_counter() - start

    def close(self):
        self.observer.close()


class SlowStream(io.StringIO):
    def write(self, text):
        time.sleep(0.02)
        return super().write(text)


def share(observer, epochs=6):
    """Seconds in the observer over seconds of the run, with steps of the size of digits."""
    timed = Timed(observer)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    data = TensorDataset(torch.zeros(64 * 32, 64), torch.zeros(64 * 32, dtype=torch.long))
    trainer = Trainer(model, Loader(data, 32), budget=Budget(epochs=epochs), observers=[timed])
    start = time.perf_counter()
    for _ in trainer.steps():
        pass
    return timed.seconds / (time.perf_counter() - start)


@pytest.mark.full
@pytest.mark.parametrize("bar", [True, False])
def test_its_whole_cost_is_a_small_share_of_a_run(bar, capsys):
    # both in one process and one run, so a slow machine slows both; the best of three runs
    assert min(share(Progress(bar=bar)) for _ in range(3)) < 0.05


@pytest.mark.full
def test_a_slow_front_end_costs_no_more():
    held = share(Progress(bar=False, stream=SlowStream()))
    with BackgroundWriter() as writer:
        free = min(share(Progress(bar=False, stream=SlowStream(), writer=writer)) for _ in range(3))
    assert free < 0.05
    assert free < held / 2
