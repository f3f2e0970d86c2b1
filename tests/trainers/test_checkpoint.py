"""Checkpoints: what is resumed is the same run, whatever happened to it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import Gate, Loader
from astkit.background import BackgroundError, BackgroundWriter
from astkit.datasets import load
from astkit.gating import RandomSubset
from astkit.trainers import (
    Budget,
    Checkpoints,
    DenseStep,
    GatedStep,
    MetricsFile,
    TimeIsUp,
    TrainConfig,
    Trainer,
    checkpoint,
    deadline,
)
from astkit.trainers.metrics_file import read

ROOT = Path(__file__).parents[2]
DIGITS = load("digits")[0]
TRAIN, TEST = (DIGITS.subset(torch.arange(*rows)) for rows in ((160,), (160, 220)))


def network(width: int = 8) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.Dropout(), nn.ReLU(), nn.Linear(width, 10)
        )


def build(folder: Path, resume: bool = False, **options: Any) -> Trainer:
    keeping = {"every": 3, **options.pop("keeping", {})}
    width = options.pop("width", 8)
    writer = BackgroundWriter()
    defaults = {
        "budget": Budget(epochs=3),
        "step": GatedStep(Gate(0.4)),
        "config": TrainConfig(lr=1e-2),
        "observers": [MetricsFile(folder / "metrics.jsonl", writer)],
        "checkpoints": Checkpoints(folder / "ckpt", writer=writer, **keeping),
    }
    data = Loader(TRAIN, 16, seed=4), Loader(TEST, 30, shuffle=False)
    return Trainer(network(width), *data, resume=resume, device="cpu", **{**defaults, **options})


def leave_after(trainer: Trainer, batches: int) -> Trainer:
    steps = trainer.steps()
    for _ in range(batches):
        next(steps)
    steps.close()
    return trainer


def left(trainer: Trainer) -> dict[str, Any]:
    state = trainer.state_dict()
    ledger = {key: state["ledger"][key] for key in ("samples", "flops", "flops_dense")}
    weights = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
    timeless = {"seconds", "joules", "joules_reason"}
    steps = [{k: v for k, v in step.items() if k not in timeless} for step in trainer.history.steps]
    return {"weights": weights, "ledger": ledger, "gate": state["step"], "steps": steps}


def names(folder: Path) -> list[str]:
    return [path.name.rpartition("_")[0] for path in checkpoint.listed(folder / "ckpt")]


@pytest.mark.parametrize("batches", [1, 8, 11, 12, 25, 36])
def test_a_run_that_was_left_ends_as_one_that_was_not(tmp_path: Path, batches: int) -> None:
    whole = build(tmp_path / "whole")
    whole.run()
    leave_after(build(tmp_path / "parts"), batches)
    resumed = build(tmp_path / "parts", resume=True)
    resumed.run()
    assert left(resumed) == left(whole)
    lines = [read(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts")]
    assert [line["phase"] for line in lines[0]] == [line["phase"] for line in lines[1]]
    assert resumed.history.epochs[0]["val_accuracy"] == whole.history.epochs[0]["val_accuracy"]


def test_rows_that_a_sampler_chose_are_those_of_the_pass_that_goes_on(tmp_path: Path) -> None:
    class Learning(RandomSubset):
        """Its choice depends on what it was told, as that of a policy does."""

        told = 0

        def select(self, epoch: int, num_samples: int) -> Any:
            return super().select(epoch + self.told, num_samples)

        def observe(self, index: Any, losses: Any) -> None:
            self.told += 1

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "told": self.told}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self.told = state["told"]

    def make(name: str, resume: bool = False) -> Trainer:
        return build(tmp_path / name, resume, sampler=Learning(0.5), step=DenseStep())

    whole = make("whole")
    whole.run()
    leave_after(make("parts"), 3)
    resumed = make("parts", resume=True)
    resumed.run()
    assert left(resumed) == left(whole)


@pytest.mark.parametrize("batches", [2, 8, 10, 11, 25])
def test_an_ordinary_loader_with_a_generator_of_its_own_goes_on_where_it_was(
    tmp_path: Path, batches: int
) -> None:
    def make(name: str, resume: bool = False) -> Trainer:
        pairs = TensorDataset(TRAIN.images.float(), TRAIN.labels)
        generator = torch.Generator().manual_seed(7)
        loader = DataLoader(pairs, 16, shuffle=True, generator=generator)
        trainer = build(tmp_path / name, resume)
        return Trainer(
            network(),
            loader,
            budget=trainer.budget,
            config=trainer.config,
            device="cpu",
            checkpoints=tmp_path / name / "other",
            resume=resume,
        )

    whole = make("whole")
    whole.run()
    leave_after(make("parts"), batches)
    resumed = make("parts", resume=True)
    resumed.run()
    assert left(resumed)["weights"] == left(whole)["weights"]
    twice = leave_after(make("in one process"), batches)
    twice.run()
    assert left(twice)["weights"] == left(whole)["weights"]


def test_a_run_that_is_done_is_done_when_resumed(tmp_path: Path) -> None:
    done = build(tmp_path)
    done.run()
    again = build(tmp_path, resume=True)
    again.run()
    assert left(again) == left(done)
    assert again.history.epochs == done.history.epochs


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    trainer = build(tmp_path, keeping={"every": 2, "keep": 3, "best": "val_loss"})
    trainer.run()
    kept = names(tmp_path)
    assert len([name for name in kept if not name.startswith("best_")]) == 3
    best = min(trainer.history.epochs, key=lambda epoch: epoch["val_loss"])
    assert [n.split("step")[1] for n in kept if n.startswith("best_")] == [f"{best['step']:08}"]


def test_between_two_is_a_pause_but_not_before_the_end(tmp_path: Path) -> None:
    trainer = build(tmp_path, keeping={"every": 1, "pause": 1e6, "best": None})
    trainer.run()
    assert names(tmp_path) == [f"000001_step{trainer.position.step:08}"]
    again = leave_after(build(tmp_path / "left", keeping={"every": 1, "pause": 1e6}), 4)
    assert names(tmp_path / "left") == [f"000001_step{again.position.step:08}"]


def test_an_end_between_the_two_names_of_the_best_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise OSError("the end")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_link", ended)
        with pytest.raises(BackgroundError, match="the end"):
            build(tmp_path).run()
    assert any(name.startswith("best_") for name in names(tmp_path))
    assert checkpoint.newest(tmp_path / "ckpt")[1]["best"] is not None
    resumed = build(tmp_path, resume=True)
    resumed.run()
    assert resumed.position.step == resumed.history.epochs[-1]["step"]


def test_a_resumed_run_knows_its_best(tmp_path: Path) -> None:
    trainer = leave_after(build(tmp_path), 20)
    again = build(tmp_path, resume=True)
    assert again.checkpoints is not None
    assert trainer.checkpoints is not None
    assert again.checkpoints._record == trainer.checkpoints._record is not None


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """The two newest checkpoints of a run that was left."""
    trainer = build(tmp_path, keeping={"best": None})
    assert trainer.checkpoints is not None
    steps = trainer.steps()
    for _ in range(20):
        next(steps)
        trainer.checkpoints.close()  # a slow disk would leave one out
    steps.close()
    return checkpoint.listed(tmp_path / "ckpt")


def test_a_damaged_one_is_named_and_the_one_before_it_is_used(
    two: list[Path], tmp_path: Path
) -> None:
    content, chance = two[0].read_bytes(), random.Random(1)
    for _ in range(100):
        spoilt = bytearray(content)
        spoilt[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        two[0].write_bytes(spoilt)
        with pytest.warns(UserWarning, match=f"{two[0].name} is damaged.*the checkpoint before it"):
            path, _ = checkpoint.newest(tmp_path / "ckpt")
        assert path == two[1]
    with pytest.warns(UserWarning, match="is damaged"):
        resumed = build(tmp_path, resume=True, keeping={"best": None})
    assert resumed.position.step == int(two[1].name.split("step")[1][:8])
    whole = build(tmp_path / "whole")
    whole.run()
    resumed.run()
    assert left(resumed) == left(whole)


def test_without_a_whole_one_nothing_is_resumed(two: list[Path], tmp_path: Path) -> None:
    for path in two:
        path.write_bytes(b"")
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ValueError, match=r"none of the 2 checkpoints in .* is whole"),
    ):
        build(tmp_path, resume=True)


def test_what_a_killed_process_left_is_cleared_away(two: list[Path], tmp_path: Path) -> None:
    torn = two[0].with_name(f".{two[0].name}.abc")
    torn.write_bytes(b"half")
    build(tmp_path, resume=True)
    assert not torn.exists()


REFUSED = {
    "lr was 0.01 and is 0.02": {"config": TrainConfig(lr=2e-2)},
    "target_rate was 0.4 and is 0.5": {"step": GatedStep(Gate(0.5))},
    "step was 'GatedStep' and is 'DenseStep'": {"step": DenseStep()},
    "budget was": {"budget": Budget(epochs=4)},
    "another model or optimizer": {"width": 9},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path, sentence: str) -> None:
    leave_after(build(tmp_path), 5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match=sentence):
        build(tmp_path, resume=True, **REFUSED[sentence])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_checkpoints_of_an_earlier_run_are_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    leave_after(build(tmp_path), 5)
    with pytest.raises(ValueError, match="pass resume=True to go on"):
        build(tmp_path)
    with pytest.raises(ValueError, match="name their folder"):
        build(tmp_path, resume=True, checkpoints=None)
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


def test_a_disk_that_hangs_holds_no_step(tmp_path: Path) -> None:
    writer, free = BackgroundWriter(), threading.Event()
    writer.put(free.wait)
    trainer = build(tmp_path, observers=(), checkpoints=Checkpoints(tmp_path, 1, writer=writer))
    steps = trainer.steps()
    for _ in range(9):
        next(steps)
    free.set()
    steps.close()
    assert trainer.position.step == 9
    assert [path.name[:18] for path in checkpoint.listed(tmp_path)] == ["000009_step0000000"]


@pytest.mark.parametrize("small_disk", ["400k"], indirect=True)
def test_a_full_disk_is_said_and_nothing_that_is_there_is_lost(small_disk: Path) -> None:
    steps = build(small_disk, width=64).steps()
    for _ in range(5):
        next(steps)
    time.sleep(0.5)  # until what was put into the background is written
    before = {path: path.read_bytes() for path in (small_disk / "ckpt").iterdir()}
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(10**6))
    with pytest.raises(BackgroundError, match=r"(?s)No space left on device.*resume the run"):
        deque(steps, 0)
    assert before
    assert {path: path.read_bytes() for path in before} == before
    ballast.unlink()
    resumed = build(small_disk, True, width=64)
    resumed.run()
    whole = build(small_disk.parent / "whole", width=64)
    whole.run()
    assert left(resumed)["weights"] == left(whole)["weights"]


def test_when_the_time_is_up_the_run_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(deadline.BUDGET, "1e-9")
    with pytest.raises(TimeIsUp, match=r"after step 1; saved in .*resume=True"):
        build(tmp_path).run()
    monkeypatch.delenv(deadline.BUDGET)
    resumed = build(tmp_path, resume=True)
    assert resumed.position.step == 1
    resumed.run()
    monkeypatch.setenv(deadline.BUDGET, "soon")
    with pytest.raises(ValueError, match="ASTKIT_TIME_BUDGET_H is 'soon': give hours"):
        build(tmp_path / "other").run()


def killed(count: int, out: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.trainers.killing"]
    subprocess.run([*command, f"--kills={count}", f"--out={out}"], cwd=ROOT, check=True)
    return json.loads(out.read_text())["kinds"]


def check_kills(kinds: list[dict[str, Any]], count: int) -> None:
    assert [kind["kind"] for kind in kinds] == ["dense", "batched", "sample by sample"]
    for kind in kinds:
        assert kind["equal to the undisturbed run"] == kind["runs"] == count, kind
        assert kind["killed"] >= count // 2, kind
        assert kind["with a checkpoint half written"] >= count // 10, kind


def test_runs_killed_at_any_moment_end_as_one_that_was_not(tmp_path: Path) -> None:
    check_kills(killed(3, tmp_path / "kills.json"), 3)


@pytest.mark.full
def test_runs_killed_thirty_times_each_end_as_one_that_was_not(tmp_path: Path) -> None:
    check_kills(killed(30, tmp_path / "kills.json"), 30)


def test_the_committed_counts_of_kills_are_good() -> None:
    content = json.loads((ROOT / "tests/benchmarks/kills.json").read_text())
    check_kills(content["kinds"], 30)
    assert content["stamp"]["torch"]
