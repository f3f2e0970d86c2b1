"""Flows as tensors, and one step of all flows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit.lattice.config import LatticeConfig
from astkit.lattice.layers import ADVANCE, CHILD, ENERGY, GATE, MOVE, Carrier, Neuron
from astkit.lattice.surface import Landing, fold

NEIGHBOURS = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""Offset of the first to fourth child of a flow from its parent, in cells."""


class Flows(NamedTuple):
    """The flows that are alive, in the order of their slots.

    Slot ``k`` belongs to sample ``k // flows_per_sample``.

    Attributes:
        slot: int64 ``[n]``, ascending.
        place: x, y and z in lattice units, and energy, ``[n, 4]``.
        age: steps taken, ``[n]``, of the same dtype as ``place``.
        hidden: the GRU's hidden state, one ``[n, hidden]`` per layer.
    """

    slot: Tensor
    place: Tensor
    age: Tensor
    hidden: tuple[Tensor, ...]

    def take(self, rows: Tensor) -> Flows:
        """The flows in ``rows``, int64 ``[m]``."""
        place = self.place.index_select(0, rows)
        hidden = tuple(layer.index_select(0, rows) for layer in self.hidden)
        return Flows(self.slot[rows], place, self.age[rows], hidden)


@dataclass(frozen=True)
class FlowStats:
    """Per-sample counters, int64 ``[batch]`` on the model's device.

    ``created = completed + died + left``; ``left`` flows were alive when their sample stopped.
    ``dropped`` children found no slot and were never created.
    """

    created: Tensor
    completed: Tensor
    died: Tensor
    dropped: Tensor
    left: Tensor
    steps: Tensor


@dataclass(frozen=True)
class Tally(FlowStats):
    """The counters between steps; ``stale``: steps without an arrival; ``running``: bool."""

    stale: Tensor
    running: Tensor

    @property
    def alive(self) -> Tensor:
        return self.created - self.completed - self.died


class _Fates(NamedTuple):
    arrived: Tensor  # bool [n]
    alive: Tensor  # bool [n]: neither arrived nor died
    wanted: Tensor  # int64 [n], children
    rank: Tensor  # int64 [n]: children wanted by earlier flows of the same sample
    born: Tensor  # int64 [batch], children that find a slot
    stop: Tensor  # bool [batch]


