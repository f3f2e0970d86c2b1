"""Cards: complete for every registered controller, and true to its constructor."""

from __future__ import annotations

import inspect
import math
import re

import pytest

from astkit.gating import Controller, LogIntegral, cards
from astkit.names import REGISTRIES, resolve

NAMES = list(REGISTRIES["controller"])


def test_the_table_has_a_row_for_each_registered_controller_in_order() -> None:
    rows = cards.controllers()
    assert [row["controller"] for row in rows] == NAMES
    keys = ["controller", "parameters", "gains", "law", "good_for", "stability", "source"]
    assert all(list(row) == keys for row in rows)
    row = rows[NAMES.index("log_integral")]
    assert row["parameters"] == "gain=0.5, signed=None, damping=0.25"
    assert row["gains"] == "gain"


@pytest.mark.parametrize("name", NAMES)
def test_every_card_is_complete_and_its_own(name: str) -> None:
    kind = resolve("controller", name)
    assert "card" in vars(kind)  # not inherited from another law
    for entry in kind.card:
        assert len(entry) > 10
        assert "\n" not in entry
        assert not entry.endswith(".")  # the page adds it


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_documented_with_the_default_of_the_signature(name: str) -> None:
    kind = resolve("controller", name)
    rows = cards.parameters(kind)
    signature = inspect.signature(kind).parameters
    assert [row["name"] for row in rows] == list(signature)
    for row in rows:
        assert len(row["meaning"]) > 15, f"{row['name']} is missing under Args"
        default = signature[row["name"]].default
        assert row["default"] == (
            "required" if default is inspect.Parameter.empty else repr(default)
        )


@pytest.mark.parametrize("name", NAMES)
def test_gains_are_numbers_that_can_be_turned(name: str) -> None:
    controller: Controller = resolve("controller", name)(0.25)
    for gain in controller.gains:
        value = getattr(controller, gain)
        assert isinstance(value, float)
        setattr(controller, gain, value / 2)
        assert getattr(controller, gain) == value / 2
        with pytest.raises(ValueError, match=f"{gain} is nan"):
            setattr(controller, gain, math.nan)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_holds_the_card_and_the_parameters(name: str) -> None:
    page, kind = cards.markdown(name), resolve("controller", name)
    assert page.startswith(f"### {name} (`{kind.__name__}`)\n")
    assert all(entry in page for entry in kind.card)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, re.M)
    assert rows == [tuple(row.values()) for row in cards.parameters(kind)]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown controller 'pid': choose one of log_integral"):
        cards.markdown("pid")


def test_meanings_come_from_the_docstring_and_what_it_inherits() -> None:
    class Child(LogIntegral):
        """A child.

        Args:
            bias: one line,
                and the next one.

        Raises:
            gain: not an argument.
        """

        def __init__(self, target_rate: float, bias: int = 3, gain: float = 0.5) -> None: ...

    rows = {row["name"]: row for row in cards.parameters(Child)}
    assert rows["bias"] == {
        "name": "bias",
        "default": "3",
        "meaning": "one line, and the next one.",
    }
    assert rows["gain"]["meaning"].startswith("step size, > 0")
    assert rows["target_rate"]["meaning"].startswith("set point")
