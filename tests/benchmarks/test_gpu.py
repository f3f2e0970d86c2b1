"""The benchmark for a GPU runs to its end without one, and no part can take the others down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.benchmarks.switches import Switch

from astkit.profiling import Timings
from tests.benchmarks import gpu


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the processes of the switches, of which fp16 fails."""

    def measure(_: Any, pair: Sequence[Switch], rounds: int) -> SimpleNamespace:
        assert all(switch.resident for switch in pair)
        plain, switch = (each.name for each in pair)
        if switch == "fp16":
            raise RuntimeError("an arm failed: fp16 needs an accelerator")
        seconds = Timings({plain: (2.0,) * rounds, switch: (1.0,) * rounds}, plain)
        return SimpleNamespace(seconds=seconds, to_dict=dict)

    monkeypatch.setattr(gpu.speed, "measure", measure)


@pytest.mark.full
def test_every_part_runs_on_a_cpu(tmp_path: Path, turns: None) -> None:
    out = tmp_path / "gpu.json"
    gpu.main(["--quick", "--device", "cpu", "--out", str(out)])
    content = json.loads(out.read_text())
    assert content["quick"]
    assert content["device"] == "cpu"
    assert content["stamp"]["torch"] == str(torch.__version__).partition("+")[0]
    parts = content["parts"]
    assert list(parts) == ["sync_check", "against_rows", "overhead", "switches", "transformer"]
    assert [name for name, part in parts.items() if "error" in part] == []

    for name, found in parts["sync_check"]["gates"].items():
        assert (found["waits"] == 0) == name.startswith("device gate"), name
    against = parts["against_rows"]
    for figure in (against["row_by_row_over_batched"], against["gate_over_device_gate"]):
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert figure["n"] == 3
    assert {row["gate"] for row in parts["overhead"]["table"]} == set(gpu.GATES)
    assert all(row["microseconds"] > 0 for row in parts["overhead"]["table"])
    (pair,) = parts["switches"]["pairs"].values()
    assert pair["plain_over_switch"]["n"] == 2
    gated, dense = parts["transformer"]["results"]
    assert (gated["arm"], dense["arm"]) == ("gate", "dense, equal FLOPs")
    assert dense["flops"] >= gated["flops"]
    for result in (gated, dense):
        assert 0 <= result["test_accuracy"] <= 1
        assert (result["joules"] is None) == bool(result["joules_reason"])


def test_a_part_that_fails_is_recorded_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> gpu.Part:
        raise RuntimeError("no kernel image is available")

    for name in ("against_rows", "switches", "transformer"):
        monkeypatch.setattr(gpu, name, broken)
    monkeypatch.setattr(gpu, "sync_check", lambda *_: {"waits": 3})
    out = tmp_path / "gpu.json"
    gpu.main(["--quick", "--device", "cpu", "--out", str(out)])
    parts = json.loads(out.read_text())["parts"]
    assert parts["transformer"]["error"] == "RuntimeError: no kernel image is available"
    assert parts["transformer"]["part_seconds"] >= 0
    assert parts["sync_check"]["waits"] == 3
    assert "table" in parts["overhead"]


def test_a_switch_that_cannot_run_here_stops_no_other(turns: None) -> None:
    pairs = gpu.switches(torch.device("cpu"), quick=False)["pairs"]
    assert {"fp16", "bf16", "channels_last", "compile", "fused optimizer"} <= pairs.keys()
    assert pairs.pop("fp16")["error"].startswith("RuntimeError: an arm failed: fp16")
    for found in pairs.values():
        assert found["plain_over_switch"] == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 15}


@pytest.mark.full
def test_a_pair_of_switches_takes_turns_in_processes_of_their_own() -> None:
    (found,) = gpu.switches(torch.device("cpu"), quick=True)["pairs"].values()
    assert found["plain_over_switch"]["n"] == 2
    assert all(len(seconds) == 2 for seconds in found["seconds"].values())
