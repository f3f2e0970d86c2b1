"""The lattice as a plain loop over samples and flows: slow, and plainly what the rules say.

It shares the modules and their parameters with `EnergyFlowLattice`, calls them with one flow at a
time, and nothing else: it proves the vectorised steps, and is the "before" of their timing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from astkit.lattice.flows import FlowStats
from astkit.lattice.model import EnergyFlowLattice, LatticeOutput


@dataclass
class _Flow:
    x: Tensor
    y: Tensor
    z: Tensor
    energy: Tensor
    age: int
    hidden: tuple[Tensor, ...]


@dataclass
class _Sample:
    slots: list[_Flow | None]
    held: list[Tensor]
    weight: list[Tensor]
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("created", "completed", "died", "dropped", "left", "steps"), 0
        )
    )
    stale: int = 0


def run_reference(model: EnergyFlowLattice, x: Tensor, *, adaptive: bool = True) -> LatticeOutput:
    """What ``model.run(x, ...)`` returns, one flow after another; gradients flow as there.

    Args:
        model: with ``lattice=True``.
        x: ``[batch, dim]``; compare in float64, since thresholds are discontinuous.
        adaptive: as for `EnergyFlowLattice.run`.
    """
    surfaces, counts = [], []
    for row in range(len(x)):
        sample = _run_sample(model, x[row : row + 1], adaptive)
        cells = zip(sample.held, sample.weight, strict=True)
        surfaces.append(torch.stack([held / (weight + 1e-6) for held, weight in cells]))
        counts.append(sample.counts)
    surface = torch.stack(surfaces)
    stats = {name: torch.tensor([each[name] for each in counts]) for name in counts[0]}
    return LatticeOutput(model.collector(surface), surface, FlowStats(**stats))


def _run_sample(model: EnergyFlowLattice, x: Tensor, adaptive: bool) -> _Sample:
    config = model.config
    sample = _begin(model, model.mapper(x)[0])
    for number in range(config.steps_allowed):
        before = sample.counts["completed"]
        _step(model, sample)
        sample.counts["steps"] += 1
        arrived = sample.counts["completed"]
        sample.stale = sample.stale + 1 if arrived and arrived == before else 0
        if _stops(model, sample, number) if adaptive else not any(sample.slots):
            break
    for flow in sample.slots:
        if flow is not None:
            sample.counts["left"] += 1
            _deposit(model, sample, flow)
    return sample


def _begin(model: EnergyFlowLattice, surface: Tensor) -> _Sample:
    config = model.config
    zero = surface.new_zeros(())
    sample = _Sample([None] * config.flows_per_sample, [zero] * config.cells, [zero] * config.cells)
    for row in range(config.height):
        for column in range(config.width):
            k = row * config.width + column
            hidden = tuple(surface.new_zeros(1, config.hidden) for _ in range(config.layers))
            sample.slots[k] = _Flow(zero + column, zero + row, zero, surface[k], 0, hidden)
    sample.counts["created"] = config.cells
    return sample


def _stops(model: EnergyFlowLattice, sample: _Sample, number: int) -> bool:
    config, counts = model.config, sample.counts
    if not any(sample.slots):
        return True
    if number + 1 < config.min_steps:
        return False
    done = counts["completed"] + counts["died"]
    return done >= config.tau * counts["created"] or sample.stale >= config.patience


def _step(model: EnergyFlowLattice, sample: _Sample) -> None:
    births: list[_Flow] = []
    for k, flow in enumerate(sample.slots):
        if flow is None:
            continue
        decided = _move(model, flow)
        if flow.z.item() >= model.config.depth - 1:
            sample.counts["completed"] += 1
            _deposit(model, sample, flow)
            sample.slots[k] = None
        elif abs(flow.energy.item()) < model.config.theta_e:
            sample.counts["died"] += 1
            sample.slots[k] = None
        else:
            births += _spawn(model, flow, decided)
    for child in births:
        if None in sample.slots:
            sample.slots[sample.slots.index(None)] = child
            sample.counts["created"] += 1
        else:
            sample.counts["dropped"] += 1


def _move(model: EnergyFlowLattice, flow: _Flow) -> Tensor:
    config = model.config
    sizes = (config.width, config.height, config.depth)
    place = zip((flow.x, flow.y, flow.z), sizes, strict=True)
    scaled = [2 * at / (size - 1) - 1 for at, size in place]
    signal = model.neuron(torch.stack([*scaled, flow.energy])[None])
    output, flow.hidden = model.carrier(
        torch.cat([signal, flow.energy.reshape(1, 1)], 1), flow.hidden
    )
    decided: Tensor = output[0]
    change = decided[2]
    flow.energy = flow.energy + 0.5 * change if config.energy_rule == "residual" else change
    dx, dy = (config.reach * decided[i] for i in (0, 1))
    flow.x, flow.y = _reflect(flow.x + dx, sizes[0] - 1), _reflect(flow.y + dy, sizes[1] - 1)
    flow.z = flow.z + config.z_min + (config.z_max - config.z_min) * decided[4]
    flow.age += 1
    return decided


def _reflect(value: Tensor, wall: int) -> Tensor:
    value = value - 2 * wall * math.floor(value.item() / (2 * wall))
    return 2 * wall - value if value.item() > wall else value


def _spawn(model: EnergyFlowLattice, flow: _Flow, decided: Tensor) -> list[_Flow]:
    config = model.config
    gate = decided[5]
    above = gate.item() - config.spawn_threshold
    if above <= 0:
        return []
    share = above / (1 - config.spawn_threshold)
    number = min(int(share * config.max_children) + 1, config.max_children)
    flow.energy = flow.energy / (number + 1)
    energy = gate * decided[3] / (number + 1)
    neighbours = [(1, 0), (-1, 0), (0, 1), (0, -1)][:number]
    return [
        _Flow(
            _reflect(flow.x + right, config.width - 1),
            _reflect(flow.y + down, config.height - 1),
            flow.z,
            energy,
            0,
            flow.hidden,
        )
        for right, down in neighbours
    ]


def _deposit(model: EnergyFlowLattice, sample: _Sample, flow: _Flow) -> None:
    config = model.config
    left, top = math.floor(flow.x.item()), math.floor(flow.y.item())
    weight = (abs(flow.energy.item()) + 1e-6) * (1 + 0.1 * flow.age)
    for column, share_x in ((left, 1 - (flow.x - left)), (left + 1, flow.x - left)):
        for row, share_y in ((top, 1 - (flow.y - top)), (top + 1, flow.y - top)):
            if column < config.width and row < config.height:  # beyond the wall the share is 0
                cell = row * config.width + column
                amount = share_x * share_y * weight
                sample.held[cell] = sample.held[cell] + amount * flow.energy
                sample.weight[cell] = sample.weight[cell] + amount
