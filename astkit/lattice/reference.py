"""The lattice as a plain loop over samples and flows: slow, and plainly what the rules say.

It shares the modules and their parameters with `EnergyFlowLattice`, calls them with one flow at a
time, and nothing else: it proves the vectorised steps, and is the "before" of their timing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.lattice.flows import FlowStats
from astkit.lattice.model import EnergyFlowLattice, LatticeOutput


@dataclass
class _Flow:
    x: Tensor
    y: Tensor
    z: Tensor
    energy: Tensor
    age: float | Tensor
    hidden: tuple[Tensor, ...]


@dataclass
class _Sample:
    slots: list[_Flow | None]
    held: list[Tensor]
    weight: list[Tensor]
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("created", "completed", "died", "merged", "dropped", "left", "steps"), 0
        )
    )
    stale: int = 0


def run_reference(
    model: EnergyFlowLattice,
    x: Tensor,
    *,
    sample_ids: Tensor | None = None,
    step: int | None = None,
    adaptive: bool = True,
) -> LatticeOutput:
    """What ``model.run(x, ...)`` returns, one flow after another; gradients flow as there.

    Args:
        model: with ``lattice=True``.
        x: ``[batch, dim]``; compare in float64, since thresholds are discontinuous.
        sample_ids, step, adaptive: as for `EnergyFlowLattice.run`.
    """
    surfaces, counts = [], []
    for row in range(len(x)):
        key = None
        if model.training and model.config.noise:
            if sample_ids is None or step is None:
                raise ValueError("noise in training needs sample_ids and step: give both")
            key = (int(sample_ids[row]), step)
        sample = _run_sample(model, x[row : row + 1], adaptive, key)
        cells = zip(sample.held, sample.weight, strict=True)
        surfaces.append(torch.stack([held / (weight + 1e-6) for held, weight in cells]))
        counts.append(sample.counts)
    surface = torch.stack(surfaces)
    stats = {name: torch.tensor([each[name] for each in counts]) for name in counts[0]}
    return LatticeOutput(model.collector(surface), surface, FlowStats(**stats))


def _run_sample(
    model: EnergyFlowLattice, x: Tensor, adaptive: bool, key: tuple[int, int] | None
) -> _Sample:
    config = model.config
    sample = _begin(model, model.mapper(x)[0])
    for number in range(config.steps_allowed):
        before = sample.counts["completed"]
        _step(model, sample, number, key)
        sample.counts["steps"] += 1
        arrived = sample.counts["completed"]
        sample.stale = sample.stale + 1 if arrived and arrived == before else 0
        if _stops(model, sample, number) if adaptive else not any(sample.slots):
            break
        if config.merge and number + 1 < config.steps_allowed:
            _merge(sample)
    for flow in sample.slots:
        if flow is not None:
            sample.counts["left"] += 1
            if config.flush == "project":
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
    done = counts["completed"] + counts["died"] + counts["merged"]
    return done >= config.tau * counts["created"] or sample.stale >= config.patience


def _step(
    model: EnergyFlowLattice, sample: _Sample, number: int, key: tuple[int, int] | None
) -> None:
    births: list[_Flow] = []
    for k, flow in enumerate(sample.slots):
        if flow is None:
            continue
        decided = _move(model, flow, k, number, key)
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


def _move(
    model: EnergyFlowLattice, flow: _Flow, k: int, number: int, key: tuple[int, int] | None
) -> Tensor:
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
    if key is not None:
        dx, dy = dx + _noise(model, k, number, key, 0), dy + _noise(model, k, number, key, 1)
    flow.x, flow.y = _reflect(flow.x + dx, sizes[0] - 1), _reflect(flow.y + dy, sizes[1] - 1)
    flow.z = flow.z + config.z_min + (config.z_max - config.z_min) * decided[4]
    flow.age += 1
    return decided


def _noise(model: EnergyFlowLattice, k: int, number: int, key: tuple[int, int], axis: int) -> float:
    config = model.config
    index = torch.tensor((key[0] * config.flows_per_sample + k) * 2 + axis)
    drawn = rng.uniform(index, config.seed, "lattice noise", key[1], number).item()
    return config.noise * math.sqrt(12) * (drawn - 0.5)


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


def _merge(sample: _Sample) -> None:
    met: dict[tuple[int, ...], list[int]] = {}
    for k, flow in enumerate(sample.slots):
        if flow is not None:
            met.setdefault(tuple(round(at.item()) for at in (flow.x, flow.y, flow.z)), []).append(k)
    for slots in met.values():
        if len(slots) == 1:
            continue
        flows = [flow for k in slots if (flow := sample.slots[k]) is not None]
        weights = [abs(flow.energy.item()) + 1e-6 for flow in flows]

        def mean(values: Iterable[Any], weights: list[float] = weights) -> Any:
            return sum(w / sum(weights) * value for w, value in zip(weights, values, strict=True))

        layers = zip(*(flow.hidden for flow in flows), strict=True)
        sample.slots[slots[0]] = _Flow(
            x=mean(flow.x for flow in flows),
            y=mean(flow.y for flow in flows),
            z=mean(flow.z for flow in flows),
            energy=mean(flow.energy for flow in flows),
            age=mean(flow.age for flow in flows),
            hidden=tuple(mean(layer) for layer in layers),
        )
        for k in slots[1:]:
            sample.slots[k] = None
        sample.counts["merged"] += len(slots) - 1


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
