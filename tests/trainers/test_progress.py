"""Progress: one line an epoch, few updates of it in place, and a time left that adds up."""

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
def test_the_line_moves_at_most_ten_times_an_epoch(batches: int, capsys: Any) -> None:
    trainer = run(Progress("dense", live=True), batches, validation=rows(5), epochs=3)
    epochs = capsys.readouterr().out.split("\n")
    assert epochs.pop() == ""
    for number, (shown, record) in enumerate(zip(epochs, trainer.history.epochs, strict=True), 1):
        *moved, last = shown.split("\r")[1:]
        assert len(moved) <= 10
        assert len(moved) + 1 >= min(batches, 10) / 2  # yet it does move
        loss = trainer.history.steps[number * batches - 1]["loss"]
        accuracy = f"validation accuracy {record['val_accuracy']:.2%}"
        assert last.startswith(f"dense: epoch {number}, loss {loss:.4f}, {accuracy}, ")


def test_the_line_follows_other_budgets_and_loaders_of_unknown_length(capsys: Any) -> None:
    class Unsized(IterableDataset):
        def __iter__(self) -> Any:
            return iter(rows(10))

    flops = run(Progress(live=False), 20, epochs=1).ledger.flops.total
    capsys.readouterr()
    run(Progress(live=True), 20, flops=2.5 * flops)
    shown = capsys.readouterr().out
    assert shown.count("\r") <= 30
    assert "100% of the budget" in shown.splitlines()[-1]
    loader, observer = DataLoader(Unsized(), 1), Progress(live=True)
    Trainer(nn.Linear(3, 2), loader, epochs=2, observers=[observer], device="cpu").run()
    assert capsys.readouterr().out.count("\r") == 2


def clock(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Let the observer's clock show ``seconds``, one after the other."""
    times = iter(seconds)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))


def test_one_line_an_epoch_outside_of_notebooks(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock(monkeypatch, 0.0, 100.0, 130.0, 250.0, 310.0, 340.0)
    run(Progress("a run", live=False), 3, validation=rows(5), epochs=4)
    lines = capsys.readouterr().out.splitlines()
    # from the first batch at 1 / 12 and 100 s on: elapsed * (1 - p) / (p - 1 / 12)
    left = ["25% of the budget, 2:15 left", "50% of the budget, 3:00 left"]
    left += ["75% of the budget, 1:19 left", "100% of the budget, 0:00 left"]
    for number, (line, end) in enumerate(zip(lines, left, strict=True), start=1):
        assert line.startswith(f"a run: epoch {number}, loss ")
        assert line.endswith(end)


def test_the_time_left_of_a_resumed_run_counts_its_own_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock(monkeypatch, 0.0, 100.0, 160.0, 500.0, 530.0)
    observer = Progress(live=False)
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


def test_a_loss_that_nobody_measured_is_not_shown(capsys: Any) -> None:
    Progress(live=False).log(90, phase="epoch", epoch=9, progress=0.9)
    assert capsys.readouterr().out.strip() == "epoch 9, 90% of the budget"


@pytest.mark.parametrize(
    ("shell", "terminal", "live"),
    [
        (SimpleNamespace(kernel=object()), False, True),
        (SimpleNamespace(), False, False),  # IPython in a pipe
        (None, False, False),
        (None, True, True),
    ],
)
def test_the_line_moves_in_notebooks_and_terminals(
    shell: Any, terminal: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert Progress().live is live
    assert Progress(live=not live).live is not live
