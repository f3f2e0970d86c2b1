"""Checks of numbers that a policy is given: one for each row of the data, computed outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astkit.checks import FROM_0, check_number


def check_values(name: str, values: Any) -> Tensor:
    """``values`` as a float tensor ``[samples]`` on the CPU.

    Raises ``ValueError`` unless they are numbers in one dimension, at least one.
    """
    try:
        found = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is a {type(values).__name__}: give one number a row") from error
    if found.ndim != 1 or not len(found) or found.is_complex():
        raise ValueError(
            f"{name} has shape {list(found.shape)} and type {found.dtype}: give one number a row,"
            " of shape [samples]"
        )
    return found if found.is_floating_point() else found.float()


def check_finite(name: str, values: Tensor, least: float = -torch.inf) -> Tensor:
    """``values``; raises ``ValueError`` unless each is finite and ``least`` or more."""
    wrong = (~(values.isfinite() & (values >= least))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        above = "" if least == -torch.inf else f" of {least:g} or more"
        raise ValueError(
            f"{name} of row {row} is {float(values[row])}: give a finite number{above} for each row"
        )
    return values


def check_length(name: str, values: Tensor, samples: int) -> None:
    """Raise ``ValueError`` unless there is one value for each of ``samples`` rows."""
    if len(values) != samples:
        raise ValueError(
            f"{name} has {len(values)} numbers, but the data set has {samples} rows: give one a"
            " row, in the order of the data set"
        )


def check_cost(cost: float | None) -> float | None:
    """``cost`` in FLOPs; raises ``ValueError`` unless it is 0 or more, or ``None``."""
    return None if cost is None else check_number("cost", cost, FROM_0)
