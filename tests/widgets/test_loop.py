"""The board in a loop of one's own: what it shows of selections and losses, and its picture."""

import numpy as np
import pytest
import torch
from torch import nn

from astkit import Board, Gate
from astkit.widgets import frontend, loop
from tests import build


def looped(board, batches=20, policy=None):
    """Train for some batches in a plain loop; returns what was chosen and lost."""
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none")
    x, y = build.rows(64).tensors
    gate, made = policy or Gate(0.25), []
    with board:
        for number in range(batches):
            chosen = gate(model, x, y)
            loss = chosen.mean(criterion(model(x[chosen.index]), y[chosen.index]))
            board.log(chosen, loss, **({"accuracy": number / 100} if number % 5 == 4 else {}))
            made.append((chosen, loss.item()))
    return made


def test_it_shows_what_was_chosen_and_lost():
    board = Board(steps=20, live=False)
    made = looped(board)
    series = {name: np.transpose(points)[1] for name, points in board.board.series.items()}
    assert series["loss"] == pytest.approx([loss for _, loss in made])
    for name in ("threshold", "measured_rate", "rate"):
        assert series[name] == pytest.approx([float(getattr(each, name)) for each, _ in made])
    assert series["flops"][-1] == sum(len(chosen) for chosen, _ in made)
    assert series["flops_dense"][-1] == 20 * 64
    assert series["val_accuracy"] == pytest.approx([0.04, 0.09, 0.14, 0.19])
    panels = {each.name: each for each in board.board.panels()}
    assert [*panels] == ["threshold", "rate", "loss", "metric", "cost"]
    trained = sum(len(chosen) for chosen, _ in made)
    assert panels["cost"].more == f"{trained / 1e3:.3g} of 1.28 k rows"
    (step, dots), *_ = board.board.cloud
    assert (step, len(dots)) == (1, 32)
    assert set(dots[:, 2]) <= {0, 1}
    assert board.board.picture().described()


@pytest.fixture
def cell(monkeypatch):
    """A running cell of a front end that shows widgets; what it displays."""
    shown = []

    class Handle:
        def update(self, bundle, **_):
            shown.append(bundle)

    def display(bundle, **_):
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    return shown


def test_points_travel_as_traits_while_the_cell_runs_and_a_picture_stays(cell, monkeypatch):
    monkeypatch.setattr(frontend, "mode", lambda live=None: "ask")
    monkeypatch.setattr(loop, "SEND_S", 0.0)
    board, sent = Board(steps=20), []
    made = frontend.widget

    def widget(*args, **options):
        one = made(*args, **options)
        one.observe(lambda change: sent.append(change["new"]), "sent")
        return one

    monkeypatch.setattr(frontend, "widget", widget)
    looped(board)
    assert len(sent) == 21  # a batch each, and the end
    steps = [dict(each["content"]["counts"])["loss"] for each in sent]
    assert steps == [*range(1, 21), 20]
    assert sent[4]["content"]["state"]["readout"][:2] == ["running", "step 5 of 20"]
    assert sent[-1]["content"]["state"]["ended"]
    first, last = cell
    assert "application/vnd.jupyter.widget-view+json" in first
    assert set(last) == {"image/png", "text/plain"}


@pytest.mark.parametrize(("mode", "pictures"), [("headless", 1), ("off", 0)])
def test_without_a_front_end_there_is_one_picture_or_none(cell, monkeypatch, mode, pictures):
    monkeypatch.setattr(frontend, "mode", lambda live=None: mode)
    looped(Board())
    assert [set(each) for each in cell] == [{"image/png", "text/plain"}] * pictures


def _broken():
    with Board() as board:
        board.log(None, 1.0)
        raise OSError("disk full")


def test_an_error_of_the_loop_is_raised_and_the_picture_stays(cell, monkeypatch):
    monkeypatch.setattr(frontend, "mode", lambda live=None: "headless")
    with pytest.raises(OSError, match="disk full"):
        _broken()
    assert len(cell) == 1


def test_what_is_no_selection_is_one_sentence():
    build.refused(
        (lambda: Board(live=False).log(torch.ones(3), 1.0), "chosen is tensor.* pass a Selection"),
        (lambda: Board(steps=0), "steps is 0: give a whole number of 1 or more"),
    )
