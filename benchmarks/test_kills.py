"""Killed runs end as runs that were not, here and in the committed counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, kills


def check(kinds: list[dict[str, Any]], count: int) -> None:
    for kind in kinds:
        assert kind["equal to the undisturbed run"] == kind["runs"] == count, kind
        assert kind["killed"] >= max(1, count // 2), kind
        assert kind["with a checkpoint half written"] >= max(1, count // 10), kind


def test_a_killed_run_ends_as_one_that_was_not() -> None:
    with bench.one_thread():  # a thread pool would not survive the forks
        check([kills.measure("planned", 1)], 1)


@pytest.mark.full
def test_runs_killed_at_any_moment_end_as_one_that_was_not(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    command = [sys.executable, "-m", "benchmarks.kills", "--kills=30", f"--out={out}"]
    subprocess.run(command, cwd=bench.ROOT, check=True)
    found = json.loads(out.read_text())["kinds"]
    assert {kind["kind"] for kind in found} == {*kills.KINDS}
    check(found, 30)


def test_the_committed_counts_of_kills_are_good() -> None:
    content = json.loads(kills.RESULTS.read_text())
    assert len(content["kinds"]) >= 3
    check(content["kinds"], 30)
    assert content["stamp"]["torch"]
