"""The bench for a GPU: without one it says so, and a part that fails does not end the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU")
def test_without_a_gpu_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not run: torch sees no CUDA GPU"):
        gpu.main(["--out", str(tmp_path / "gpu.json")])
    assert not (tmp_path / "gpu.json").exists()


@CUDA
def test_forty_steps_do_not_wait() -> None:
    assert all(found == {"steps": 40, "waits": 0} for found in gpu.waits().values())


@CUDA
@pytest.mark.full
def test_every_part_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    gpu.main(["--rounds", "2", "--out", str(out)])
    parts = json.loads(out.read_text())["parts"]
    assert [name for name, part in parts.items() if "error" in part] == []


def test_a_part_that_fails_is_recorded() -> None:
    def broken() -> gpu.Part:
        raise RuntimeError("no kernel image is available")

    found = gpu.attempt(broken)
    assert found["error"] == "RuntimeError: no kernel image is available"
    assert found["part_seconds"] >= 0
