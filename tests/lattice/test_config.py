"""Settings outside their range are refused at construction."""

from __future__ import annotations

import math

import pytest
import torch

from astkit.lattice.config import PRESETS, LatticeConfig
from astkit.lattice.model import EnergyFlowLattice

REFUSED = (
    ({"max_flows": 143}, "at least 144"),
    ({"width": 1}, "width is 1: give 2 or more"),
    ({"depth": 1}, "depth is 1"),
    ({"hidden": 0}, "hidden is 0"),
    ({"z_min": 0.0}, "z_min is 0.0"),
    ({"z_min": 2.0}, "z_max 1.5"),
    ({"z_max": math.nan}, "z_max nan"),
    ({"tau": 0.0}, "tau is 0.0"),
    ({"spawn_threshold": 1.1}, "spawn_threshold is 1.1"),
    ({"max_children": 5}, "max_children is 5: give 1 to 4"),
    ({"patience": 0}, "patience is 0"),
    ({"energy_rule": "sum"}, "residual, original"),
)


def test_settings_out_of_range_are_refused() -> None:
    for changes, named in REFUSED:
        with pytest.raises(ValueError, match=named):
            LatticeConfig(**changes)  # type: ignore[arg-type]


def test_derived_settings() -> None:
    config = LatticeConfig(width=3, height=5, depth=11, z_min=0.4, dim=16)
    assert (config.cells, config.flows_per_sample, config.steps_allowed) == (15, 30, 25)


def test_presets_grow_and_run() -> None:
    assert list(PRESETS) == ["debug", "experiment", "large"]
    sizes = [(each.cells, each.depth, each.hidden) for each in PRESETS.values()]
    assert sizes == sorted(sizes)
    for preset in PRESETS.values():
        with torch.no_grad():
            output = EnergyFlowLattice(preset)(torch.ones(1, preset.dim))
        assert output.stats.created >= preset.cells
        assert output.y.isfinite().all()
