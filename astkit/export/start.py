"""Start of an exported notebook, after its modules are verified."""

from __future__ import annotations

import os

import torch

LOWEST_TORCH = (2, 9)  # as in pyproject.toml


def begin(time_budget_h: float = 0.0) -> None:
    """Check torch and the GPU, set the time budget, and print both.

    ``time_budget_h``: hours after which a run is saved and ended, for ``ASTKIT_TIME_BUDGET_H``; 0
    leaves the variable unset. Raises ``RuntimeError`` for a torch that is too old or has no kernels
    for the GPU (such as Kaggle's for the P100), and ``ValueError`` for a negative budget.
    """
    version = torch.__version__.split("+")[0].split(".")
    if tuple(map(int, version[:2])) < LOWEST_TORCH:
        raise RuntimeError(
            f"torch is {torch.__version__}, and astkit needs {'.'.join(map(str, LOWEST_TORCH))} or"
            " newer: choose the latest environment in the notebook's settings"
        )
    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    try:
        torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu").add(1).item()
    except RuntimeError as error:
        raise RuntimeError(
            f"torch {torch.__version__} cannot compute on {found} ({str(error).splitlines()[0]}):"
            " choose a T4, or no accelerator, in the notebook's settings"
        ) from error
    if time_budget_h < 0:
        raise ValueError(f"time_budget_h is {time_budget_h}: pass hours, or 0 for no limit")
    if time_budget_h:
        os.environ["ASTKIT_TIME_BUDGET_H"] = str(time_budget_h)
        print(f"time budget: {time_budget_h} h, then runs are saved and ended")
    print(f"torch {torch.__version__}; {found}")
