"""Energy-flow lattice: maps embeddings to embeddings by flows between two surfaces.

Reimplements energy_flow of LL1yt/EnergyFlowSwift at 7730fce, with its sizes of networks, but
without interaction between samples. In order: settings, networks, flows and their steps, the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.checks import ABOVE_0, FROM_0, RATE, Limit, check_settings

EnergyRule = Literal["residual", "original"]

SIGNAL = 64
"""Features from the neuron to the carrier."""

MOVE, ENERGY, CHILD, ADVANCE, GATE = slice(0, 2), slice(2, 3), 3, slice(4, 5), 5
"""Columns of the carrier's output: x and y, energy, energy of children; z, spawn gate."""

SIGNED = 4
"""The first four columns pass through tanh, the others through a sigmoid."""

NEIGHBOURS = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""Offset of the first to fourth child of a flow from its parent, in cells."""

EPSILON = 1e-6

REACH = 1.0
"""Maximum move along x and y per step, in cells."""

MIN_STEPS = 5
"""Steps of a sample before it may stop."""

LIMITS: dict[str, Limit] = {
    **dict.fromkeys(("dim", "hidden", "layers", "mapper_width", "max_flows", "max_children"), 1),
    **dict.fromkeys(("width", "height", "depth"), 2),
    **dict.fromkeys(("z_min", "z_max", "input_scale"), ABOVE_0),
    **dict.fromkeys(("tau", "spawn_threshold"), RATE),
    "theta_e": FROM_0,
    "energy_rule": get_args(EnergyRule),
}
"""What the settings of a lattice have to be, see `check_settings`."""


@dataclass(frozen=True)
class LatticeConfig:
    """Settings of an `EnergyFlowLattice`.

    Args:
        dim: length of an embedding, input and output.
        width, height: cells of the surface along x and y; one flow starts in each.
        depth: planes along z; a flow arrives at ``z >= depth - 1``.
        hidden, layers: units and layers of a flow's GRU.
        mapper_width: units of the widest hidden layer of mapper and collector;
            None: ``max(384, 2 * width * height)``.
        max_flows: maximum number of flows alive at a time **per sample**; None:
            ``2 * width * height``. Children without a free slot are counted in ``dropped``.
        z_min, z_max: minimum and maximum advance along z per step, in planes.
        spawn_threshold: a flow spawns when its gate exceeds this, in (0, 1]; 1 disables spawning.
        max_children: maximum number of children per flow and step, 1 to 4.
        theta_e: a flow dies when the magnitude of its energy falls below this.
        tau: a sample stops once this share of its flows has arrived or died,
        patience: or after this many steps without an arrival, counted from the first arrival;
            remaining flows are deposited where they are. Neither rule stops a sample before
            `MIN_STEPS` steps.
        energy_rule: "residual" adds to a flow's energy; "original" replaces it.
        input_scale: embeddings are multiplied by this; None: ``sqrt(dim)``.
        lattice: False omits the flows: mapper and collector only (the bypass).

    Raises ``ValueError`` for a setting out of range.
    """

    dim: int = 768
    width: int = 12
    height: int = 12
    depth: int = 6
    hidden: int = 32
    layers: int = 1
    mapper_width: int | None = None
    max_flows: int | None = None
    z_min: float = 0.5
    z_max: float = 1.5
    spawn_threshold: float = 0.6
    max_children: int = 3
    theta_e: float = 0.0
    tau: float = 0.95
    patience: float = 3
    energy_rule: EnergyRule = "residual"
    input_scale: float | None = None
    lattice: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, LIMITS, ("mapper_width", "max_flows", "input_scale"))
        if self.max_children > len(NEIGHBOURS):
            raise ValueError(f"max_children is {self.max_children}: give 1 to 4")
        if not self.patience >= 1:
            raise ValueError(f"patience is {self.patience}: give 1 or more steps")
        if self.flows_per_sample < self.cells:
            raise ValueError(
                f"max_flows is {self.max_flows} per sample, but {self.cells} flows start in each"
                f" ({self.width} x {self.height}): give at least {self.cells}"
            )
        if self.z_min > self.z_max:
            raise ValueError(
                f"z_min is {self.z_min} and z_max {self.z_max}: give 0 < z_min <= z_max, so that"
                " every flow arrives"
            )

    @property
    def cells(self) -> int:
        """Cells of the surface: initial number of flows per sample."""
        return self.width * self.height

    @property
    def flows_per_sample(self) -> int:
        """Maximum number of concurrent flows per sample."""
        return 2 * self.cells if self.max_flows is None else self.max_flows

    @property
    def steps_allowed(self) -> int:
        """Maximum number of steps per sample: what the slowest flow needs."""
        return math.ceil((self.depth - 1) / self.z_min)


PRESETS = {
    "debug": LatticeConfig(width=8, height=8, depth=4, hidden=16),
    "experiment": LatticeConfig(width=12, height=12, depth=6, hidden=32),
    "large": LatticeConfig(width=32, height=32, depth=12, hidden=128, layers=2),
}
"""The original's presets by name, on smaller surfaces, so that every sample has all its flows."""


