"""Cards: complete for whatever is registered, and true to its constructor."""

from __future__ import annotations

import inspect
import re

import pytest

from astkit.gating import LogIntegral, cards
from astkit.names import REGISTRIES, resolve

CARDED = [(kind, name) for kind in ("controller", "policy") for name in REGISTRIES[kind]]


def test_the_tables_have_a_row_for_each_registered_name_in_order() -> None:
    for kind, rows in (("controller", cards.controllers()), ("policy", cards.policies())):
        assert [row[kind] for row in rows] == list(REGISTRIES[kind])
        gains = ["gains"] if kind == "controller" else []
        for row in rows:
            facts = resolve(kind, row[kind]).card._asdict()
            assert list(row) == [kind, "parameters", *gains, *facts]
            assert row == {**row, **facts}
    row = cards.controllers()[list(REGISTRIES["controller"]).index("log_integral")]
    assert (row["parameters"], row["gains"]) == ("gain=0.5, signed=None", "gain")


@pytest.mark.parametrize(("kind", "name"), CARDED)
def test_every_card_is_complete_and_its_own(kind: str, name: str) -> None:
    made = resolve(kind, name)
    assert "card" in vars(made)  # not inherited from another law
    for entry in made.card:
        assert len(entry) > 10
        assert "\n" not in entry
        assert not entry.endswith(".")  # the page adds it


@pytest.mark.parametrize(("kind", "name"), CARDED)
def test_every_parameter_is_documented_with_the_default_of_the_signature(
    kind: str, name: str
) -> None:
    made = resolve(kind, name)
    signature = inspect.signature(made).parameters
    rows = cards.parameters(made)
    assert [row["name"] for row in rows] == list(signature)
    for row in rows:
        assert len(row["meaning"]) > 10, f"{row['name']} is missing under Args"
        default = signature[row["name"]].default
        assert row["default"] == ("required" if default is inspect._empty else repr(default))


@pytest.mark.parametrize(("kind", "name"), CARDED)
def test_a_page_holds_the_card_and_the_parameters(kind: str, name: str) -> None:
    page, made = cards.markdown(kind, name), resolve(kind, name)
    assert page.startswith(f"### {name} (`{made.__name__}`)\n")
    assert all(entry in page for entry in made.card)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, re.M)
    assert rows == [tuple(row.values()) for row in cards.parameters(made)]
    gains = ", ".join(f"`{gain}`" for gain in ("target_rate", *getattr(made, "gains", ())))
    sentence = f"\n- **May be changed while training:** {gains}.\n"
    assert (sentence in page) == (kind == "controller")


def test_an_unknown_name_is_refused() -> None:
    for kind, known in (("controller", "log_integral"), ("policy", "gate")):
        with pytest.raises(ValueError, match=f"unknown {kind} 'pid': choose one of .*{known}"):
            cards.markdown(kind, "pid")


def test_meanings_come_from_the_docstring_and_what_it_inherits() -> None:
    class Child(LogIntegral):
        """A child.

        Args:
            bias, shift: one line,
                and the next one.

        Raises:
            gain: not an argument.
        """

        def __init__(self, target_rate: float, bias: int = 3, shift: int = 0, gain: float = 1): ...

    found = {row["name"]: row["meaning"] for row in cards.parameters(Child)}
    assert found["bias"] == found["shift"] == "one line, and the next one."
    assert found["gain"].startswith("step size, > 0")
    assert found["target_rate"].startswith("set point")
