"""Configuration of an object as plain values, to check that a resumed run matches."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def configuration(value: Any) -> Any:
    """``value`` as plain values: numbers, strings, lists and mappings of them.

    An object is identified by its class and its constructor's arguments, returned by its method
    ``config`` or read from attributes of the same names; a function by its name; a tensor by a
    hash of its values.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): configuration(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        parts = [configuration(part) for part in value]
        return sorted(parts, key=repr) if isinstance(value, set | frozenset) else parts
    if isinstance(value, Tensor):
        return {"tensor": list(value.shape), "sha256": tensor_hash(value)}
    if isinstance(value, functools.partial):
        inner = [configuration(value.func), configuration(value.args)]
        return {"partial": inner, **configuration(value.keywords)}
    if isinstance(value, torch.nn.Module):  # weights change; structure is compared elsewhere
        return {"module": type(value).__qualname__}
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if callable(getattr(value, "config", None)):
        return {"class": type(value).__name__, **configuration(value.config())}
    return {"class": type(value).__name__, **configuration(arguments(value))}


def arguments(value: Any) -> dict[str, Any]:
    """The constructor's arguments of ``value``, by name, as far as stored in attributes."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    names = inspect.signature(type(value).__init__).parameters
    held = {name: getattr(value, name) for name in list(names)[1:] if hasattr(value, name)}
    return {name: found for name, found in held.items() if not inspect.ismethod(found)}


def tensor_hash(tensor: Tensor) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a tensor's bytes."""
    content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()[:16]
