"""The benchmark of the policies' speed, in short: every policy has a ceiling and comes near it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astkit.names import REGISTRIES
from tests.benchmarks import ceilings


@pytest.mark.full
@pytest.mark.benchmark
def test_every_policy_has_a_speed_and_a_ceiling(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ceilings, "BATCHES", 3)
    monkeypatch.setattr(ceilings, "KEPT", (0.25,))
    out = tmp_path / "ceilings.json"
    ceilings.main(["--rounds", "2", "--out", str(out)])
    figures = {each["name"]: each for each in json.loads(out.read_text())["figures"]}
    named = {name.partition(":")[0].partition(",")[0] for name in figures}
    assert named == REGISTRIES["policy"].keys()
    random = figures["random, kept 0.25: speed-up / its ceiling"]
    assert 2 < random["ceiling"] < 5
    assert 0.22 < random["trained"] < 0.28
    for name, each in figures.items():
        assert 0.4 < each["median"] < 1.6, name
