"""Counts the files and calls of astkit in a steady training step.

``python -m benchmarks.calls``: ten steps after twenty, functions whose file lies in astkit/,
counted with ``sys.setprofile``.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import astkit
from astkit.datasets import Loader, load
from astkit.models import DigitsCNN
from astkit.trainers import Budget, Trainer

PACKAGE = Path(astkit.__file__).parent


def counted(
    policy: Any, before: int = 20, steps: int = 10
) -> tuple[float, list[str], Counter[str]]:
    """Calls a step, files, and calls by function, of training digits_cnn with ``policy``."""
    images, _ = load("digits")
    loader = Loader(images, 32, normalize=images.channel_stats())
    trainer = Trainer(DigitsCNN(), loader, policy=policy, budget=Budget(steps=100), device="cpu")
    records = trainer.steps()
    for _ in range(before):
        next(records)
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            calls[f"{path.relative_to(PACKAGE)}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(profile)
    for _ in range(steps):
        next(records)
    sys.setprofile(None)
    records.close()
    files = sorted({name.partition(":")[0] for name in calls})
    return calls.total() / steps, files, calls


def before_first_batch(trainer: Trainer) -> list[str]:
    """Files that are walked from ``trainer.steps()`` to the model's first batch of rows chosen."""
    files: set[str] = set()

    def profile(frame: FrameType, *_: Any) -> None:
        files.add(frame.f_code.co_filename)

    def stop(*_: Any) -> None:
        if trainer.policy.stage:  # else FLOPs of a row are counted
            sys.setprofile(None)

    trainer.model.register_forward_pre_hook(stop)
    sys.setprofile(profile)
    next(trainer.steps())
    sys.setprofile(None)
    own = (path.relative_to(PACKAGE) for path in map(Path, files) if PACKAGE in path.parents)
    return sorted(map(str, own))


if __name__ == "__main__":
    for policy in (None, {"name": "gate", "rate": 0.25}):
        total, files, calls = counted(policy)
        print(f"{policy or 'dense'}: {total:.1f} calls a step in {len(files)} files", *files)
        print(*(f"{count / 10:6.1f} {name}" for name, count in calls.most_common()), sep="\n")
