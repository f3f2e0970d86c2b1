"""A run's folder: what is in it, what it says of the run, and what survives a failure."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from astkit.runs.record import Record


def test_a_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    run = Record.create(tmp_path, "01_gate", {"rate": 0.1}, 3, kind="test")
    date, *name, digest, seed = run.folder.name.split("_")
    assert (len(date), name, len(digest), seed) == (10, ["01", "gate"], 8, "s3")
    assert run.config == {"name": "01_gate", "seed": 3, "parameters": {"rate": 0.1}, "kind": "test"}
    assert {"torch", "source", "commit", "dirty", "threads"} <= run.read("env.json").keys()
    assert (run.status, run.result) == ("incomplete", {})


def test_runs_that_differ_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Record.create(tmp_path, "a", {"rate": 0.1, "epochs": 2}, 0)
    same = Record.create(tmp_path, "a", {"epochs": 2, "rate": 0.1}, 0)
    others = [
        Record.create(tmp_path, "a", {"rate": 0.2, "epochs": 2}, 0),
        Record.create(tmp_path, "a", {"rate": 0.1, "epochs": 2}, 1),
        Record.create(tmp_path, "b", {"rate": 0.1, "epochs": 2}, 0),
    ]
    assert same.folder == first.folder
    assert len({run.folder for run in [first, *others]}) == 4
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        Record.create(tmp_path, "a", {"rate": {1}})
    assert len(list(tmp_path.iterdir())) == 4


def test_a_result_makes_a_run_complete_and_holds_plain_values(tmp_path: Path) -> None:
    run = Record(tmp_path / "run")
    run.write("error.json", {"type": "ValueError", "message": "no data\nhere"})
    assert (run.status, run.reason) == ("failed", "ValueError: no data here")
    row = {"arm": "gate", "seed": 0, "accuracy": math.nan, "steps": [1, 2]}
    scalars = {"epoch": torch.tensor(1), "loss": np.float32(0.5), "nested": {}}
    run.finish([row], curves=[scalars], note="kept")
    assert (run.status, run.reason) == ("complete", "")
    assert run.result["rows"] == [{"arm": "gate", "seed": 0, "accuracy": None}]
    assert run.result["curves"] == [{"epoch": 1, "loss": 0.5}]
    assert run.result["note"] == "kept"
    path = run.figure("accuracy", Figure())
    assert path == run.folder / "fig" / "accuracy.png"
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)
def test_a_full_disk_keeps_what_is_there_and_names_the_file(small_disk: Path) -> None:
    run = Record.create(small_disk, "a", {})
    run.write("result.json", {"rows": []})
    before = (run.folder / "result.json").read_text()
    with pytest.raises(OSError, match=r"No space left on device: .*result\.json"):
        run.finish([{"text": "x" * 1000} for _ in range(200)])
    assert (run.folder / "result.json").read_text() == before
    assert not list(run.folder.glob(".*"))
