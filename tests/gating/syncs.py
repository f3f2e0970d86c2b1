"""Finds the operations that would make an accelerator wait, on whatever device they run."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2"}


class Syncs(TorchDispatchMode):
    """Counts operations whose result, or its shape, the host must read off a tensor.

    Those are numbers (``item`` and all that calls it, in Python or inside torch), shapes that
    depend on values, and masks as indices. ``names`` lists them in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        if name in _WAITING or (name.startswith(("index", "_index")) and _masked(args)):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def _masked(arguments: Any) -> bool:
    parts = [part for each in arguments for part in (each if isinstance(each, list) else [each])]
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts[1:])
