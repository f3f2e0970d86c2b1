"""The costs of the scores: every one is measured, and their FLOPs are what they say they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from astkit.names import REGISTRIES
from tests.benchmarks import score_costs


@pytest.mark.full
def test_every_registered_score_is_measured(tmp_path: Path) -> None:
    threads, out = torch.get_num_threads(), tmp_path / "costs.json"
    score_costs.main(["--rounds", "2", "--rows", "8", "--out", str(out)])
    assert torch.get_num_threads() == threads
    content = json.loads(out.read_text())
    assert content["stamp"]["threads"] == 1
    rows = {(row["network"], row["score"]): row for row in content["figures"]}
    names = {*REGISTRIES["score"], *score_costs.SUMS}
    assert rows.keys() == {(net, name) for net in ("simple_cnn", "digits_cnn") for name in names}
    for row in rows.values():
        assert row["n"] == 2
        assert row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
        # a sum weighs two features of a row: 4 FLOPs
        assert row["extra_flops"] == pytest.approx(0, abs=4)
        assert row["uncounted"] == []
