"""Equality of training states: nested, with tensors in them."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


def same(a: Any, b: Any) -> bool:
    """Whether both hold the same, in the same types, orders and memory formats."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
            and bool((a == b).all())
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
