"""Sizes: those of the source, and a sentence for any that cannot be."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.tasks import checkerboard, checkerboard_async, game_of_life

LIFE, SYNC = game_of_life().config, checkerboard().config
ASYNC = checkerboard_async().config


def test_the_presets_have_the_gates_of_the_source() -> None:
    for config, gates, inputs in (
        (LIFE, (240, 2303), 17),
        (SYNC, (224, 2816), 264),
        (ASYNC, (224, 3840), 264),
    ):
        assert config.gates == gates
        assert config.update_inputs == inputs
    assert sum(p.numel() for p in LogicCA(LIFE).parameters()) == 16 * 2543
    assert LIFE.gates_per_cell == 2543
    assert SYNC.gates_per_cell == 8 * 224 + 2816


def test_a_configuration_is_plain_values_and_back() -> None:
    for config in (LIFE, SYNC, ASYNC):
        assert LogicCAConfig(**json.loads(json.dumps(asdict(config)))) == config


def test_sizes_that_do_not_fit_are_refused() -> None:
    for changes, told in (
        ({"kernels": 0}, "has a size below 1"),
        ({"update_layers": ()}, "has a size below 1 or no layers"),
        ({"kernel_layers": (4, 2)}, "kernel_layers begins with 4"),
        ({"update_layers": (128, 64)}, "update_layers ends with 64"),
        ({"boundary": "open"}, "boundary is 'open': choose one of periodic, zero"),
        ({"fire_rate": 0.0}, "fire_rate is 0.0: give a share in (0, 1]"),
        ({"fire_rate": 1.5}, "fire_rate is 1.5"),
        ({"update_layers": (100, 8)}, "a layer of 100 gates cannot follow 264 values"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            replace(SYNC, **changes)  # type: ignore[arg-type]
