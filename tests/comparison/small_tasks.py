"""Tasks of a comparison that train in milliseconds."""

from typing import Any

import pytest

from astkit import Trainer
from astkit.comparison import training
from tests import build

ROWS, HELD = 64, 24
TRAIN, VALIDATION, TEST = (build.rows(n, seed=seed) for seed, n in enumerate((ROWS, HELD, HELD)))
run = build.comparison


def interrupt(monkeypatch: pytest.MonkeyPatch, batch: int, **options: Any) -> None:
    """A call of `run` that ends with an interrupt before the ``batch``-th training batch."""
    original, calls = Trainer.train_batch, []

    def interrupted(self: Trainer, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == batch:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(training, "PAUSE", 0.0)
    with monkeypatch.context() as context:
        context.setattr(Trainer, "train_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(**options)


def timeless(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries without seconds and joules."""
    untimed = dict.fromkeys(("seconds", "phases", "joules", "joules_reason"))
    return [
        {**e, **untimed, "curve": [[flops, value] for flops, _, value in e["curve"]]}
        for e in entries
    ]
