"""Two systems built on the kit: the energy-flow lattice and the logic automaton.

Names are imported lazily, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from astkit.names import SYSTEMS

if TYPE_CHECKING:
    from astkit.systems.automaton.automaton import LogicCA as LogicCA
    from astkit.systems.automaton.automaton import LogicCAConfig as LogicCAConfig
    from astkit.systems.lattice.model import EnergyFlowLattice as EnergyFlowLattice
    from astkit.systems.lattice.model import LatticeConfig as LatticeConfig


def __getattr__(name: str) -> Any:
    if name not in SYSTEMS:
        raise AttributeError(f"module 'astkit.systems' has no attribute {name!r}")
    return getattr(import_module(SYSTEMS[name]), name)


def __dir__() -> list[str]:
    return sorted(SYSTEMS)
