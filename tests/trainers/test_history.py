"""Records of batches and epochs, in memory and on their way to observers."""

import re
from typing import Any

import pytest

from astkit.trainers import TrainConfig
from astkit.trainers.history import History
from tests import build


def test_batches_epochs_and_events_are_kept_apart() -> None:
    history = History()
    history.log(1, phase="train", loss=2.0, epoch=0)
    history.close()  # it continues after that
    history.log(2, phase="train", loss=None, epoch=0)
    history.log(2, phase="epoch", val_accuracy=0.5, epoch=1)
    history.log(2, phase="event", name="rate", value=0.5)
    assert history.steps == [{"step": 1, "loss": 2.0, "epoch": 0},
                             {"step": 2, "loss": None, "epoch": 0}]  # fmt: skip
    assert history.epochs == [{"step": 2, "val_accuracy": 0.5, "epoch": 1}]
    assert history.events == [{"step": 2, "name": "rate", "value": 0.5}]


def test_the_history_stays_bounded_over_50_000_steps() -> None:
    history = History(limit=1000)
    for step in range(1, 50_001):
        history.log(step, phase="train", loss=0.0)
        assert len(history.steps) <= 1000
    kept = [entry["step"] for entry in history.steps]
    assert len(kept) > 400
    assert kept == list(range(1, 50_001, history.every))  # evenly, from the first on


@pytest.mark.parametrize(("every", "latest"), [(1, 0), (7, 6), (1000, 11)])
def test_every_batch_is_reported_in_groups(every: int, latest: int) -> None:
    class Heard(History):
        """Knows how many batches were trained when a record came."""

        def log(self, step: int, *, phase: str, **metrics: Any) -> None:
            super().log(step, phase=phase, **metrics)
            late.append(run.step - step)

    late: list[int] = []
    heard = Heard()
    run = build.trainer(observers=[heard], config=TrainConfig(report_every=every), batch_size=8)
    run.run()
    assert [entry["step"] for entry in heard.steps] == [*range(1, 25)]
    assert all(isinstance(entry["loss"], float) for entry in heard.steps)
    # the first at once, the others with the next report or the end of the epoch
    assert max(late) == latest
    assert run.history.steps == heard.steps


def test_a_history_is_one_line_and_a_figure_of_its_losses_and_metrics() -> None:
    run = build.trainer()
    history = run.run()
    words = repr(history)
    assert "\n" not in words
    assert re.match(r"History\(2 epochs, \d+ batches, val_accuracy [\d.]+, val_loss [\d.]+", words)
    loss, accuracy = history.plot().axes
    training, validation = loss.lines
    assert training.get_ydata().tolist() == [step["loss"] for step in history.steps]
    assert validation.get_xdata().tolist() == [epoch["step"] for epoch in history.epochs]
    (line,) = accuracy.lines
    assert line.get_ydata().tolist() == [epoch["val_accuracy"] for epoch in history.epochs]
    assert len(History().plot().axes) == 1
    assert repr(History()) == "History(0 epochs, 0 batches)"
