"""Presets: each fits its own rules, and one that does not fit in memory is refused."""

from __future__ import annotations

import pytest
import torch

from astkit.lattice import presets
from astkit.lattice.memory import estimate_memory
from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.presets import PRESETS, check_memory, describe_memory, preset


def test_each_preset_is_larger_than_the_one_before():
    sizes = [estimate_memory(p.config, p.batch_size) for p in PRESETS.values()]
    assert list(PRESETS) == ["debug", "experiment", "large"]
    assert sizes == sorted(sizes)
    for entry in PRESETS.values():
        assert entry.config.flows_per_sample >= entry.config.cells


def test_a_batch_of_the_smallest_passes_through():
    chosen = preset("debug")
    output = EnergyFlowLattice(chosen.config)(torch.zeros(2, chosen.config.dim))
    assert output.surface.shape == (2, 64)


def test_the_estimate_is_printed_and_compared_with_what_is_free(monkeypatch, capsys):
    chosen = preset("debug")
    size = estimate_memory(chosen.config, chosen.batch_size)
    line = f"8x8x4, hidden 16 x1, batch 32: about {size / 2**20:,.0f} MiB to train"
    assert describe_memory(chosen.config, chosen.batch_size) == line
    for free, fits in ((size, True), (size - 1, False), (None, True)):
        monkeypatch.setattr(presets, "free_memory", lambda free=free: free)
        if fits:
            check_memory(chosen.config, chosen.batch_size, "cpu")
        else:
            with pytest.raises(ValueError, match="take a smaller batch or surface"):
                check_memory(chosen.config, chosen.batch_size, "cpu")
        assert line in capsys.readouterr().out


def test_an_unknown_preset_is_refused():
    with pytest.raises(
        ValueError, match="no preset 'huge': choose one of debug, experiment, large"
    ):
        preset("huge")
