"""Reference implementation of the lattice: a plain loop over samples and flows.

It shares only modules, parameters and constants with `EnergyFlowLattice`, and calls them with one
flow at a time. Used by tests of the vectorised steps, and as the baseline in timings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from astkit.systems.lattice.model import (
    MIN_STEPS,
    REACH,
    EnergyFlowLattice,
    FlowStats,
    LatticeOutput,
)


@dataclass
class _Flow:
    x: Tensor
    y: Tensor
    z: Tensor
    energy: Tensor
    age: int
    hidden: Tensor


def run_reference(model: EnergyFlowLattice, x: Tensor, *, adaptive: bool = True) -> LatticeOutput:
    """Compute the output of ``model(x, adaptive=...)`` flow by flow, with gradients.

    ``model`` has flows (``lattice=True``); ``x``: ``[batch, dim]``. Compare in float64, since
    thresholds are discontinuous.
    """
    samples = [_Sample(model, model.mapper(row[None])[0]) for row in x]
    for sample in samples:
        sample.run(adaptive)
    surface = torch.stack([sample.surface() for sample in samples])
    counts = [sample.counts for sample in samples]
    stats = {name: torch.tensor([each[name] for each in counts]) for name in counts[0]}
    return LatticeOutput(model.collector(surface), surface, FlowStats(**stats))


class _Sample:
    """One sample's flows, their deposits on the surface, and the counters of `FlowStats`."""

    def __init__(self, model: EnergyFlowLattice, surface: Tensor) -> None:
        self.model, self.config = model, model.config
        config, zero = model.config, surface.new_zeros(())
        self.slots: list[_Flow | None] = [None] * config.flows_per_sample
        self.sums, self.weights = [zero] * config.cells, [zero] * config.cells
        for k in range(config.cells):
            row, column = divmod(k, config.width)
            hidden = surface.new_zeros(1, config.layers, config.hidden)
            self.slots[k] = _Flow(zero + column, zero + row, zero, surface[k], 0, hidden)
        self.counts = dict.fromkeys(FlowStats._fields, 0)
        self.counts["created"] = config.cells
        self.stale = 0

    def run(self, adaptive: bool) -> None:
        counts = self.counts
        for number in range(self.config.steps_allowed):
            before = counts["completed"]
            self.step()
            counts["steps"] += 1
            arrived = counts["completed"]
            self.stale = self.stale + 1 if arrived and arrived == before else 0
            if not any(self.slots) or (adaptive and self.stops(number)):
                break
        for flow in filter(None, self.slots):
            counts["left"] += 1
            self.deposit(flow)

    def stops(self, number: int) -> bool:
        if number + 1 < MIN_STEPS:
            return False
        done = self.counts["completed"] + self.counts["died"]
        converged = done >= self.config.tau * self.counts["created"]
        return converged or self.stale >= self.config.patience

    def step(self) -> None:
        births: list[_Flow] = []
        for k, flow in enumerate(self.slots):
            if flow is None:
                continue
            decided = self.move(flow)
            if flow.z.item() >= self.config.depth - 1:
                self.counts["completed"] += 1
                self.deposit(flow)
                self.slots[k] = None
            elif abs(flow.energy.item()) < self.config.theta_e:
                self.counts["died"] += 1
                self.slots[k] = None
            else:
                births += self.spawn(flow, decided)
        for child in births:
            if None in self.slots:
                self.slots[self.slots.index(None)] = child
                self.counts["created"] += 1
            else:
                self.counts["dropped"] += 1

    def move(self, flow: _Flow) -> Tensor:
        model, config = self.model, self.config
        sizes = (config.width, config.height, config.depth)
        place = zip((flow.x, flow.y, flow.z), sizes, strict=True)
        scaled = [2 * at / (size - 1) - 1 for at, size in place]
        signal = model.neuron(torch.stack([*scaled, flow.energy])[None])
        inputs = torch.cat([signal, flow.energy.reshape(1, 1)], 1)
        output, flow.hidden = model.carrier(inputs, flow.hidden)
        decided: Tensor = output[0]
        residual = config.energy_rule == "residual"
        flow.energy = flow.energy + 0.5 * decided[2] if residual else decided[2]
        dx, dy = (REACH * decided[i] for i in (0, 1))
        flow.x, flow.y = _reflect(flow.x + dx, sizes[0] - 1), _reflect(flow.y + dy, sizes[1] - 1)
        flow.z = flow.z + config.z_min + (config.z_max - config.z_min) * decided[4]
        flow.age += 1
        return decided

    def spawn(self, flow: _Flow, decided: Tensor) -> list[_Flow]:
        config, gate = self.config, decided[5]
        above = gate.item() - config.spawn_threshold
        if above <= 0:
            return []
        share = above / (1 - config.spawn_threshold)
        number = min(int(share * config.max_children) + 1, config.max_children)
        flow.energy = flow.energy / (number + 1)
        energy = gate * decided[3] / (number + 1)
        children = []
        for right, down in ((1, 0), (-1, 0), (0, 1), (0, -1))[:number]:
            x = _reflect(flow.x + right, config.width - 1)
            y = _reflect(flow.y + down, config.height - 1)
            children.append(_Flow(x, y, flow.z, energy, 0, flow.hidden))
        return children

    def deposit(self, flow: _Flow) -> None:
        config = self.config
        left, top = math.floor(flow.x.item()), math.floor(flow.y.item())
        weight = (abs(flow.energy.item()) + 1e-6) * (1 + 0.1 * flow.age)
        for column, share_x in ((left, 1 - (flow.x - left)), (left + 1, flow.x - left)):
            for row, share_y in ((top, 1 - (flow.y - top)), (top + 1, flow.y - top)):
                if column < config.width and row < config.height:  # the share is 0 outside
                    cell = row * config.width + column
                    amount = share_x * share_y * weight
                    self.sums[cell] = self.sums[cell] + amount * flow.energy
                    self.weights[cell] = self.weights[cell] + amount

    def surface(self) -> Tensor:
        cells = zip(self.sums, self.weights, strict=True)
        return torch.stack([total / (weight + 1e-6) for total, weight in cells])


def _reflect(value: Tensor, wall: int) -> Tensor:
    value = value - 2 * wall * math.floor(value.item() / (2 * wall))
    return 2 * wall - value if value.item() > wall else value
