"""Cards: what each registered controller and policy does, for a table or a page.

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
    entries = re.findall(
        r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", section[1] if section else "", re.M
    )
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def controllers() -> list[dict[str, str]]:
    """A row for each registered controller: its name, parameters, gains to turn, and card."""
    return _rows("controller")


def policies() -> list[dict[str, str]]:
    """A row for each registered policy: its name, parameters, and card."""
    return _rows("policy")


def _rows(kind: str) -> list[dict[str, str]]:
    rows = []
    for name in REGISTRIES[kind]:
        made: Any = resolve(kind, name)
        optional = [each for each in parameters(made) if each["default"] != "required"]
        defaults = ", ".join(f"{each['name']}={each['default']}" for each in optional)
        gains = {"gains": ", ".join(made.gains)} if hasattr(made, "gains") else {}
        rows.append({kind: name, "parameters": defaults, **gains, **made.card._asdict()})
    return rows


def markdown(kind: str, name: str) -> str:
    """The card of the controller or policy registered as ``name``, as Markdown.

    ``kind`` is "controller" or "policy". Raises ``ValueError`` for a name that is not registered.
    """
    made: Any = resolve(kind, name)
    facts = made.card._asdict()
    lines = [f"### {name} (`{made.__name__}`)", "", f"    {facts.pop('law')}", ""]
    lines += [f"- **{key.replace('_', ' ').capitalize()}:** {text}." for key, text in facts.items()]
    if hasattr(made, "gains"):
        gains = ", ".join(f"`{gain}`" for gain in ("target_rate", *made.gains))
        lines.append(f"- **May be changed while training:** {gains}.")
    lines += ["", "| parameter | default | meaning |", "| --- | --- | --- |"]
    for each in parameters(made):
        lines.append(f"| `{each['name']}` | {each['default']} | {each['meaning']} |")
    return "\n".join(lines)
