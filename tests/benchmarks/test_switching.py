"""The switch in real time, in a shorter form of what the benchmark measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from astkit.trainers.switching import SHARE

from tests.benchmarks import switching


@pytest.mark.full
@pytest.mark.benchmark
def test_policies_that_lose_are_switched_off_and_one_that_pays_stays_on(tmp_path: Path) -> None:
    out = tmp_path / "switching.json"
    switching.main(["--rounds", "3", "--seconds", "8", "--out", str(out)])
    figures = json.loads(out.read_text())["figures"]
    assert len(figures) == 3
    for figure in figures:
        assert figure["ended"] == ["on" if figure["pays"] else "off"] * 3
        assert max(figure["probed"]) <= 1.1 * SHARE
        # the first decision takes 30 steps, which count for more in a short run
        assert figure["median"] <= (0.9 if figure["pays"] else 1.08)
