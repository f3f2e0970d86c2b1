"""Properties of every lattice: settings, calls, stops, exact repeats; walls and landings."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from astkit.systems.lattice.model import (
    GATE,
    PRESETS,
    EnergyFlowLattice,
    LatticeConfig,
)
from astkit.systems.lattice.plots import flow_table
from tests.systems.lattice.examples import config, gradients, inputs, loss, model

BOUND = 1e-10


def exactly(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether tensors, or tuples of them, are the same to the bit."""
    pairs = zip(a, b, strict=True)
    return all(torch.equal(*each) if torch.is_tensor(each[0]) else exactly(*each) for each in pairs)


def calls(module: nn.Module) -> list[int]:
    """Rows of each call of ``module`` from now on."""
    seen: list[int] = []
    module.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    return seen


def test_settings_out_of_range_are_refused() -> None:
    for changes, named in (
        ({"max_flows": 143}, "at least 144"),
        ({"max_flows": 144.5}, "max_flows is 144.5: give a whole number"),
        ({"width": 1}, "width is 1: give a whole number of 2 or more"),
        ({"dim": 0}, "dim is 0"),
        ({"hidden": 2.5}, "hidden is 2.5"),
        ({"layers": 0}, "layers is 0"),
        ({"mapper_width": 0}, "mapper_width is 0"),
        ({"tau": 95}, "tau is 95: give a share"),
        ({"theta_e": math.nan}, "theta_e is nan"),
        ({"patience": math.nan}, "patience is nan: give 1 or more steps"),
        ({"input_scale": 0.0}, "input_scale is 0.0"),
        ({"z_min": 0.0}, "z_min is 0.0"),
        ({"z_max": math.nan}, "z_max is nan"),
        ({"z_max": 0.4}, "z_min is 0.5 and z_max 0.4"),
        ({"spawn_threshold": 1.1}, "spawn_threshold is 1.1"),
        ({"max_children": 5}, "max_children is 5: give 1 to 4"),
        ({"energy_rule": "sum"}, "residual, original"),
    ):
        with pytest.raises(ValueError, match=named):
            LatticeConfig(**changes)  # type: ignore[arg-type]
    made = LatticeConfig(width=3, height=5, depth=11, z_min=0.4)
    assert (made.cells, made.flows_per_sample, made.steps_allowed) == (15, 30, 25)


def test_presets_grow_and_run() -> None:
    assert list(PRESETS) == ["debug", "experiment", "large"]
    sizes = [(each.cells, each.depth, each.hidden) for each in PRESETS.values()]
    assert sizes == sorted(sizes)
    for preset in PRESETS.values():
        with torch.no_grad():
            output = EnergyFlowLattice(preset)(torch.ones(1, preset.dim))
        assert output.stats.created >= preset.cells
        assert output.y.isfinite().all()


def test_a_step_is_one_call_and_chunks_of_flows_change_nothing_else() -> None:
    built, x = model(config()), inputs(3)
    neuron, carrier, mapper = calls(built.neuron), calls(built.carrier), calls(built.mapper)
    whole = gradients(built, expected := built(x))
    assert len(neuron) == len(carrier) == int(expected.stats.steps.max())
    assert (neuron[0], mapper) == (12 * 3, [3])
    neuron.clear()
    part = gradients(built, output := built(x, flows_per_call=5))
    assert max(neuron) == 5
    assert (output.surface - expected.surface).abs().max() <= BOUND
    assert exactly(output.stats, expected.stats)
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
    assert flows["step"].max() == output.stats.steps.max()
    ends = flows.groupby(["sample", "slot", "born"])["age"].agg(["max", "count"])
    assert len(ends) == output.stats.created.sum()
    assert (ends["count"] == ends["max"] + 1).all()
    assert (flows["z"] >= 8).sum() == output.stats.completed.sum()
    for axis, wall in (("x", 3), ("y", 2), ("z", 8 + built.config.z_max)):
        assert flows[axis].between(0, wall).all()
    start, then = (flows[flows["step"] == step] for step in (0, 1))
    first = start[start["sample"] == 0]
    assert first[["x", "y"]].values.tolist() == [[x, y] for y in range(3) for x in range(4)]
    assert start["energy"].tolist() == built.mapper(inputs(2)).flatten().tolist()
    assert (then["z"] >= built.config.z_min).all()


def test_wrong_inputs_are_refused() -> None:
    built = model(config())
    for x in (inputs(2, dim=7), inputs(2)[:0]):
        with pytest.raises(ValueError, match=r"\[batch, dim\] with dim 6 and a batch of 1 or more"):
            built(x)
