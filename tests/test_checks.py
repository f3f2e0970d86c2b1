"""Arguments: a wrong one is a sentence, whichever constructor it was passed to."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from astkit.checks import (
    ABOVE_0,
    RULES,
    check_choice,
    check_count,
    check_number,
    check_settings,
    check_types,
)
from tests.build import refused

WRONG: tuple[Any, ...] = (math.nan, math.inf, -1, True, "0.5", None, [0.5])


@dataclass(frozen=True)
class Settings:
    rate: Any = 0.5
    rows: Any = 3
    mode: Any = "a"


@pytest.mark.parametrize("rule", RULES)
def test_a_number_follows_its_rule(rule: str) -> None:
    assert check_number("x", np.float32(0.5), rule) == 0.5
    for value in WRONG:
        refused((partial(check_number, "x", value, rule), f"^x is .*: give {rule}$"))


def test_a_count_is_a_whole_number() -> None:
    assert type(check_count("rows", np.int64(3))) is int
    assert check_count("rows", 0, least=0) == 0
    for value in (*WRONG, 2.0, 0):
        call = partial(check_count, "rows", value)
        refused((call, r"^rows is .*: give a whole number of 1 or more$"))


def test_choices_and_types() -> None:
    check_choice("mode", "auto", (True, "auto"))
    for value in ("b", 1, None, np.zeros(2)):
        call = partial(check_choice, "mode", value, (True, "auto"))
        refused((call, r"^mode is .*: give one of True, auto$"))
    check_types(name=("a", str), other=(None, str | None))
    refused((partial(check_types, name=(3, str | None)), r"^name is 3: pass a str$"))


def test_settings_are_checked_and_kept_as_numbers_of_python() -> None:
    rules: dict[str, Any] = {"rate": ABOVE_0, "rows": 2, "mode": ("a", "b")}
    settings = Settings(np.float64(0.25), np.int32(2))
    check_settings(settings, rules)
    assert [type(value) for value in vars(settings).values()] == [float, int, str]
    check_settings(Settings(rate=None), rules, optional=("rate",))
    for changed in (Settings(rate=None), Settings(rows=1), Settings(mode="c")):
        call = partial(check_settings, changed, rules)
        refused((call, r"^(rate is None|rows is 1|mode is 'c'): give "))
