"""The metrics file holds what the history holds, through torn lines, full disks and resuming."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from astkit.trainers import MetricsFile
from astkit.trainers.metrics_file import read_metrics
from tests.trainers.small import gated, small_trainer
from tests.trainers.states import leave_after


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_the_file_holds_what_the_history_holds(path: Path) -> None:
    file = MetricsFile(path)
    run = small_trainer([file])
    run.run()
    records = read_metrics(path)
    assert [record["phase"] for record in records] == (["train"] * 12 + ["epoch"]) * 2
    assert file.lines == len(records) == 26
    for phase, kept in (("train", run.history.steps), ("epoch", run.history.epochs)):
        mine = [record for record in records if record["phase"] == phase]
        assert mine == [{"phase": phase, **metrics} for metrics in kept]


def test_a_line_is_json_of_the_standard(path: Path) -> None:
    record = {"loss": torch.tensor(math.nan), "rate": torch.tensor(0.25), "rows": np.int64(3)}
    file = MetricsFile(path)
    file.log(1, phase="event", **record)
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {"step": 1, "phase": "event", "loss": None, "rate": 0.25, "rows": 3}
    with pytest.raises(ValueError, match=r"'model' is a Linear, which JSON cannot hold"):
        file.log(1, phase="event", model=nn.Linear(1, 1))


def test_a_torn_last_line_is_dropped_and_the_file_continued(path: Path) -> None:
    file = MetricsFile(path)
    file.log(1, phase="train")
    file.close()
    with path.open("a") as torn:
        torn.write('{"step": 2, "pha')
    assert [record["step"] for record in read_metrics(path)] == [1]
    again = MetricsFile(path)
    assert again.lines == 1
    again.log(2, phase="train", loss=0.1)
    again.close()
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[1]", '{"step": "1", "phase": "train"}', '{"step": 1}'],
    ids=lambda line: line[:9],
)
def test_a_damaged_line_is_named(path: Path, line: str) -> None:
    file = MetricsFile(path)
    path.write_text('{"step": 1, "phase": "train"}\n' + line + '\n{"step": 3}\n')
    for act in (
        lambda: read_metrics(path),
        lambda: file.load_state_dict({"file": path.name, "lines": 5}),
    ):
        with pytest.raises(ValueError, match=r"line 2 of .*jsonl is damaged .*delete that"):
            act()


def test_a_resumed_file_is_cut_to_the_lines_of_its_checkpoint(path: Path) -> None:
    file = MetricsFile(path)
    file.log(1, phase="train")
    state = file.state_dict()
    file.log(1, phase="epoch")
    file.log(2, phase="train")
    file.close()
    with path.open("a") as torn:
        torn.write('{"step"')
    for wrong, sentence in (
        ({"lines": 5}, "has 3 lines, but this run had written 5 to metrics.jsonl"),
        ({"file": "other.jsonl"}, "had written 1 to other.jsonl: pass that file, or no Metrics"),
    ):
        with pytest.raises(ValueError, match=sentence):
            file.load_state_dict({**state, **wrong})
    assert len(read_metrics(path)) == 3
    file.load_state_dict(state)
    assert (file.lines, [record["phase"] for record in read_metrics(path)]) == (1, ["train"])


@pytest.mark.parametrize("small_disk", ["400k"], indirect=True)
def test_half_a_line_is_not_left_by_a_full_disk(small_disk: Path) -> None:
    file, ballast = MetricsFile(small_disk / "metrics.jsonl"), small_disk / "ballast"
    file.log(1, phase="epoch")
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(10**6))
    with pytest.raises(OSError, match="No space"):
        file.log(2, phase="epoch", text="a" * 10_000)
    ballast.unlink()
    file.close()
    assert [record["step"] for record in read_metrics(file.path)] == [1, 2]


def test_a_file_that_missed_a_part_of_the_run_is_not_continued(tmp_path: Path) -> None:
    folder, file = tmp_path / "kept", tmp_path / "metrics.jsonl"
    leave_after(gated(checkpoints=folder, observers=[MetricsFile(file)]), 3).steps().close()
    leave_after(gated(checkpoints=folder, resume=True), 2).steps().close()
    with pytest.raises(ValueError, match=r"metrics.jsonl is not of this run: give a new file"):
        gated(checkpoints=folder, resume=True, observers=[MetricsFile(file)])
