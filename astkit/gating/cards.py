"""Cards: what each registered controller and policy does, as rows of a table."""

from __future__ import annotations

from typing import NamedTuple

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


def controllers() -> list[dict[str, str]]:
    """A row for each registered controller: its name, the gains that can be changed, its card."""
    found = {name: resolve("controller", name) for name in REGISTRIES["controller"]}
    return [
        {"controller": name, "gains": ", ".join(kind.gains), **kind.card._asdict()}
        for name, kind in found.items()
    ]


def policies() -> list[dict[str, str]]:
    """A row for each registered policy: its name and its card."""
    found = {name: resolve("policy", name) for name in REGISTRIES["policy"]}
    return [{"policy": name, **kind.card._asdict()} for name, kind in found.items()]
