"""Cards: descriptions of the registered controllers, as table rows."""

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
