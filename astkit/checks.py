"""Checks of arguments: one sentence names the argument, its value and what to give instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, get_args

RULES: dict[str, Callable[[float], bool]] = {  # comparisons also reject NaN
    "a number above 0": lambda value: 0 < value < math.inf,
    "a number of 0 or more": lambda value: 0 <= value < math.inf,
    "a share above 0 and at most 1": lambda value: 0 < value <= 1,
    "a share of 0 or more and below 1": lambda value: 0 <= value < 1,
    "a share of 0 or more and at most 1": lambda value: 0 <= value <= 1,
}
ABOVE_0, FROM_0, RATE, SHARE, PART = RULES

Limit = str | int | tuple[Any, ...]
"""Of a setting: one of `RULES`, the least count, or the values to choose from."""


def check_number(name: str, value: Any, rule: str = RATE) -> float:
    """``value`` as a float; ``ValueError`` unless it follows the ``rule``, one of `RULES`."""
    known = isinstance(value, Real) and not isinstance(value, bool)
    if not known or not RULES[rule](float(value)):
        raise ValueError(f"{name} is {value!r:.60}: give {rule}")
    return float(value)


def check_count(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int; ``ValueError`` unless it is a whole number of ``least`` or more."""
    known = isinstance(value, Integral) and not isinstance(value, bool)
    if not known or value < least:
        raise ValueError(f"{name} is {value!r:.60}: give a whole number of {least} or more")
    return int(value)


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``: texts, True and False."""
    if not isinstance(value, str | bool) or value not in choices:
        raise ValueError(f"{name} is {value!r:.60}: give one of {', '.join(map(str, choices))}")


def check_types(**arguments: tuple[Any, Any]) -> None:
    """Raise ``ValueError`` for an argument that is not of its type: ``name=(value, type)``."""
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            first = next(iter(get_args(kind)), kind)
            raise ValueError(f"{name} is {value!r:.60}: pass a {first.__name__}")


def check_settings(
    settings: Any, rules: Mapping[str, Limit], optional: Collection[str] = ()
) -> None:
    """Check fields of a frozen dataclass, and keep their numbers as those of Python.

    Args:
        settings: the dataclass.
        rules: for each field one of `RULES`, the least count, or its choices.
        optional: fields that may be ``None``.

    Raises ``ValueError`` for the first field that does not follow its rule.
    """
    for name, rule in rules.items():
        value = getattr(settings, name)
        if value is None and name in optional:
            continue
        if isinstance(rule, str):
            value = check_number(name, value, rule)
        elif isinstance(rule, int):
            value = check_count(name, value, rule)
        else:
            check_choice(name, value, rule)
        object.__setattr__(settings, name, value)
