"""Cards: what each registered controller does, for a table or a page.

Names, defaults and meanings of parameters are read from signatures and docstrings, so that they
are written down once.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

from astkit.names import REGISTRIES, resolve


class Card(NamedTuple):
    """A controller in words.

    Attributes:
        law: how the threshold moves, one line.
        good_for: when to take it, and when not.
        stability: the condition under which it settles, and what it assumes.
        source: where the law comes from.
    """

    law: str
    good_for: str
    stability: str
    source: str


def parameters(kind: type) -> list[dict[str, str]]:
    """The parameters of ``kind``'s constructor: ``name``, ``default`` and ``meaning`` of each.

    A meaning is the entry under "Args:" in the docstring of the class or of one it inherits from;
    it is empty where there is none.
    """
    meanings: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):
        meanings |= _args(ancestor.__doc__ or "")
    return [
        {
            "name": name,
            "default": "required" if found.default is found.empty else repr(found.default),
            "meaning": meanings.get(name, ""),
        }
        for name, found in inspect.signature(kind).parameters.items()
    ]


def _args(docstring: str) -> dict[str, str]:
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.cleandoc(docstring), re.M)
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section[1] if section else "", re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def controllers() -> list[dict[str, str]]:
    """A row for each registered controller: its name, parameters, gains to turn, and card."""
    return [_row(name) for name in REGISTRIES["controller"]]


def _row(name: str) -> dict[str, str]:
    kind: Any = resolve("controller", name)
    optional = [each for each in parameters(kind) if each["default"] != "required"]
    return {
        "controller": name,
        "parameters": ", ".join(f"{each['name']}={each['default']}" for each in optional),
        "gains": ", ".join(kind.gains),
        **kind.card._asdict(),
    }


def markdown(name: str) -> str:
    """The card of the controller registered as ``name``, as Markdown.

    Raises ``ValueError`` for a name that is not registered.
    """
    kind: Any = resolve("controller", name)
    card: Card = kind.card
    rows = [
        f"| `{each['name']}` | {each['default']} | {each['meaning']} |" for each in parameters(kind)
    ]
    turn = ", ".join(f"`{gain}`" for gain in ("target_rate", *kind.gains))
    return "\n".join(
        [
            f"### {name} (`{kind.__name__}`)",
            "",
            f"    {card.law}",
            "",
            f"- **Good for:** {card.good_for}.",
            f"- **Stability:** {card.stability}.",
            f"- **Source:** {card.source}.",
            f"- **May be turned while running:** {turn}.",
            "",
            "| parameter | default | meaning |",
            "| --- | --- | --- |",
            *rows,
        ]
    )
