"""Runs killed at any moment end as runs that were not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import bench
from tests.trainers import killing


def check(kinds: list[dict[str, Any]], count: int) -> None:
    for kind in kinds:
        assert kind["equal to the undisturbed run"] == kind["runs"] == count, kind
        assert kind["killed"] >= max(1, count // 2), kind
        assert kind["with a checkpoint half written"] >= max(1, count // 10), kind


def test_a_killed_run_ends_as_one_that_was_not() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a thread pool would not survive the forks
    try:
        check([killing.measure("planned", 1)], 1)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.full
def test_runs_killed_at_any_moment_end_as_one_that_was_not(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    command = [sys.executable, "-m", "tests.trainers.killing", "--kills=30", f"--out={out}"]
    subprocess.run(command, cwd=bench.ROOT, check=True)
    kinds = json.loads(out.read_text())["kinds"]
    assert {kind["kind"] for kind in kinds} == {*killing.KINDS}
    check(kinds, 30)


def test_the_committed_counts_of_kills_are_good() -> None:
    content = json.loads(killing.RESULTS.read_text())
    assert len(content["kinds"]) >= 3
    check(content["kinds"], 30)
    assert content["stamp"]["torch"]