@dataclass(frozen=True)
class Stepper:
    """The update rules of a step; ``extent [3]``: largest x, y and z.

    ``adaptive`` and ``flows_per_call``: see `EnergyFlowLattice.forward`.
    """

    config: LatticeConfig
    neuron: Neuron
    carrier: Carrier
    extent: Tensor
    adaptive: bool = True
    flows_per_call: int | None = None

    def begin(self, surface: Tensor) -> tuple[Flows, Tally]:
        """One flow in each cell of ``surface [batch, height * width]``, at z = 0."""
        config, batch = self.config, len(surface)
        cell = torch.arange(config.cells, device=surface.device)
        first = torch.arange(batch, device=surface.device)[:, None] * config.flows_per_sample
        place = torch.stack([cell % config.width, cell // config.width, torch.zeros_like(cell)], 1)
        energy = surface.reshape(-1, 1)
        place = torch.cat([place.to(energy.dtype).repeat(batch, 1), energy], 1)
        memory = energy.new_zeros(len(energy), config.hidden)
        age = energy.new_zeros(len(energy))
        flows = Flows((first + cell).flatten(), place, age, (memory,) * config.layers)
        none = torch.zeros(batch, dtype=torch.int64, device=surface.device)
        running = torch.ones_like(none, dtype=torch.bool)
        return flows, Tally(none + config.cells, *(none,) * 6, running)

    def step(self, flows: Flows, tally: Tally, number: int) -> tuple[Flows, Tally, list[Landing]]:
        """Step ``number`` (from 0): remaining flows, updated counters, landings.

        Synchronises with the device once, to read the numbers of flows.
        """
        flows, decided = self._move(flows)
        sample = flows.slot // self.config.flows_per_sample
        fates, tally, read = self._judge(flows, decided, sample, tally, number)
        arrived, alive, wanted, born, stranded = read.tolist()
        landings = []
        if wanted:  # a flow also loses the energy share of a child without a slot
            share = torch.ones_like(flows.place)
            share[:, 3] = 1 / (fates.wanted + 1).to(share.dtype)
            flows = flows._replace(place=flows.place * share)
        if arrived:
            landings.append(_landing(flows, sample, find(fates.arrived, arrived)))
        if alive < len(sample) or born:
            flows = self._next(flows, decided, sample, fates, alive, born)
        if stranded:
            sample = flows.slot // self.config.flows_per_sample
            stopped = fates.stop[sample]
            landings.append(_landing(flows, sample, find(stopped, stranded)))
            flows = flows.take(find(~stopped, len(sample) - stranded))
        return flows, tally, landings

    def _move(self, flows: Flows) -> tuple[Flows, Tensor]:
        """Flows after the step, and the carrier's output, ``[n, 6]``::

            e' = e + tanh(a) / 2                or, in the original: e' = tanh(a)
            x' = fold(x + reach tanh(b))        y' likewise
            z' = z + z_min + (z_max - z_min) sigmoid(c)

        Since z_min > 0, every flow arrives.
        """
        config, here = self.config, flows.place
        one = torch.ones_like(self.extent)
        scale, shift = F.pad(2 / self.extent, (0, 1), value=1), F.pad(-one, (0, 1))
        decided, hidden = self._call(here * scale + shift, flows.hidden)
        decided = decided.to(here.dtype)  # under autocast, place and energy keep their precision
        xy = here[:, :2] + config.reach * decided[:, MOVE]
        speed = config.z_min + (config.z_max - config.z_min) * decided[:, ADVANCE]
        energy = decided[:, ENERGY]
        if config.energy_rule == "residual":
            energy = here[:, 3:] + 0.5 * energy
        place = torch.cat([fold(xy, self.extent[:2]), here[:, 2:3] + speed, energy], 1)
        return Flows(flows.slot, place, flows.age + 1, hidden), decided

    def _call(
        self, features: Tensor, hidden: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        size = self.flows_per_call
        if size is None or len(features) <= size:
            inputs = torch.cat([self.neuron(features), features[:, 3:]], 1)
            return self.carrier(inputs, hidden)
        parts = zip(*(part.split(size) for part in (features, *hidden)), strict=True)
        called = (self._call(rows, tuple(memory)) for rows, *memory in parts)
        outputs, memories = zip(*called, strict=True)
        return torch.cat(outputs), tuple(map(torch.cat, zip(*memories, strict=True)))

    def _judge(
        self, flows: Flows, decided: Tensor, sample: Tensor, tally: Tally, number: int
    ) -> tuple[_Fates, Tally, Tensor]:
        """The fate of each flow and sample, and the counts needed on the host."""
        arrived = flows.place[:, 2] >= self.config.depth - 1
        died = ~arrived & (flows.place[:, 3].abs() < self.config.theta_e)
        wanted = self._wanted(decided[:, GATE]).masked_fill(arrived | died, 0)
        # flows are sorted by sample: sums per sample are differences of running sums
        running = F.pad(torch.stack([arrived.long(), died.long(), wanted]).cumsum(1), (1, 0))
        batch = torch.arange(len(tally.created) + 1, device=sample.device)
        edges = torch.searchsorted(sample, batch)
        here = running[:, edges].diff()
        rank = running[2, :-1] - running[2, edges[:-1]][sample]
        room = self.config.flows_per_sample - tally.alive + here[0] + here[1]  # with freed slots
        born = torch.minimum(here[2], room)
        after, stop = self._count(tally, here, born, number)
        alive = ~(arrived | died)
        fates = _Fates(arrived, alive, wanted, rank, born, stop)
        stranded = (after.left - tally.left).sum()
        read = torch.stack([here[0].sum(), alive.sum(), here[2].sum(), born.sum(), stranded])
        return fates, after, read

    def _count(self, tally: Tally, here: Tensor, born: Tensor, number: int) -> tuple[Tally, Tensor]:
        """The counters after a step with ``here [3, batch]``: arrivals, deaths, requested children.

        Also returns which samples stop, bool ``[batch]``.
        """
        config = self.config
        after = replace(
            tally,
            created=tally.created + born,
            completed=tally.completed + here[0],
            died=tally.died + here[1],
            dropped=tally.dropped + here[2] - born,
            steps=tally.steps + tally.running,
        )
        stale = torch.where((after.completed > 0) & (here[0] == 0), tally.stale + 1, 0)
        stop = after.alive == 0
        if number + 1 >= config.steps_allowed:
            stop = torch.ones_like(stop)
        elif self.adaptive and number + 1 >= config.min_steps:
            done = after.completed + after.died
            stop = stop | (done >= config.tau * after.created) | (stale >= config.patience)
        stop = stop & tally.running
        left = torch.where(stop, after.alive, tally.left)
        return replace(after, left=left, stale=stale, running=tally.running & ~stop), stop

    def _wanted(self, gate: Tensor) -> Tensor:
        threshold, most = self.config.spawn_threshold, self.config.max_children
        if threshold == 1:
            return torch.zeros_like(gate, dtype=torch.int64)
        above = (gate.detach() - threshold) / (1 - threshold)
        number = (above * most).floor().long() + 1
        return torch.where(above > 0, number.clamp(max=most), 0)

    def _next(
        self, flows: Flows, decided: Tensor, sample: Tensor, fates: _Fates, alive: int, born: int
    ) -> Flows:
        """The surviving flows and their children, in the order of their slots."""
        rows = find(fates.alive, alive)
        if not born:
            return flows.take(rows)
        each = torch.arange(self.config.max_children, device=sample.device)
        rank = fates.rank[:, None] + each
        made = (each < fates.wanted[:, None]) & (rank < fates.born[sample][:, None])
        chosen = find(made.flatten(), born)
        parent, which = chosen // len(each), chosen % len(each)
        found = self._slots(flows.slot, fates, born)
        start = flows.place.index_select(0, parent)
        offset = start.new_tensor(NEIGHBOURS)[which]
        decided = decided.index_select(0, parent)
        energy = decided[:, GATE] * decided[:, CHILD] / (fates.wanted[parent] + 1)
        beside = fold(start[:, :2] + offset, self.extent[:2])
        child = torch.cat([beside, start[:, 2:3], energy[:, None]], 1)
        slot, order = torch.cat([flows.slot[rows], found]).sort()
        source = torch.cat([rows, parent])[order]
        return Flows(
            slot,
            torch.cat([flows.place.index_select(0, rows), child]).index_select(0, order),
            torch.cat([flows.age[rows], torch.zeros_like(child[:, 0])])[order],
            tuple(layer.index_select(0, source) for layer in flows.hidden),
        )

    def _slots(self, slot: Tensor, fates: _Fates, born: int) -> Tensor:
        """The first free slots of each sample, ``[born]``, including those of ended flows."""
        batch, each = len(fates.born), self.config.flows_per_sample
        taken = torch.zeros(batch * each, dtype=torch.bool, device=slot.device)
        free = ~taken.scatter(0, slot, fates.alive).view(batch, each)
        return find((free & (free.cumsum(1) <= fates.born[:, None])).flatten(), born)


def find(mask: Tensor, count: int) -> Tensor:
    """Indices of true elements of ``mask [n]``, int64 ``[count]``, without synchronisation."""
    return torch.nonzero_static(mask, size=count).squeeze(1)


def _landing(flows: Flows, sample: Tensor, rows: Tensor) -> Landing:
    return Landing(sample[rows], flows.place.index_select(0, rows), flows.age[rows])
