"""The tables of a GPU: marks are kept or missed by what was measured, with the reason."""

from __future__ import annotations

from typing import Any

from astkit.files import read_json
from benchmarks import gpu_tables
from benchmarks.gpu_tables import FAST, Mark, cases, marks


def part(raw: float, fast: float, gate: float, busy: float, replayed: float = 1.0) -> Any:
    """A part of the bench's file with these ratios."""
    medians = {"dense / raw": raw, "dense / dense, fast": fast, FAST: gate}
    return {
        "seconds": {"gate, fast": 0.002},
        "ratios": {name: {"median": median} for name, median in medians.items()},
        "busy": {"dense": busy},
        "replayed": {"gate, fast": replayed},
        "reasons": {"gate, fast": "a batch is divided"},
    }


def missed(found: list[Mark]) -> dict[str, str]:
    return {mark.name: mark.reason for mark in found if not mark.kept}


def test_marks_depend_on_the_batch_and_on_how_busy_the_gpu_is() -> None:
    parts = {
        "steps, resnet9, 512": part(1.15, 1.0, 0.55, busy=0.9),
        "steps, resnet9, 128": part(1.15, 3.0, 0.8, busy=0.4),
        "joules, resnet9, 512": {"joules_a_batch": {"dense": 2.0, "gate": 1.1}},
    }
    assert len(marks(parts)) == 9
    assert missed(marks(parts)) == {}
    parts["steps, resnet9, 512"] = part(1.16, 0.99, 0.56, busy=0.9)
    parts["steps, resnet9, 128"] = part(1.15, 2.9, 0.81, busy=0.4, replayed=0.89)
    parts["joules, resnet9, 512"] = {"joules_a_batch": {"dense": 2.0, "gate": 1.2}}
    reasons = missed(marks(parts))
    assert [*reasons] == [
        "resnet9, 512: dense / raw",
        "resnet9, 512: dense / dense, fast",
        f"resnet9, 512: {FAST}",
        "resnet9, 128: dense / dense, fast",
        f"resnet9, 128: {FAST}",
        "resnet9, 128: gate, fast, replayed",
        f"resnet9, 512: joules, {FAST}",
    ]
    assert "computes in 90%" in reasons["resnet9, 512: dense / raw"]
    assert reasons["resnet9, 128: gate, fast, replayed"] == "a batch is divided"


def test_a_part_that_failed_is_not_measured() -> None:
    parts = {"steps, resnet9, 512": {"error": "out of memory"}}
    assert [*cases(parts)] == []


def test_fast_settings_were_measured_faster_than_plain_ones() -> None:
    parts = read_json(gpu_tables.STEPS)["parts"]
    for _, _, each in cases(parts):  # as `TrainConfig.fast` follows this
        assert each["ratios"]["dense / dense, fast"]["low"] > 1
        assert min(each["replayed"].values()) >= gpu_tables.LEAST_REPLAYED
