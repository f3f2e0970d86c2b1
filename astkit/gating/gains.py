"""Numbers of a controller that may be turned while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self, overload


class Gain:
    """An attribute of a class, a plain number that is checked whenever it is set.

    Args:
        rule: the allowed values, in words.
        allowed: whether a number may be taken.
        advice: what to give instead.
    """

    def __init__(self, rule: str, allowed: Callable[[float], bool], advice: str) -> None:
        self.rule, self.allowed, self.advice = rule, allowed, advice

    def __set_name__(self, owner: type, name: str) -> None:
        self.slot, self.name = name, name.lstrip("_")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> float: ...
    def __get__(self, instance: Any, owner: type) -> Self | float:
        return self if instance is None else vars(instance)[self.slot]

    def __set__(self, instance: Any, value: float) -> None:
        """Raises ``ValueError`` for a number that could not steer."""
        # comparisons also refuse NaN
        if not isinstance(value, int | float) or not self.allowed(value):
            raise ValueError(f"{self.name} is {value}, but it must be {self.rule}: {self.advice}")
        vars(instance)[self.slot] = float(value)


def positive(advice: str) -> Gain:
    """A gain in (0, inf)."""
    return Gain("above 0", lambda value: 0 < value < math.inf, advice)


def not_negative(advice: str) -> Gain:
    """A gain in [0, inf)."""
    return Gain("0 or above", lambda value: 0 <= value < math.inf, advice)


def share(advice: str) -> Gain:
    """A gain in (0, 1]."""
    return Gain("above 0 and at most 1", lambda value: 0 < value <= 1, advice)
