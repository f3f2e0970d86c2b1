"""What the user's code reads: values and own functions on which results depend, by their names.

Numbers, words, containers of them, arrays and tensors count by content; files, locks, loggers,
generators, models and data by type only; what a library defines by its name. Own code lies outside
the kit, the standard library and site-packages.
"""

from __future__ import annotations

import dis
import hashlib
import operator
import os
import re
import sys
from argparse import Namespace
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from datetime import date, timedelta
from enum import Enum
from functools import cached_property, partial, partialmethod
from importlib import import_module
from inspect import getattr_static
from itertools import chain
from numbers import Number
from pathlib import PurePath
from types import (
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
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
OF_TYPE = re.compile(rf"{TYPE}([\w.]+)")
LARGEST, SAMPLED, NAMED = 64 << 20, 1000, 100  # bytes of a tensor, its elements beyond; items
WORDS = (bool, int, float, str, type(None))
LEAVES: tuple[type, ...] = (*WORDS, Number, bytes, Enum, PurePath, range, slice, date, timedelta)
LEAVES += (torch.dtype, re.Pattern)
LEAVES += (operator.itemgetter, operator.attrgetter, operator.methodcaller)
LISTS = (list, tuple, set, frozenset, deque)
WRAPPERS: tuple[type, ...] = (MethodType, partial, partialmethod, staticmethod, classmethod)
WRAPPERS += (property, cached_property)
WRAPPED = ("__wrapped__", "__func__", "__self__", "func", "args", "keywords", "fget", "registry")
HOLDERS = (Policy, nn.Module, SimpleNamespace, Namespace)  # of attributes that count
OF_MODULES = vars(nn.Module()).keys()
GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
LOADS = {*GLOBAL, "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_CONST"}
LOADS |= {"IMPORT_NAME", "IMPORT_FROM"}
# code that names one of these may name others by words: globals and modules; attributes; variables
GLOBALS = {"globals", "__globals__", "__name__", "exec", "import_module", "__import__"}
ATTRIBUTES = {"vars", "__dict__", "asdict", "astuple", "getattr"}
ENVIRONMENT = {"environ", "getenv"}

Found = dict[str, Any]


@contextmanager
def same_reads(plan: Plan) -> Iterator[Callable[[], object]]:
    """Raise ``ValueError`` if code reads other values than when the folder's results were made.

    Yields what writes the present ones into the folder. Those that are others at the end are a
    state of the code, and no longer compared.
    """
    path = plan.folder / FILE
    then, now = read_json(path), _settled(reads_of(plan), reads_of(plan))
    for part in sorted(then.keys() & now.keys()):
        old, new = then[part], now[part]
        changing = {n: CHANGES for found in (old, new) for n in found if found[n] == CHANGES}
        check_same(old | changing, new | changing, f"{part} in {plan.folder}")
    found = [(f"{name} of {part}", str(v)) for part in now for name, v in now[part].items()]
    typed = [f"{name} ({', '.join(OF_TYPE.findall(v))})" for name, v in found if TYPE in v]
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
    """What each part of a comparison reads, by name; see `reads`."""
    task = plan.task
    makers = {"make_model": task.make_model, "make_optimizer": task.make_optimizer}
    parts: Found = {label: as_policy(method.policy) for label, method in plan.policies.items()}
    parts |= {f"metric {each.name}": each.function for each in task.metrics}
    parts |= {"criterion": task.criterion, "model": task.model(0)}
    parts |= {"flops": task.flops} if callable(task.flops) else {}
    # a model may be made in other words; what counts is which one
    found = {name: reads(part, code=False) for name, part in makers.items()}
    return found | {name: reads(part) for name, part in parts.items()}


def reads(part: Any, code: bool = True) -> Found:
    """What ``part``, a function or an object, reads, by name.

    Globals, cells, defaults, arguments of partial functions, items, attributes that code names, and
    the same of own functions and classes. ``code``: whether their code counts too.
    """
    roots = [*part.named_modules()] if isinstance(part, nn.Module) else [("", part)]
    names, known, found = set[str](), -1, Found()
    while len(names) > known:  # what is found may name more
        known, walk = len(names), _Walk(names, code)
        found = dict(pair for name, each in roots for pair in walk.look(name, each, root=True))
    return found


class _Walk:
    """One way through what a part reads; ``names``: attributes and words in code, which grow."""

    def __init__(self, names: set[str], code: bool) -> None:
        self.names, self.code = names, code
        self.seen: dict[int, Any] = {}  # kept, as no other object gets their ids

    def look(self, name: str, value: Any, root: bool = False) -> Iterator[tuple[str, Any]]:
        """What ``value`` is or reads, by name; ``root``: whatever its type is."""
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, LEAVES):
            self.names |= _words(value)
            yield name, plain(value) if type(value) in WORDS else repr(value)
        elif id(value) not in self.seen:
            self.seen[id(value)] = value
            items, parts = _items(value), self._parts(value, root)
            if items is not None:  # as one, which may grow
                inner = dict(self._all("", items))
                yield name, inner if len(inner) <= NAMED else _hash(repr(inner).encode())
            elif parts is None:
                named = getattr_static(value, "__qualname__", None) is not None
                yield name, value.__qualname__ if named else f"{TYPE}{type(value).__qualname__}"
            yield from self._all(name, parts or {})

    def _all(self, name: str, parts: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
        for key, each in parts.items():
            yield from self.look(f"{name}.{key}".lstrip("."), each)

    def _parts(self, value: Any, root: bool) -> Found | None:
        """What ``value`` consists of, or reads, by name; ``None``: it counts as a whole."""
        if isinstance(value, FunctionType) and is_own(value.__globals__.get("__name__", "")):
            return self._read(value)
        if isinstance(value, ModuleType):
            counted = self.names if is_own(value.__name__) else set[str]()
            return {name: vars(value)[name] for name in sorted(vars(value).keys() & counted)}
        if isinstance(value, WRAPPERS) or "__wrapped__" in getattr(value, "__dict__", {}):
            return {each: getattr(value, each) for each in WRAPPED if hasattr(value, each)}
        kind = value if isinstance(value, type) else type(value)
        own = is_own(kind.__module__)
        # without asking objects, whose __getattr__ may raise anything
        if getattr_static(value, "__qualname__", None) is not None and not (own and kind is value):
            return None
        model = isinstance(value, nn.Module) and next(value.parameters(), None) is not None
        holds = own or is_dataclass(kind) or isinstance(value, HOLDERS)
        holds = holds and not (model or isinstance(value, Dataset | DataLoader))
        return self._attributes(value, kind) if root or holds else None

    def _attributes(self, value: Any, kind: type) -> Found:
        """Own methods of a class or an object, and the attributes that code names.

        Of a module all, as the code of libraries reads them too.
        """
        methods, held = Found(), Found()
        for base in reversed(dict.fromkeys([*kind.__mro__, *type(value).__mro__])):
            for name, each in vars(base).items() if is_own(base.__module__) else ():
                if isinstance(each, (FunctionType, *WRAPPERS)):
                    methods[name if base is kind else f"{base.__name__}.{name}"] = each
                else:  # a descriptor of __slots__ has the value
                    slot = isinstance(each, MemberDescriptorType)
                    held[name] = getattr(value, name, None) if slot else each
        held |= {} if value is kind else getattr(value, "__dict__", {})
        counted = held.keys() if self.names & ATTRIBUTES else self.names
        if isinstance(value, Policy):
            held |= value.config()
            counted = counted | value.config().keys()
        if isinstance(value, nn.Module):
            held |= value._buffers
            inner = () if is_own(kind.__module__) else (n for n in held if n.startswith("_"))
            counted = held.keys() - OF_MODULES - {*inner}  # such as addresses of compiled ones
        named = sorted(name for name in held.keys() & counted if not name.startswith("__"))
        return methods | {name: held[name] for name in named}

    def _read(self, function: FunctionType) -> Found:
        """The code of ``function``, its defaults and cells, and the globals that it names."""
        first, space = function.__code__, function.__globals__
        codes = [first]
        for code in codes:  # it grows
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        read: Found = {"code": _code(codes)} if self.code else {}
        defaults = reversed(function.__defaults__ or ())
        read |= zip(reversed(first.co_varnames[: first.co_argcount]), defaults, strict=False)
        read |= function.__kwdefaults__ or {}
        for name, cell in zip(first.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty
                read[name] = cell.cell_contents
        steps = [each for each in chain(*map(dis.get_instructions, codes)) if each.opname in LOADS]
        used = {each.argval for each in steps if each.opname in GLOBAL}
        imported = {each.argval for each in steps if each.opname == "IMPORT_NAME"}
        names = used.union(*(_words(each.argval) for each in steps))
        self.names |= names
        read |= {name: vars(function)[name] for name in sorted(self.names & vars(function).keys())}
        if names & ENVIRONMENT:
            known = sorted(self.names & os.environ.keys())
            read |= {f"environ.{name}": os.environ[name] for name in known}
        if names & GLOBALS or "eval" in used:  # models have a method eval
            used |= self.names
            imported |= self.names & sys.modules.keys()
        read |= {name: _module(name) for name in sorted(imported)}
        return read | {name: space[name] for name in sorted(used & space.keys())}


def _module(name: str) -> ModuleType | None:
    """The module ``name``; one of the user's is imported, as code that names it will do."""
    with suppress(Exception):
        if name not in sys.modules and is_own(name):
            import_module(name)
    return sys.modules.get(name)


def _words(value: Any) -> set[str]:
    """A text, and the words in it, or in a tuple of texts."""
    if isinstance(value, tuple):
        return set[str]().union(*map(_words, value))
    return {value, *re.findall(r"\w+", value)} if isinstance(value, str) else set()


def _items(value: Any) -> dict[Any, Any] | None:
    """The items of a container by their keys, or of an array what tells it from others.

    ``None`` for anything else. Of a large array `SAMPLED` elements count.
    """
    with suppress(Exception):  # sparse, without storage, or of somebody's own kind
        series = hasattr(type(value), "to_numpy") and value.ndim == 1
        array = value.to_numpy() if series else value
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return dict(enumerate(value.ravel().tolist()))
        if isinstance(array, np.ndarray | Tensor) and not getattr(array.dtype, "hasobject", False):
            flat = array.reshape(-1)
            flat = flat[:: max(1, len(flat) // SAMPLED)] if array.nbytes > LARGEST else flat
            content = plain(flat)[-1] if isinstance(flat, Tensor) else _hash(flat.tobytes())
            return {"type": str(array.dtype), "shape": str([*array.shape]), "content": content}
        if isinstance(value, LISTS):
            ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return dict(enumerate(ordered))
        mapping = hasattr(type(value), "keys") and hasattr(type(value), "__getitem__")
        data = isinstance(value, nn.Module | Dataset) or hasattr(type(value), "to_numpy")
        if mapping and not data and value is not os.environ:
            more = {"default": value.default_factory} if isinstance(value, defaultdict) else {}
            return dict(value) | more
    return None


def _code(codes: Iterable[CodeType]) -> str:
    """A hash of what a function does; comments and names of its variables do not count."""
    parts: list[Any] = []
    for code in codes:
        constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
        ordered = (sorted(c, key=repr) if isinstance(c, frozenset) else c for c in constants)
        parts += [code.co_code, code.co_names, *ordered]
    return _hash(repr(parts).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
