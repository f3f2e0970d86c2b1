"""Two systems built on the kit: the energy-flow lattice and the logic automaton."""

from astkit.systems.automaton.automaton import LogicCA as LogicCA
from astkit.systems.automaton.automaton import LogicCAConfig as LogicCAConfig
from astkit.systems.lattice.model import EnergyFlowLattice as EnergyFlowLattice
from astkit.systems.lattice.model import LatticeConfig as LatticeConfig
