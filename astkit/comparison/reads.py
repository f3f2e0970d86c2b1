"""What the user's code reads: values and own functions on which results depend, by their names.

Numbers, words, containers of them, arrays and tensors count by content; files, locks, loggers,
generators, models and data by type only; what a library defines by its name. Own code lies outside
the kit, the standard library and site-packages.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from datetime import date, timedelta
from enum import Enum
from functools import cached_property, partial, partialmethod
from inspect import getattr_static
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from astkit.comparison.plan import Plan
from astkit.files import is_own, read_json, write_json
from astkit.gating.policy import Policy, as_policy
from astkit.progress import announce
from astkit.trainers.fingerprint import check_same, plain

FILE = f"reads_{sys.implementation.cache_tag}.json"  # another Python has other bytes of code
CHANGES, TYPE = "changes", "type only: "  # in place of values
LARGEST, SAMPLED, NAMED = 64 << 20, 1000, 100  # bytes of a tensor, its elements beyond; items
WORDS = (bool, int, float, str, type(None))
LEAVES = (*WORDS, complex, bytes, Enum, PurePath, range, slice, date, timedelta, torch.dtype)
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
BOUND = (MethodType, partial, partialmethod, staticmethod, classmethod, property, cached_property)
FUNCTIONS = (FunctionType, *BOUND)
HOLDERS = (Policy, nn.Module, SimpleNamespace, Namespace)  # of attributes that count
INSIDE = ("__wrapped__", "__func__", "__self__", "func", "args", "keywords", "fget")
GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
OF_MODULES = vars(nn.Module()).keys()

Found = dict[str, Any]


@contextmanager
def same_reads(plan: Plan) -> Iterator[Callable[[], object]]:
    """Raise ``ValueError`` if code reads other values than when the folder's results were made.

    Yields what writes the present ones into the folder. Those that are others at the end are a
    state of the code, and no longer compared.
    """
    if not plan.resumable:
        yield lambda: None
        return
    path = plan.folder / FILE
    then, now = read_json(path), _settled(reads_of(plan), reads_of(plan))
    for part in sorted(then.keys() & now.keys()):
        both = [then[part], now[part]]
        changing = {name for each in both for name in each if each[name] == CHANGES}
        old, new = ({n: each[n] for n in each if n not in changing} for each in both)
        check_same(old, new, f"{part} in {plan.folder}")
    found = [(f"{name} of {part}", each) for part in now for name, each in now[part].items()]
    typed = [f"{name} ({each[len(TYPE) :]})" for name, each in found if str(each).startswith(TYPE)]
    if typed and not then:
        words = "what code reads is compared when this folder is used again, but only the type of"
        announce(f"compare: {words} {', '.join(typed)}")
    try:
        yield lambda: write_json(path, now | then)
    finally:
        if known := read_json(path):
            write_json(path, known | _settled(known, reads_of(plan)))


def _settled(first: dict[str, Found], second: dict[str, Found]) -> dict[str, Found]:
    """The common parts, with `CHANGES` in place of values that differ."""
    settled = {}
    for part in first.keys() & second.keys():
        one, two = first[part], second[part]
        same = {name: one[name] for name in one if name in two and one[name] == two[name]}
        settled[part] = dict.fromkeys(sorted({*one, *two}), CHANGES) | same
    return settled


def reads_of(plan: Plan) -> dict[str, Found]:
    """What each part of a comparison reads, by name; see `Reads`."""
    task = plan.task
    makers = {"make_model": task.make_model, "make_optimizer": task.make_optimizer}
    parts: Found = {label: as_policy(method.policy) for label, method in plan.policies.items()}
    parts |= {f"metric {each.name}": each.function for each in task.metrics}
    parts |= {"criterion": task.criterion, "model": task.model(0)}
    parts |= {"flops": task.flops} if callable(task.flops) else {}
    # a model may be made in other words; what counts is which one
    found = {name: Reads(part, code=False).found for name, part in makers.items()}
    return found | {name: Reads(part).found for name, part in parts.items()}


class Reads:
    """What ``part``, a function or an object, reads, by name: ``found``.

    Globals, cells, defaults, arguments of partial functions, attributes that code names, and the
    same of own functions and classes. ``code``: whether their code counts too.
    """

    def __init__(self, part: Any, code: bool = True) -> None:
        self.code = code
        self.found: Found = {}
        self._seen: dict[int, Any] = {}  # kept, as no other object gets their ids
        self._named = set[str]()  # attributes
        for name, each in part.named_modules() if isinstance(part, nn.Module) else [("", part)]:
            self._look(name, each, root=True)

    def _look(self, name: str, value: Any, root: bool = False) -> None:
        """Find what ``value`` is or reads; ``root``: whatever its type is."""
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, LEAVES):
            self.found[name] = plain(value) if type(value) in WORDS else repr(value)
        elif not isinstance(value, ModuleType | torch.device) and id(value) not in self._seen:
            self._seen[id(value)] = value
            parts = self._parts(value, root)
            if parts is None:
                items = isinstance(value, CONTAINERS)
                self.found[name] = self._items(value) if items else _content(value)
            for key, each in parts or ():
                self._look(f"{name}.{key}".lstrip("."), each)

    def _items(self, value: Any) -> Found | str:
        """The items of a container by their keys; a hash of many."""
        ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        outer, self.found = self.found, {}
        for key, each in value.items() if isinstance(value, dict) else enumerate(ordered):
            self._look(str(key), each)
        inner, self.found = self.found, outer
        return inner if len(inner) <= NAMED else _hash(repr(inner).encode())

    def _parts(self, value: Any, root: bool) -> Iterable[tuple[Any, Any]] | None:
        """What ``value`` consists of, or reads, by name; ``None``: it counts as a whole."""
        if isinstance(value, FunctionType) and is_own(value.__globals__.get("__name__", "")):
            # functions first, since they name attributes
            return sorted(self._read(value).items(), key=lambda each: not callable(each[1]))
        if isinstance(value, BOUND) or "__wrapped__" in getattr(value, "__dict__", {}):
            return [(each, getattr(value, each)) for each in INSIDE if hasattr(value, each)]
        kind = value if isinstance(value, type) else type(value)
        own = is_own(kind.__module__)
        # without asking objects, whose __getattr__ may raise anything
        named = getattr_static(value, "__qualname__", None) is not None
        if named and not (own and kind is value):
            return None
        model = isinstance(value, nn.Module) and next(value.parameters(), None) is not None
        data = isinstance(value, Dataset | DataLoader) or hasattr(type(value), "__getitem__")
        data = data and kind is not value  # the class of an enumeration is a container, too
        holds = own or is_dataclass(kind) or isinstance(value, HOLDERS)
        return self._members(value, kind) if root or (holds and not model and not data) else None

    def _members(self, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
        """Own methods of a class or an object, and then the attributes that code names.

        Of a module all, as the code of libraries reads them too.
        """
        held: Found = {}
        for base in reversed(kind.__mro__):
            own = vars(base) if is_own(base.__module__) else {}
            functions = {name: each for name, each in own.items() if isinstance(each, FUNCTIONS)}
            for name, each in functions.items():
                yield (name if base is kind else f"{base.__name__}.{name}"), each
            slots = () if value is kind else vars(base).get("__slots__", ())
            held |= {name: own[name] for name in own.keys() - functions}
            held |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
        held |= {} if value is kind else getattr(value, "__dict__", {})
        counted = self._named
        if isinstance(value, Policy):
            held |= value.config()
            counted = counted | value.config().keys()
        if isinstance(value, nn.Module):
            held |= {} if next(value.parameters(), None) is not None else value._buffers
            inner = () if is_own(kind.__module__) else (n for n in held if n.startswith("_"))
            counted = held.keys() - OF_MODULES - {*inner}  # such as addresses of compiled ones
        for name in sorted(held.keys() & counted):
            if not name.startswith("__"):
                yield name, held[name]

    def _read(self, function: FunctionType) -> Found:
        """The code of ``function``, its defaults and cells, and the globals that it names."""
        first, names = function.__code__, set[str]()
        read: Found = {"code": _code(first)} if self.code else {}
        defaults = reversed(function.__defaults__ or ())
        read |= zip(reversed(first.co_varnames[: first.co_argcount]), defaults, strict=False)
        read |= function.__kwdefaults__ or {}
        for name, cell in zip(first.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty
                read[name] = cell.cell_contents
        codes = [first]
        for code in codes:  # it grows
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
            for step in dis.get_instructions(code):
                if step.opname in GLOBAL and step.argval in function.__globals__:
                    read[step.argval] = function.__globals__[step.argval]
                elif step.opname == "IMPORT_NAME":
                    read[step.argval] = sys.modules.get(step.argval)
                elif step.opname.startswith(("LOAD", "IMPORT")) and isinstance(step.argval, str):
                    # an attribute, or a word that may name one
                    names.add(step.argval)
        self._named |= names
        modules = [each for each in read.values() if isinstance(each, ModuleType)]
        for module in modules:  # it grows
            known = vars(module).keys() if is_own(module.__name__) else set[str]()
            for name in sorted(names & known):
                value = read[f"{module.__name__}.{name}"] = vars(module)[name]
                modules += [value] if isinstance(value, ModuleType) and value not in modules else []
        return read


def _code(code: CodeType) -> str:
    """A hash of what a function does; comments and names of its variables do not count."""
    parts: list[Any] = [code.co_code, code.co_names]
    for each in code.co_consts:
        each = sorted(each, key=repr) if isinstance(each, frozenset) else each
        parts.append(_code(each) if isinstance(each, CodeType) else each)
    return _hash(repr(parts).encode())


def _content(value: Any) -> Any:
    """A value that counts as a whole: its hash, name or type; of a large one `SAMPLED` elements."""
    with suppress(Exception):  # sparse, without storage, or of somebody's own kind
        flat = value.reshape(-1)
        flat = flat[:: max(1, len(flat) // SAMPLED)] if value.nbytes > LARGEST else flat
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return [str(value.dtype), *value.shape, _hash(flat.tobytes())]
        if isinstance(value, Tensor):
            return [str(value.dtype), *value.shape, plain(flat)[-1]]
    named = getattr_static(value, "__qualname__", None) is not None
    return value.__qualname__ if named else f"{TYPE}{type(value).__qualname__}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
