"""Cards: descriptions of the registered controllers and policies, as table rows."""

from __future__ import annotations

from typing import NamedTuple

from astkit.names import REGISTRIES, resolve


class Card(NamedTuple):
    """Description of a controller.

    Attributes:
        law: update rule of the threshold, one line.
        good_for: when to use it, and when not to.
        stability: stability condition and its assumptions.
        source: reference of the update rule.
    """

    law: str
    good_for: str
    stability: str
    source: str


def controllers() -> list[dict[str, str]]:
    """One row per registered controller: name, adjustable gains and card."""
    found = {name: resolve("controller", name) for name in REGISTRIES["controller"]}
    return [
        {"controller": name, "gains": ", ".join(kind.gains), **kind.card._asdict()}
        for name, kind in found.items()
    ]


def policies() -> list[dict[str, str]]:
    """One row per registered policy: name and card."""
    found = {name: resolve("policy", name) for name in REGISTRIES["policy"]}
    return [{"policy": name, **kind.card._asdict()} for name, kind in found.items()]
