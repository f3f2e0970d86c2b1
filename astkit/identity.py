"""Configuration of an object as plain values, to check that a resumed run matches."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import random
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astkit.rng import isolated, restored

READS = 8  # rows with a generator of their own hardly come out equal so often
_PLAIN = bool | int | float | str | Tensor | np.generic | np.ndarray
_LIBRARIES = ("astkit", "torch")  # their code is identified by the name


def configuration(value: Any) -> Any:
    """``value`` as plain values: numbers, strings, lists and mappings of them.

    An object is identified by its class and its constructor's arguments, returned by its method
    ``config`` or read from attributes of the same names; a module with parameters by its class; a
    function by its name, and a user's by a hash of its code too; a tensor or array by one of its
    values.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | np.ndarray) and value.dtype != object:
        content = hashlib.sha256(value.tobytes()).hexdigest()[:16]
        return {"array": list(value.shape), "dtype": str(value.dtype), "sha256": content}
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
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
    # weights change, and structure is compared elsewhere
    if isinstance(value, torch.nn.Module) and any(True for _ in value.parameters()):
        return {"module": type(value).__qualname__}
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}{_code(value)}"
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


def _code(function: Any, called: bool = True) -> str:
    """A hash of a user's function: its code, its defaults and the plain values that it reads.

    These are enclosed or global; lists and mappings, which may be written to, are left out.
    Functions among them count too if ``called``.
    """
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        return ""
    if str(function.__module__).split(".")[0] in _LIBRARIES:
        return ""
    enclosed = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    scope, names = function.__globals__, dict.fromkeys(_globals(function.__code__))
    read = [*enclosed, *(scope[name] for name in names if name in scope)]
    inner = [code for each in read if called and (code := _code(each, called=False))]
    plain = [each for each in read if _plain(each)]
    held = configuration([function.__defaults__, function.__kwdefaults__, plain + inner])
    parts = repr((_instructions(function.__code__), held))
    return f" {hashlib.sha256(parts.encode()).hexdigest()[:16]}"


def _globals(code: types.CodeType) -> Iterator[str]:
    """Names of the globals that ``code`` reads and does not assign, also in functions inside."""
    found = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    for kind, name in found:
        if kind == "LOAD_GLOBAL" and ("STORE_GLOBAL", name) not in found:
            yield name
    for each in filter(inspect.iscode, code.co_consts):
        yield from _globals(each)


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, _PLAIN)


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a name that is bound later
        return False


def _instructions(code: types.CodeType) -> tuple[Any, ...]:
    inner: list[Any] = []
    for each in code.co_consts:
        if inspect.iscode(each):
            each = _instructions(each)
        elif isinstance(each, frozenset):  # the order of its strings differs between processes
            each = sorted(each, key=repr)
        inner.append(each)
    return code.co_code, code.co_names, tuple(inner)


def tensor_hash(tensor: Tensor) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a tensor's bytes."""
    content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()[:16]


def repeated_hash(read: Callable[[], Any]) -> str | None:
    """A hash of what ``read`` returns; ``None`` if it raises, or returns something else again.

    It is called up to `READS` times, with generators seeded equally, which are then restored.
    """
    found: set[str] = set()
    with restored():
        for _ in range(READS):
            random.seed(0)
            np.random.seed(0)
            try:
                with isolated("cpu", "identity"):
                    found.add(repr(configuration(read())))
            except Exception:  # training reports it where it matters
                return None
            if len(found) > 1:
                return None
    return hashlib.sha256(found.pop().encode()).hexdigest()[:16]
