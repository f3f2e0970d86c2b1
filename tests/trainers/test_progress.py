"""Progress: few updates of the bar, one line an epoch elsewhere, and a time left that adds up."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from astkit.trainers import Budget, Progress, Trainer
from astkit.trainers import progress as module
from tests.trainers.states import leave_after


class FakeBar:
    """Counts its redraws and remembers what it showed."""

    def __init__(self, initial: float = 0.0) -> None:
        self.initial = self.n = initial
        self.shown: list[float] = []
        self.postfix, self.closed = "", 0

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        assert refresh is False  # or it would be one redraw more
        self.postfix = text

    def refresh(self) -> None:
        self.shown.append(self.n)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[FakeBar]:
    """The bars that are made, in order."""
    made: list[FakeBar] = []

    def make(label: str, progress: float) -> FakeBar:
        made.append(FakeBar(progress))
        return made[-1]

    monkeypatch.setattr(module, "_tqdm", make)
    return made


def rows(count: int) -> TensorDataset:
    return TensorDataset(torch.zeros(count, 3), torch.zeros(count, dtype=torch.long))


def run(observer: Progress, batches: int, validation: Any = None, **budget: Any) -> Trainer:
    """Train on batches of one row."""
    options: dict[str, Any] = {"budget": Budget(**budget), "observers": [observer]}
    trainer = Trainer(
        nn.Linear(3, 2), rows(batches), validation, batch_size=1, device="cpu", **options
    )
    trainer.run()
    return trainer


@pytest.mark.parametrize("batches", [1, 3, 10, 64])
def test_the_bar_moves_at_most_ten_times_an_epoch(bars: list[FakeBar], batches: int) -> None:
    epochs, observer, counts = 3, Progress(bar=True), []
    for epoch in range(epochs):
        before = len(bars[0].shown) if bars else 0
        for batch in range(batches):
            part = (batch + 1) / batches
            told = {"epoch": epoch, "progress": (epoch + part) / epochs, "of_epoch": part}
            observer.log(epoch * batches + batch + 1, phase="train", loss=1.0, **told)
        observer.log((epoch + 1) * batches, phase="epoch", epoch=epoch, progress=told["progress"])
        counts.append(len(bars[0].shown) - before)
    assert max(counts) <= 10
    assert min(counts) >= min(batches, 10) / 2  # yet it does move
    assert bars[0].shown == sorted(bars[0].shown)
    assert bars[0].shown[-1] == 1.0


def test_the_bar_follows_other_budgets_and_loaders_of_unknown_length(bars: list[FakeBar]) -> None:
    class Unsized(IterableDataset):
        def __iter__(self) -> Any:
            return iter(rows(10))

    flops = run(Progress(bar=False), 20, epochs=1).ledger.flops.total
    run(Progress(bar=True), 20, flops=2.5 * flops)
    assert len(bars[0].shown) <= 30
    assert bars[0].shown[-1] == 1.0
    loader = DataLoader(Unsized(), 1)
    Trainer(nn.Linear(3, 2), loader, epochs=2, observers=[Progress(bar=True)], device="cpu").run()
    assert bars[1].shown == [0.5, 1.0]


def test_the_bar_says_how_it_stands_and_is_closed(bars: list[FakeBar]) -> None:
    trainer = run(Progress(bar=True), 12, validation=rows(5), epochs=2)
    final, loss = trainer.history.epochs[-1], trainer.history.steps[-1]["loss"]
    expected = f"epoch 2, loss {loss:.4f}, validation accuracy {final['val_accuracy']:.2%}"
    assert bars[0].postfix == expected
    assert bars[0].closed == 1


def test_a_run_that_continues_has_a_new_bar(bars: list[FakeBar]) -> None:
    options: dict[str, Any] = {"epochs": 2, "observers": [Progress(bar=True)]}
    trainer = Trainer(nn.Linear(3, 2), rows(8), batch_size=1, device="cpu", **options)
    leave_after(trainer, 4)
    assert len(bars) == 1
    trainer.run()
    assert [bar.closed for bar in bars] == [1, 1]
    assert bars[1].initial > 0
    assert bars[1].shown[-1] == 1.0


def clock(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Let the observer's clock show ``seconds``, one after the other."""
    times = iter(seconds)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))


def test_one_line_an_epoch_outside_of_notebooks(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock(monkeypatch, 0.0, 100.0, 130.0, 250.0, 310.0, 340.0)
    run(Progress("a run", bar=False), 3, validation=rows(5), epochs=4)
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    # from the first batch at 1 / 12 and 100 s on: elapsed * (1 - p) / (p - 1 / 12)
    left = ["25% of the budget, 2:15 left", "50% of the budget, 3:00 left"]
    left += ["75% of the budget, 1:19 left", "100% of the budget, 0:00 left"]
    for number, (line, end) in enumerate(zip(lines, left, strict=True), start=1):
        assert line.startswith(f"a run: epoch {number}, loss ")
        assert "validation accuracy " in line
        assert line.endswith(end)


def test_the_time_left_of_a_resumed_run_counts_its_own_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock(monkeypatch, 0.0, 100.0, 160.0, 500.0, 530.0)
    observer = Progress(bar=False)
    observer.log(81, phase="train", epoch=8, of_epoch=0.1, progress=0.8, loss=0.25)
    # a batch without a loss keeps the last one
    observer.log(82, phase="train", epoch=8, of_epoch=0.2, progress=0.82, loss=None)
    observer.log(90, phase="epoch", epoch=9, progress=0.9)
    observer.close()  # and used again later
    observer.log(90, phase="epoch", epoch=9, progress=0.9)  # from which nothing follows
    observer.log(95, phase="epoch", epoch=10, progress=0.95)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("budget")[2] for line in lines] == [", 1:00 left", "", ", 0:30 left"]
    assert "loss 0.2500" in lines[0]
    assert "validation" not in lines[0]


@pytest.mark.parametrize(
    ("shell", "terminal", "bar"),
    [
        (SimpleNamespace(kernel=object()), False, True),
        (SimpleNamespace(), False, False),  # IPython in a pipe
        (SimpleNamespace(), True, True),
        (None, False, False),
        (None, True, True),
    ],
)
def test_a_bar_is_drawn_in_notebooks_and_terminals(
    shell: Any, terminal: bool, bar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert Progress().wanted is bar
    assert Progress(bar=not bar).wanted is not bar


def test_without_tqdm_there_are_lines(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    run(Progress(bar=True), 3, epochs=1)
    assert capsys.readouterr().out.count("\n") == 1


def test_the_real_bar_shows_its_label_and_its_end(capsys: Any) -> None:
    run(Progress("dense", bar=True), 4, epochs=2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "dense: 100%" in captured.err
    assert "epoch 2, loss" in captured.err