class Mapper(nn.Module):
    """Embeddings ``[batch, dim]`` to a surface ``[batch, height * width]`` of energies, row-major.

    ``tanh(MLP(scale * x)) * gain + bias + position``, without the original's dropout, so that a
    forward pass draws no random numbers.
    """

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.dim) if config.input_scale is None else config.input_scale
        self.layers = _mlp(config.dim, _widest(config), 2 * config.cells, config.cells)
        self.gain = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))
        self.position = nn.Parameter(0.02 * torch.randn(config.cells))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layers(x * self.scale)) * self.gain + self.bias + self.position


def _widest(config: LatticeConfig) -> int:
    return config.mapper_width or max(384, 2 * config.cells)


def _mlp(*sizes: int) -> nn.Sequential:
    blocks = (
        (nn.Linear(inputs, outputs), nn.GELU(), nn.LayerNorm(outputs))
        for inputs, outputs in pairwise(sizes[:-1])
    )
    return nn.Sequential(*chain(*blocks), nn.Linear(sizes[-2], sizes[-1]))


class Carrier(nn.Module):
    """A stack of GRU cells over a flow's steps, and one linear layer for all of its outputs."""

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        sizes = [SIGNAL + 1, *[config.hidden] * (config.layers - 1)]
        self.cells = nn.ModuleList(nn.GRUCell(inputs, config.hidden) for inputs in sizes)
        self.heads = nn.Linear(config.hidden, 6)
        with torch.no_grad():
            # initially, flows land near their cell with about their initial energy
            self.heads.weight[MOVE] *= 0.1
            self.heads.weight[ENERGY] *= 0.1
            self.heads.bias.zero_()

    def forward(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One step of ``inputs [flows, 65]`` (signal, energy); ``hidden [flows, layers, units]``.

        Returns outputs ``[flows, 6]`` in (-1, 1) and (0, 1), and the new hidden states.
        """
        memory = []
        for cell, old in zip(self.cells, hidden.unbind(1), strict=True):
            inputs = cell(inputs, old)
            memory.append(inputs)
        decided = self.heads(inputs)
        signed, unsigned = decided[:, :SIGNED].tanh(), decided[:, SIGNED:].sigmoid()
        return torch.cat([signed, unsigned], 1), torch.stack(memory, 1)


class Flows(NamedTuple):
    """Flows in the order of their slots; slot ``k`` belongs to sample ``k // flows_per_sample``.

    Attributes:
        slot: int64 ``[n]``, ascending.
        place: x, y and z in lattice units, and energy, ``[n, 4]``.
        age: steps taken, ``[n]``, of the same dtype as ``place``.
        hidden: the GRU's hidden states, ``[n, layers, units]``.
    """

    slot: Tensor
    place: Tensor
    age: Tensor
    hidden: Tensor

    def take(self, rows: Tensor) -> Flows:
        """The flows in ``rows``, int64 ``[m]``, or where a mask, bool ``[n]``, is true."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero().squeeze(1)
            if len(rows) == len(self.slot):
                return self
        return Flows(*(part.index_select(0, rows) for part in self))


class FlowStats(NamedTuple):
    """Counters of samples, int64 ``[batch]``; ``created = completed + died + left``.

    ``left`` flows are alive, or were when their sample stopped; ``dropped`` children found no slot.
    """

    created: Tensor
    completed: Tensor
    died: Tensor
    dropped: Tensor
    left: Tensor
    steps: Tensor


class Rollout:
    """The flows of a batch, step by step until all its samples have stopped.

    One flow starts in each cell of ``surface [batch, height * width]``, at z = 0. For the other
    arguments see `EnergyFlowLattice.forward`.

    Attributes:
        flows: those that are alive.
        landings: flows that arrived, or were alive when their sample stopped.
        number: steps so far.
    """

    def __init__(
        self,
        lattice: EnergyFlowLattice,
        surface: Tensor,
        adaptive: bool = True,
        flows_per_call: int | None = None,
    ) -> None:
        self.lattice, self.config = lattice, lattice.config
        self.adaptive, self.flows_per_call = adaptive, flows_per_call
        config = self.config
        batch, energy = len(surface), surface.reshape(-1, 1).to(lattice.extent.dtype)
        cell = torch.arange(config.cells, device=surface.device)
        slot = torch.arange(batch, device=surface.device)[:, None] * config.flows_per_sample + cell
        place = torch.stack([cell % config.width, cell // config.width, torch.zeros_like(cell)], 1)
        place = torch.cat([place.to(energy.dtype).repeat(batch, 1), energy], 1)
        hidden = energy.new_zeros(len(energy), config.layers, config.hidden)
        self.flows = Flows(slot.flatten(), place, energy.new_zeros(len(energy)), hidden)
        self.landings: list[Flows] = []
        self.number = 0
        none = torch.zeros(batch, dtype=torch.int64, device=surface.device)
        cells = none + config.cells
        self.stats = FlowStats(cells, none, none, none, left=cells, steps=none)
        self.stale = none  # steps without an arrival
        self.running = torch.ones_like(none, dtype=torch.bool)

    def step(self) -> None:
        """Move all flows; those that arrive or die end, others may spawn, samples may stop."""
        config, stats = self.config, self.stats
        flows, decided = self._move(self.flows)
        sample = flows.slot // config.flows_per_sample
        arrived = flows.place[:, 2] >= config.depth - 1
        died = ~arrived & (flows.place[:, 3].abs() < config.theta_e)
        wanted = self._children(decided[:, GATE]).masked_fill(arrived | died, 0)
        # a flow also loses the energy share of a child without a slot
        energy = flows.place[:, 3:] / (wanted + 1)[:, None]
        flows = flows._replace(place=torch.cat([flows.place[:, :3], energy], 1))
        arrivals, deaths, requests = (
            torch.zeros_like(self.stale).index_add(0, sample, each.long())
            for each in (arrived, died, wanted)
        )
        completed, ended = stats.completed + arrivals, stats.died + deaths
        born = torch.minimum(requests, config.flows_per_sample - stats.left + arrivals + deaths)
        created = stats.created + born
        left = created - completed - ended
        alive = flows.take(~(arrived | died))
        if born.any():
            alive = self._with_children(alive, flows, decided, wanted, born)
        self.number += 1
        self.stale = torch.where((completed > 0) & (arrivals == 0), self.stale + 1, 0)
        stop = left == 0
        if self.number >= config.steps_allowed:
            stop = torch.ones_like(stop)
        elif self.adaptive and self.number >= MIN_STEPS:
            stop |= (completed + ended >= config.tau * created) | (self.stale >= config.patience)
        dropped, steps = stats.dropped + requests - born, stats.steps + self.running
        self.stats = FlowStats(created, completed, ended, dropped, left, steps)
        self.running = self.running & ~stop
        stopped = stop[alive.slot // config.flows_per_sample]
        self.landings += [flows.take(arrived), alive.take(stopped)]
        self.flows = alive.take(~stopped)

    def output(self) -> LatticeOutput:
        """The surface that the flows so far have landed on, and what the collector makes of it."""
        surface = deposit(self.landings, len(self.running), self.config)
        return LatticeOutput(self.lattice.collector(surface), surface, self.stats)

    def _move(self, flows: Flows) -> tuple[Flows, Tensor]:
        """Flows after the step, and the carrier's output, ``[n, 6]``::

            e' = e + tanh(a) / 2                or, in the original: e' = tanh(a)
            x' = fold(x + REACH tanh(b))        y' likewise
            z' = z + z_min + (z_max - z_min) sigmoid(c)

        Since z_min > 0, every flow arrives.
        """
        lattice, config, here = self.lattice, self.config, flows.place
        features = torch.cat([here[:, :3] * (2 / lattice.extent) - 1, here[:, 3:]], 1)
        size = self.flows_per_call or len(features)
        calls = [
            lattice.carrier(torch.cat([lattice.neuron(rows), rows[:, 3:]], 1), hidden)
            for rows, hidden in zip(features.split(size), flows.hidden.split(size), strict=True)
        ]
        decided, hidden = calls[0] if len(calls) == 1 else map(torch.cat, zip(*calls, strict=True))
        decided = decided.to(here.dtype)  # under autocast, place and energy keep their precision
        xy = fold(here[:, :2] + REACH * decided[:, MOVE], lattice.extent[:2])
        z = here[:, 2:3] + config.z_min + (config.z_max - config.z_min) * decided[:, ADVANCE]
        energy = decided[:, ENERGY]
        if config.energy_rule == "residual":
            energy = here[:, 3:] + 0.5 * energy
        return Flows(flows.slot, torch.cat([xy, z, energy], 1), flows.age + 1, hidden), decided

    def _children(self, gate: Tensor) -> Tensor:
        """Children that each flow wants, int64 ``[n]``."""
        threshold, most = self.config.spawn_threshold, self.config.max_children
        above = (gate.detach() - threshold) / (1 - threshold)  # never above 0 at a threshold of 1
        return torch.where(above > 0, (above * most).clamp(0, most - 1).long() + 1, 0)

    def _with_children(
        self, alive: Flows, flows: Flows, decided: Tensor, wanted: Tensor, born: Tensor
    ) -> Flows:
        """``alive`` and the first ``born [batch]`` children of each sample, in free slots.

        Children are ordered by their parents in ``flows``, which want ``wanted [n]`` each, and free
        slots by number.
        """
        parent = torch.arange(len(wanted), device=wanted.device).repeat_interleave(wanted)
        which = torch.arange(len(parent), device=wanted.device)
        sample = flows.slot[parent] // self.config.flows_per_sample
        first = torch.searchsorted(sample, torch.arange(len(born), device=wanted.device))
        within = which - first[sample] < born[sample]
        which = (which - (wanted.cumsum(0) - wanted)[parent])[within]
        parent = parent[within]
        free = torch.ones(len(born), self.config.flows_per_sample, device=born.device).bool()
        free.view(-1)[alive.slot] = False
        slot = (free & (free.cumsum(1) <= born[:, None])).flatten().nonzero().squeeze(1)
        own, start = decided.index_select(0, parent), flows.take(parent)
        beside = start.place[:, :2] + start.place.new_tensor(NEIGHBOURS)[which]
        energy = own[:, GATE] * own[:, CHILD] / (wanted[parent] + 1)
        place = [fold(beside, self.lattice.extent[:2]), start.place[:, 2:3], energy[:, None]]
        children = Flows(slot, torch.cat(place, 1), torch.zeros_like(energy), start.hidden)
        both = Flows(*map(torch.cat, zip(alive, children, strict=True)))
        return both.take(both.slot.argsort())


def fold(value: Tensor, extent: Tensor) -> Tensor:
    """``value`` reflected at 0 and m = ``extent``: ``v mod 2m``, and ``2m - v`` above m."""
    return extent - (value.remainder(2 * extent) - extent).abs()


def deposit(landings: list[Flows], batch: int, config: LatticeConfig) -> Tensor:
    """The surface ``[batch, height * width]``: per cell, the weighted mean energy of landings.

    A flow is distributed bilinearly to the four nearest cells. Weights are the original's,
    ``(|energy| + 1e-6) (1 + 0.1 age)``, detached. Empty cells are 0.
    """
    width, height = config.width, config.height
    slot, place, age, _ = map(torch.cat, zip(*landings, strict=True))
    xy, energy = place[:, :2], place[:, 3]
    weight = (energy.detach().abs() + EPSILON) * (1 + 0.1 * age)
    corner = xy.detach().floor()
    fraction = xy - corner
    near = corner.long().T
    corners = torch.stack([near, near + 1])  # [2, xy, n]
    # the share is 0 outside; NaNs stay in bounds, and propagate to the surface
    x, y = corners[:, 0].clamp(0, width - 1), corners[:, 1].clamp(0, height - 1)
    sample = slot // config.flows_per_sample
    cell = (sample * height + y[:, None]) * width + x[None]  # [2 in y, 2 in x, n]
    share_x, share_y = (torch.stack([1 - part, part]) for part in fraction.T)
    amount = share_y[:, None] * share_x[None] * weight
    empty = amount.new_zeros(batch * config.cells)
    summed = empty.index_add(0, cell.flatten(), (amount * energy).flatten())
    total = empty.index_add(0, cell.flatten(), amount.flatten())
    return (summed / (total + EPSILON)).view(batch, -1)


class LatticeOutput(NamedTuple):
    """``y``: ``[batch, dim]``; ``surface``: ``[batch, height * width]``; ``stats``: counters."""

    y: Tensor
    surface: Tensor
    stats: FlowStats


class EnergyFlowLattice(nn.Module):
    """Flows that carry energy from a surface at z = 0 to one at z = depth - 1.

    The mapper maps an embedding to a surface; a flow starts in each of its cells. In a step, one
    neuron and one GRU, shared by all flows, predict each flow's move, its energy and its children.
    Flows deposit their energy where they land; the collector maps that surface to an embedding::

        model = EnergyFlowLattice(LatticeConfig(dim=768, width=12, height=12, depth=6))
        y, surface, stats = model(x)

    Weights depend only on ``config.seed``; all of them are in ``state_dict()``. A sample's output
    does not depend on its batch.
    """

    extent: Tensor  # largest x, y and z

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        self.config = config
        # one key per part: the mapper of a seed is the same with and without flows
        with rng.isolated("cpu", config.seed, "lattice", "mapper"):
            self.mapper = Mapper(config)
        with rng.isolated("cpu", config.seed, "lattice", "collector"):
            self.collector = _mlp(config.cells, 2 * config.cells, _widest(config), config.dim)
        if config.lattice:
            with rng.isolated("cpu", config.seed, "lattice", "flows"):
                # flows ``[n, 4]``, place in [-1, 1] and energy, to signals
                first, second = ((nn.Linear(n, 32), nn.LayerNorm(32), nn.GELU()) for n in (4, 32))
                self.neuron = nn.Sequential(*first, *second, nn.Linear(32, SIGNAL))
                self.carrier = Carrier(config)
            extent = torch.tensor([config.width - 1.0, config.height - 1.0, config.depth - 1.0])
            # integers, so also exact after .double()
            self.register_buffer("extent", extent, persistent=False)

    def forward(
        self,
        x: Tensor,
        *,
        adaptive: bool = True,
        flows_per_call: int | None = None,
    ) -> LatticeOutput:
        """Map embeddings to embeddings.

        Args:
            x: ``[batch, dim]``.
            adaptive: False runs samples for the maximum number of steps, or until no flow is alive.
            flows_per_call: flows per call of neuron and carrier; None: all. Outputs are
                equal up to rounding.

        Raises ``ValueError`` for ``x`` of another shape.
        """
        if x.ndim != 2 or x.shape[1] != self.config.dim or not len(x):
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, dim] with dim {self.config.dim} and a"
                " batch of 1 or more"
            )
        surface = self.mapper(x)
        if not self.config.lattice:
            none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            return LatticeOutput(self.collector(surface), surface, FlowStats(*(none,) * 6))
        rollout = Rollout(self, surface, adaptive, flows_per_call)
        while len(rollout.flows.slot):
            rollout.step()
        return rollout.output()
