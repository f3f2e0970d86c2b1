"""The history keeps what it is told, in that order."""

from __future__ import annotations

from astkit.trainers import History


def test_batches_and_passes_are_kept_apart_and_validation_batches_not_at_all():
    history = History()
    history.log(1, phase="train", loss=2.0, epoch=0)
    history.log(2, phase="train", loss=None, epoch=0)
    history.log(2, phase="validate", epoch=0)
    history.log(2, phase="epoch", val_accuracy=0.5, epoch=1)
    history.log(3, phase="train", loss=1.0, epoch=1)
    history.close()
    assert history.steps == [
        {"step": 1, "loss": 2.0, "epoch": 0},
        {"step": 2, "loss": None, "epoch": 0},
        {"step": 3, "loss": 1.0, "epoch": 1},
    ]
    assert history.epochs == [{"step": 2, "val_accuracy": 0.5, "epoch": 1}]


def test_it_goes_on_after_close():
    history = History()
    history.log(1, phase="train", loss=1.0)
    history.close()
    history.log(2, phase="train", loss=0.5)
    assert [entry["step"] for entry in history.steps] == [1, 2]
