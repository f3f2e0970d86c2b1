"""What an exported notebook does as it starts, after its modules are verified."""

from __future__ import annotations

import os

import torch

from astkit.export import gpu, image


def begin(time_budget_h: float = 0.0) -> None:
    """Check torch and the GPU, set the time budget, and say what was found.

    ``time_budget_h`` goes into ``ASTKIT_TIME_BUDGET_H``, which the trainers honour: hours after
    which a run is saved and left; 0 leaves the variable alone. Raises ``RuntimeError`` for a torch
    that is too old and ``ValueError`` for a budget below 0.
    """
    fault = image.torch_fault(torch.__version__)
    if fault is not None:
        raise RuntimeError(fault)
    if time_budget_h < 0:
        raise ValueError(f"time_budget_h is {time_budget_h}: give hours, or 0 for no limit")
    if time_budget_h:
        os.environ["ASTKIT_TIME_BUDGET_H"] = str(time_budget_h)
        print(f"time budget: {time_budget_h} h, then runs are saved and left")
    print(f"torch {torch.__version__}; {gpu.hide_unusable()}")
