"""Tensors of a device without float64, as MPS, on the CPU."""

from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class WithoutFloat64(Tensor):
    """A tensor whose results are refused in float64, until it is copied to the CPU."""

    @classmethod
    def on(cls, values: Tensor) -> Self:
        return values.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        for each in pytree.tree_leaves(found):
            if isinstance(each, cls) and each.dtype == torch.float64:
                raise TypeError("the device has no float64")
        return found.as_subclass(Tensor) if func is Tensor.cpu else found
