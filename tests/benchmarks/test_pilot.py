"""The committed predictions of the pilot, and a short form of their benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import pilot


def test_the_committed_predictions_are_within_a_fifth_and_a_comparison_costs_little() -> None:
    content = json.loads(pilot.RESULTS.read_text())
    assert [content[part]["stamp"]["dirty"] for part in pilot.PARTS] == [False, False]
    predictions, (cost,) = (content[part]["figures"] for part in pilot.PARTS)
    assert len(predictions) == len(pilot.POLICIES) * len(pilot.PASSES)
    for figure in predictions:
        assert figure["n"] == 5
        assert figure["within"] == (abs(figure["median"] - 1) <= pilot.NEAR) is True
    assert cost["n"] == 5
    assert cost["median"] < pilot.COST


@pytest.mark.full
@pytest.mark.benchmark
def test_predictions_in_short(tmp_path: Path) -> None:
    out = tmp_path / "pilot.json"
    pilot.main(["--rounds", "3", "--epochs", "2", "--out", str(out)])
    content = json.loads(out.read_text())
    predictions, (cost,) = (content[part]["figures"] for part in pilot.PARTS)
    for figure in predictions:  # fewer rounds, so a wider margin
        assert abs(figure["median"] - 1) <= 1.5 * pilot.NEAR
    assert cost["median"] < 1.1
