"""Checkpoints: what is resumed is the same run, whatever happened to it."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from astkit.background import BackgroundError
from astkit.trainers.metrics_file import read
from astkit.trainers.state import Position
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from astkit import Gate, Loader
from astkit.datasets import Images, load
from astkit.gating import Loss, RandomSubset, WeightedSum
from astkit.trainers import (
    Budget,
    Checkpoints,
    MetricsFile,
    SampleStep,
    TrainConfig,
    Trainer,
    checkpoint,
    state_file,
)
from tests.trainers import killing
from tests.trainers.states import leave_after, timeless

ROOT = Path(__file__).parents[2]
DIGITS = load("digits")[0]
TRAIN, TEST = (DIGITS.subset(torch.arange(*rows)) for rows in ((160,), (160, 220)))


def network(width: int = 8, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.Dropout(), activation(), nn.Linear(width, 10)
        )


def build(folder: Path, resume: bool = False, **options: Any) -> Trainer:
    keeping = {"every": 3, **options.pop("keeping", {})}
    model = options.pop("model", None) or network()
    if "optimizer" in options:
        options["optimizer"] = options["optimizer"](model)
    if "step" not in options:
        options.setdefault("policy", Gate(0.4))
    defaults = {
        "train": Loader(TRAIN, 16, seed=4),
        "validation": Loader(TEST, 30, shuffle=False),
        "budget": Budget(epochs=3),
        "config": TrainConfig(lr=1e-2),
        "observers": [MetricsFile(folder / "metrics.jsonl")],
        "checkpoints": Checkpoints(folder / "ckpt", **keeping),
    }
    return Trainer(model, resume=resume, device="cpu", **{**defaults, **options})


def left(trainer: Trainer) -> dict[str, Any]:
    state = trainer.state_dict()
    ledger = {key: state["ledger"][key] for key in ("samples", "flops", "flops_dense")}
    weights = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
    steps = timeless(trainer.history.steps)
    return {"weights": weights, "ledger": ledger, "gate": state["step"], "steps": steps}


def names(folder: Path) -> list[str]:
    return [path.name.rpartition("_")[0] for path in checkpoint.listed(folder / "ckpt")]


@pytest.mark.parametrize("batches", [1, 12, 25])
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
    again = build(tmp_path / "parts", resume=True)  # a run that is done is done when resumed
    again.run()
    assert left(again) == left(resumed)
    assert again.history.epochs == resumed.history.epochs


PAIRS = TensorDataset(TRAIN.images.float(), TRAIN.labels)
SAMPLERS: dict[str, Any] = {
    "of the loader": lambda drawn: {"batch_size": 16, "shuffle": True, "generator": drawn},
    "of the sampler": lambda drawn: {
        "batch_size": 16,
        "sampler": WeightedRandomSampler(TRAIN.labels + 1.0, 160, generator=drawn),
    },
    "of two": lambda drawn: {
        "batch_sampler": BatchSampler(RandomSampler(PAIRS, generator=drawn), 16, False),
        "generator": torch.Generator().manual_seed(8),
    },
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_ordinary_loader_with_a_generator_of_its_own_is_resumed(
    tmp_path: Path, kind: str
) -> None:
    def make(name: str, resume: bool = False) -> Trainer:
        loader = DataLoader(PAIRS, **SAMPLERS[kind](torch.Generator().manual_seed(7)))
        return build(tmp_path / name, resume, train=loader, validation=None, policy=None)

    whole = make("whole")
    whole.run()
    for batches in (2, 10, 25):
        leave_after(make(f"parts {batches}"), batches)
        resumed = make(f"parts {batches}", resume=True)
        resumed.run()
        assert left(resumed)["weights"] == left(whole)["weights"]
    twice = leave_after(make("in one process"), 13)
    twice.run()
    assert left(twice)["weights"] == left(whole)["weights"]


def test_the_generator_in_a_checkpoint_of_an_earlier_version_is_restored() -> None:
    drawn = torch.Generator().manual_seed(7)
    loader = DataLoader(PAIRS, 16, shuffle=True, generator=drawn)
    trainer = Trainer(network(), loader, epochs=1, device="cpu")
    state = trainer.feed.state_dict()
    expected = trainer.feed.peek().y
    for earlier in (state["generator"][0], None):
        drawn.manual_seed(9 if earlier is not None else 7)
        trainer.feed.load_state_dict({**state, "generator": earlier})
        assert torch.equal(trainer.feed.next(Position(round=1)).y, expected)


def parted(model: nn.Module) -> torch.optim.Optimizer:
    first, second = model[1].parameters(), model[4].parameters()
    return torch.optim.Adam([{"params": first, "amsgrad": True}, {"params": second}])


@pytest.mark.parametrize("optimizer", [lambda m: torch.optim.Adafactor(m.parameters()), parted])
def test_parameters_of_one_optimizer_may_have_different_state(
    tmp_path: Path, optimizer: Any
) -> None:
    whole = build(tmp_path / "whole", optimizer=optimizer)
    whole.run()
    leave_after(build(tmp_path / "parts", optimizer=optimizer), 12)
    resumed = build(tmp_path / "parts", resume=True, optimizer=optimizer)
    resumed.run()
    assert left(resumed) == left(whole)


class Counts:
    """An observer with state and records of its own."""

    count = 0

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        self.count += 1

    def close(self) -> None: ...

    def records(self) -> list[dict[str, Any]]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_an_observer_with_records_of_its_own_starts_without_a_checkpoint(tmp_path: Path) -> None:
    build(tmp_path, resume=True, observers=[Counts()])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    trainer = build(tmp_path, keeping={"every": 2, "keep": 3})
    for _ in trainer.steps():
        trainer.checkpoints.close()  # a slow disk would leave some out
    assert [int(name.split("step")[1]) for name in sorted(names(tmp_path))] == [26, 28, 30]


def test_between_two_is_a_pause_but_not_before_the_end(tmp_path: Path) -> None:
    trainer = build(tmp_path, keeping={"every": 1, "pause": 1e6})
    trainer.run()
    assert names(tmp_path) == [f"000001_step{trainer.position.step:08}"]
    again = leave_after(build(tmp_path / "left", keeping={"every": 1, "pause": 1e6}), 4)
    assert names(tmp_path / "left") == [f"000001_step{again.position.step:08}"]


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """The two newest checkpoints of a run that was left."""
    trainer = build(tmp_path)
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
    torn = two[0].with_name(f".{two[0].name}.abc")
    torn.write_bytes(b"half")
    for _ in range(20):
        spoilt = bytearray(content)
        spoilt[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        two[0].write_bytes(spoilt)
        with pytest.warns(UserWarning, match=f"{two[0].name} is damaged.*the previous checkpoint"):
            path, _ = checkpoint.newest(tmp_path / "ckpt")
        assert path == two[1]
    with pytest.warns(UserWarning, match="is damaged"):
        resumed = build(tmp_path, resume=True)
    assert not torn.exists()  # what a killed process left is cleared away
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
        pytest.raises(ValueError, match=r"none of the 2 checkpoints in .* is valid"),
    ):
        build(tmp_path, resume=True)


def terms(weight: float, *more: Any) -> dict[str, Any]:
    return {"policy": Gate(0.4, WeightedSum([(weight, Loss()), *more]))}


class Activated(nn.Module):
    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.body, self.activation = network(), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.body(x))


PIXEL = Images(TRAIN.images.clone(), TRAIN.labels, DIGITS.classes, "digits")
PIXEL.images[77, 0, 3, 3] ^= 1
OTHERS = Images(DIGITS.images[-160:], TRAIN.labels, DIGITS.classes, "others")  # the same labels
OTHER_SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": ({}, {"config": TrainConfig(lr=2e-2)}, "lr was 0.01 and is 0.02"),
    "gate's rate": ({}, {"policy": Gate(0.5)}, "target_rate was 0.4 and is 0.5"),
    "subset's rate": (
        {"policy": RandomSubset(0.5)},
        {"policy": RandomSubset(0.6)},
        r"policy.rate was 0.5 and is 0.6",
    ),
    "weights by name": (
        {"policy": Gate(0.4, "0.7*loss + 0.3*contrast")},
        {"policy": Gate(0.4, "0.6*loss + 0.4*contrast")},
        "policy.score was",
    ),
    "weights": (terms(1.0), terms(2.0), r"policy.score\S* was 1.0 and is 2.0"),
    "terms": (terms(1.0), terms(1.0, (1.0, Loss())), "policy.score"),
    "no policy": ({}, {"policy": None}, "policy.class was 'Gate' and is None"),
    "step": ({"step": SampleStep(Gate(0.4))}, {"policy": None}, "step.class was 'SampleStep'"),
    "budget": ({}, {"budget": Budget(epochs=4)}, "budget.epochs was 3 and is 4"),
    "width": ({}, {"model": network(9)}, "model was"),
    "activation": ({}, {"model": network(activation=nn.Tanh)}, "model was"),
    "activation as a function": (
        {"model": Activated(F.relu)},
        {"model": Activated(F.gelu)},
        "model was",
    ),
    "optimizer": (
        {},
        {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2)},
        "optimizer.class was 'AdamW' and is 'SGD'",
    ),
    "optimizer's rate": (
        {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1)},
        {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.2)},
        "optimizer.groups.0.lr was 0.1 and is 0.2",
    ),
    "data": ({}, {"train": Loader(OTHERS, 16, seed=4)}, "data.images was"),
    "one pixel": ({}, {"train": Loader(PIXEL, 16, seed=4)}, "data.images was"),
    "labels": ({}, {"train": Loader(DIGITS.subset(range(-160, 0)), 16, seed=4)}, "data.labels"),
    "batch size": ({}, {"train": Loader(TRAIN, 32, seed=4)}, "data.batch_size was 16 and is 32"),
}


def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    for what, (then, now, sentence) in OTHER_SETTINGS.items():
        folder = tmp_path / what
        leave_after(build(folder, **{"validation": None, **then}), 2)
        before = {path: path.read_bytes() for path in folder.rglob("*.*")}
        with pytest.raises(ValueError, match=rf"other settings .*{sentence}"):
            build(folder, resume=True, **{"validation": None, **now})
        assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_labels_that_an_earlier_version_did_not_find_are_not_compared(tmp_path: Path) -> None:
    leave_after(build(tmp_path, train=Loader(PAIRS, 16), keeping={"keep": 1}), 2)
    (path,) = checkpoint.listed(tmp_path / "ckpt")
    state = state_file.read(path)
    del state["identity"]["data"]["labels"]
    path.unlink()
    state_file.write(path.parent, "000009_step00000002", state_file.Packed(state))
    assert build(tmp_path, resume=True, train=Loader(PAIRS, 16)).position.step == 2


def test_other_content_in_a_checkpoint_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    leave_after(build(tmp_path, keeping={"keep": 1}), 5)
    (path,) = checkpoint.listed(folder)
    whole = state_file.read(path)
    places = [(name,) for name in whole]
    places += [("loop", name) for name in whole["loop"]]
    places += [("loop", "settings", "settings"), ("loop", "observers", "MetricsFile 1")]
    accepted = []
    for *parents, last in places:
        for value in (None, [1], {"a": 1}):
            state = copy.deepcopy(whole)
            reduce(getitem, parents, state)[last] = value
            path.unlink()
            path = state_file.write(folder, "000009_step00000005", state_file.Packed(state))
            with warnings.catch_warnings(record=True) as said:
                try:
                    build(tmp_path, resume=True)
                    accepted.append((last, value))
                except ValueError as error:
                    sentence = f"{error} {[str(each.message) for each in said]}"
            if accepted[-1:] != [(last, value)]:
                assert path.name in sentence
    assert len(accepted) < 10, accepted  # such as "prepared", which may be anything


def test_two_trainers_do_not_share_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    first, second = build(tmp_path), build(tmp_path)
    steps = first.steps()
    next(steps)
    for attempt in (lambda: build(tmp_path, resume=True), lambda: next(second.steps())):
        with pytest.raises(ValueError, match=r"another trainer is using .*/ckpt: stop it"):
            attempt()
    deque(steps, 0)
    with pytest.raises(ValueError, match=r"has written to .* since this one was built: build it"):
        second.run()
    again = build(tmp_path, resume=True)
    assert again.position == first.position
    again.run()


def test_a_dead_process_blocks_no_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    leave_after(build(tmp_path), 2)
    code = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(1)"
    command = [sys.executable, "-uc", f"{code}; input()", str(tmp_path / "ckpt" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ValueError, match="another trainer is using"):
            build(tmp_path, resume=True)
        process.kill()
        process.wait()
        assert build(tmp_path, resume=True).position.step == 2


def test_files_have_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        leave_after(build(tmp_path), 5)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name: path.stat().st_mode & 0o077 for path in files} == dict.fromkeys(
        [path.name for path in files], 0
    )


def test_checkpoints_of_an_earlier_run_are_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    leave_after(build(tmp_path), 5)
    with pytest.raises(ValueError, match="pass resume=True to continue"):
        build(tmp_path)
    with pytest.raises(ValueError, match="pass the folder"):
        build(tmp_path, resume=True, checkpoints=None)
    for name in ("keep", "every"):
        with pytest.raises(ValueError, match=f"{name} is 0: give 1 or more"):
            Checkpoints(tmp_path, **{name: 0})


def test_a_disk_that_hangs_holds_no_step(tmp_path: Path) -> None:
    checkpoints, free = Checkpoints(tmp_path, 1), threading.Event()
    checkpoints.writer.put(free.wait)
    trainer = build(tmp_path, observers=(), checkpoints=checkpoints)
    steps = trainer.steps()
    for _ in range(9):
        next(steps)
    free.set()
    steps.close()
    assert trainer.position.step == 9
    assert [path.name[:18] for path in checkpoint.listed(tmp_path)] == ["000009_step0000000"]


@pytest.mark.parametrize("small_disk", ["400k"], indirect=True)
def test_a_full_disk_is_said_and_nothing_that_is_there_is_lost(small_disk: Path) -> None:
    steps = build(small_disk, model=network(64)).steps()
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
    resumed = build(small_disk, True, model=network(64))
    resumed.run()
    whole = build(small_disk.parent / "whole", model=network(64))
    whole.run()
    assert left(resumed)["weights"] == left(whole)["weights"]


def check_kills(kinds: list[dict[str, Any]], count: int) -> None:
    for kind in kinds:
        assert kind["equal to the undisturbed run"] == kind["runs"] == count, kind
        assert kind["killed"] >= max(1, count // 2), kind
        assert kind["with a checkpoint half written"] >= max(1, count // 10), kind


def test_a_killed_run_ends_as_one_that_was_not() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a thread pool would not survive the forks
    try:
        check_kills([killing.measure("planned", 1)], 1)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.full
def test_runs_killed_at_any_moment_end_as_one_that_was_not(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    command = [sys.executable, "-m", "tests.trainers.killing", "--kills=30", f"--out={out}"]
    subprocess.run(command, cwd=ROOT, check=True)
    kinds = json.loads(out.read_text())["kinds"]
    assert {kind["kind"] for kind in kinds} >= {"dense", "batched", "sample by sample", "planned"}
    check_kills(kinds, 30)


def test_the_committed_counts_of_kills_are_good() -> None:
    content = json.loads((ROOT / "tests/benchmarks/kills.json").read_text())
    assert len(content["kinds"]) >= 3
    check_kills(content["kinds"], 30)
    assert content["stamp"]["torch"]


class Interrupted(torch.optim.SGD):
    """Is interrupted after the update of the weights, ``times`` times in that step."""

    times = 0

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        for _ in range(self.times):
            os.kill(os.getpid(), signal.SIGINT)
        self.times = 0
        return found


@pytest.mark.parametrize("again", ["the same trainer", "a resumed one"])
def test_an_interrupt_within_a_step_neither_loses_nor_repeats_it(
    tmp_path: Path, again: str
) -> None:
    def begun(name: str, **options: Any) -> Trainer:
        return build(
            tmp_path / name,
            optimizer=lambda model: Interrupted(model.parameters(), lr=0.1, momentum=0.9),
            keeping={"every": None},
            **options,
        )

    whole, trainer = begun("whole"), begun("interrupted")
    whole.run()
    before = signal.getsignal(signal.SIGINT)
    for _ in range(4):
        next(steps := trainer.steps())
        steps.close()
    trainer.optimizer.times = 1  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.position.step == 5
    assert signal.getsignal(signal.SIGINT) is before
    if again == "a resumed one":
        trainer = begun("interrupted", resume=True)
        assert trainer.position.step == 5
    trainer.run()
    assert left(trainer) == left(whole)


def test_a_second_interrupt_takes_effect_at_once(tmp_path: Path) -> None:
    trainer = build(
        tmp_path, optimizer=lambda model: Interrupted(model.parameters(), lr=0.1), policy=None
    )
    trainer.optimizer.times = 2  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.position.step == 0
    assert not list((tmp_path / "ckpt").glob("*.safetensors"))
