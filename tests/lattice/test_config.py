"""Settings that cannot work are refused when they are made."""

from __future__ import annotations

import math

import pytest

from astkit.lattice.config import PRESETS, LatticeConfig

REFUSED = (
    ({"max_flows": 143}, "at least 144"),
    ({"width": 1}, "width is 1"),
    ({"depth": 1}, "depth is 1"),
    ({"hidden": 0}, "hidden is 0"),
    ({"z_min": 0.0}, "z_min is 0.0"),
    ({"z_min": 2.0}, "z_max 1.5"),
    ({"z_max": math.nan}, "z_max nan"),
    ({"tau": 0.0}, "tau is 0.0"),
    ({"spawn_threshold": 1.1}, "spawn_threshold is 1.1"),
    ({"max_children": 5}, "max_children is 5"),
    ({"patience": 0}, "patience is 0"),
    ({"energy_rule": "sum"}, "residual, origin"),
)


def test_what_cannot_work_is_refused() -> None:
    for changes, named in REFUSED:
        with pytest.raises(ValueError, match=named):
            LatticeConfig(**changes)  # type: ignore[arg-type]


def test_what_is_left_out_follows_from_the_rest() -> None:
    config = LatticeConfig(width=3, height=5, depth=11, z_min=0.4, dim=16)
    assert config.cells == 15
    assert config.flows_per_sample == 30
    assert config.steps_allowed == 25
    assert config.scale == 4
    assert config.widest == 384
    assert LatticeConfig(width=20, height=20).widest == 800


def test_each_preset_is_larger_than_the_one_before() -> None:
    assert list(PRESETS) == ["debug", "experiment", "large"]
    sizes = [(each.cells, each.depth, each.hidden) for each in PRESETS.values()]
    assert sizes == sorted(sizes)
