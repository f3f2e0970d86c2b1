"""Properties of every lattice: when samples stop, one call per step, exact repeats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from astkit.lattice.flows import FlowStats
from astkit.lattice.layers import GATE
from astkit.lattice.model import EnergyFlowLattice, LatticeOutput
from astkit.lattice.plots import flow_table
from tests.gating.syncs import Syncs
from tests.lattice.examples import COUNTERS, config, gradients, inputs, loss, model, two_speeds

BOUND = 1e-10


def same_counts(a: FlowStats, b: FlowStats) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in COUNTERS)


def exactly(a: LatticeOutput, b: LatticeOutput) -> bool:
    return (
        torch.equal(a.y, b.y)
        and torch.equal(a.surface, b.surface)
        and same_counts(a.stats, b.stats)
    )


def calls(module: nn.Module) -> list[int]:
    """Rows of each call of ``module`` from now on."""
    seen: list[int] = []
    module.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    return seen


def test_no_rule_to_stop_equals_all_the_steps() -> None:
    ruled = config(tau=1.0, patience=math.inf, max_steps=6, z_min=0.3)
    built = model(ruled)
    x = inputs(3)
    assert exactly(built(x), built(x, adaptive=False))
    stopping = model(replace(ruled, tau=0.5, min_steps=1, depth=3, spawn_threshold=1.0))
    assert not exactly(stopping(x), stopping(x, adaptive=False))


def test_patience_waits_for_the_first_arrival() -> None:
    built = model(config(depth=20, z_min=0.5, z_max=1.5, patience=3, spawn_threshold=1.0))
    with torch.no_grad():
        built.carrier.heads.weight[4] = 0
        built.carrier.heads.bias[4] = 50  # z_max for every flow
    stats = built(inputs(2)).stats
    assert stats.steps.tolist() == [13, 13]
    assert stats.completed.tolist() == [12, 12]


def test_patience_stops_for_the_stragglers() -> None:
    built = model(config(depth=20, z_min=0.5, z_max=3.0, spawn_threshold=1.0, tau=1.0))
    x = inputs(3)
    energies = built.mapper(x).detach()
    border = energies.sort(dim=1).values[:, 3:5].mean().item()
    two_speeds(built, border, drift=0)
    slow = (energies < border).sum(1)
    assert ((slow > 0) & (slow < 12)).all()
    stats = built(x).stats
    assert torch.equal(stats.left, slow)
    assert stats.steps.tolist() == [7 + 3] * 3  # all others arrive in step 7


def test_one_call_a_step() -> None:
    batch = 6
    built = model(config())
    neuron, carrier, mapper = calls(built.neuron), calls(built.carrier), calls(built.mapper)
    output = built(inputs(batch))
    loss(output).backward()
    steps = int(output.stats.steps.max())
    assert len(neuron) == len(carrier) == steps
    assert neuron[0] == 12 * batch
    assert mapper == [batch]


def test_chunks_of_flows_change_calls_and_nothing_else() -> None:
    built = model(config())
    x = inputs(3)
    whole = gradients(built, expected := built(x))
    seen = calls(built.neuron)
    part = gradients(built, output := built(x, flows_per_call=5))
    assert max(seen) == 5
    assert (output.surface - expected.surface).abs().max() <= BOUND
    assert same_counts(output.stats, expected.stats)
    for name, gradient in whole.items():
        assert (part[name] - gradient).abs().max() <= BOUND


def test_every_parameter_learns() -> None:
    built = model(config(layers=2))
    with torch.no_grad():
        built.carrier.heads.bias[GATE] = 0.5  # so that flows spawn
    output = built(inputs(4))
    assert (output.stats.created > 12).any()
    found = gradients(built, output)
    assert [name for name, gradient in found.items() if not gradient.any()] == []
    assert {name.split(".")[0] for name in found} == {"mapper", "neuron", "carrier", "collector"}


def test_a_state_dict_is_the_whole_model_and_a_seed_repeats_it() -> None:
    state = torch.get_rng_state()
    first, other, again = (EnergyFlowLattice(config(seed=seed)) for seed in (0, 1, 0))
    assert torch.equal(torch.get_rng_state(), state)
    x = inputs(3).float()
    assert not torch.equal(first(x).y, other(x).y)
    other.load_state_dict(first.state_dict())
    assert exactly(first(x), other(x))
    assert exactly(first(x), again(x))


def test_the_bypass_is_the_mapper_and_the_collector() -> None:
    built = model(config(lattice=False))
    x = inputs(3)
    output = built(x)
    assert torch.equal(output.y, built.collector(built.mapper(x)))
    assert {name.split(".")[0] for name in built.state_dict()} == {"mapper", "collector"}
    assert not output.stats.steps.any()
    whole = model(config()).state_dict()
    assert all(torch.equal(whole[name], value) for name, value in built.state_dict().items())


def test_the_host_waits_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model(config(max_flows=14, theta_e=0.05))
    reads = []
    read = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: reads.append(1) or read(self))
    with Syncs() as syncs:
        output = built(inputs(3))
        loss(output).backward()
    assert syncs.names == []
    assert len(reads) == int(output.stats.steps.max())


def test_autocast_keeps_places_and_energies() -> None:
    built = EnergyFlowLattice(config(spawn_threshold=1.0))
    x = inputs(3).float()
    exact = built(x)
    with torch.autocast("cpu", torch.bfloat16):
        output = built(x)
        loss(output).backward()
    assert output.surface.dtype == torch.float32
    assert (output.surface - exact.surface).abs().max() < 0.05
    assert all(each.grad is not None and each.grad.isfinite().all() for each in built.parameters())


def test_a_table_follows_each_flow() -> None:
    built = model(config(depth=9))
    output, flows = flow_table(built, inputs(2))
    assert exactly(output, built(inputs(2)))
    assert flows["step"].max() <= output.stats.steps.max()
    for axis, wall in (("x", 3), ("y", 2), ("z", 8)):
        assert flows[axis].between(0, wall).all()
    start, then = (flows[flows["step"] == step] for step in (0, 1))
    first = start[start["sample"] == 0]
    assert first[["x", "y"]].values.tolist() == [[x, y] for y in range(3) for x in range(4)]
    energies = built.mapper(inputs(2)).flatten().tolist()
    assert start["energy"].tolist() == energies
    assert (then["z"] >= built.config.z_min).all()


def test_wrong_inputs_are_refused() -> None:
    built = model(config())
    with pytest.raises(ValueError, match=r"\[batch, dim\] with dim 6"):
        built(inputs(2, dim=7))
    with pytest.raises(ValueError, match="no_grad"):
        built(inputs(2), observer=lambda step, flows: None)
