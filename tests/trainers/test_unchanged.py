"""Weights, selections and costs equal the committed numbers, also after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers import unchanged

EXPECTED = json.loads(unchanged.FILE.read_text())
ALONE = [name for name in unchanged.CONFIGURATIONS if not name.endswith("_ddp")]


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        if key == "weights":
            for now, then in zip(found[key], value, strict=True):
                assert now == pytest.approx(then, rel=1e-9, abs=1e-9)
        else:
            assert found[key] == value, key


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith("_ddp")])
def test_two_processes_do_what_they_did(name: str) -> None:
    assert_equal(unchanged.in_processes(name), EXPECTED[name])


@pytest.mark.parametrize("name", ALONE)
def test_an_interrupted_run_is_that_of_the_committed_numbers(name: str, tmp_path: Path) -> None:
    """Which are those of runs that nobody interrupted."""
    assert_equal(unchanged.run(name, tmp_path, stop=77), EXPECTED[name])
