"""Checkpoints: what is resumed is the same run, however it ended and whatever hit its files."""

import json
import os
import pickle
import random
import re
import signal
import warnings
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import Gate, Loader
from astkit.datasets import load
from astkit.trainers import Checkpoints, TimeIsUp, TrainConfig, Trainer, checkpoint
from astkit.trainers.checkpoint import DamagedError
from tests import build as builder
from tests.build import refused
from tests.trainers.states import Records, leave_after, same, timeless

DIGITS = load("digits")[0]
TRAIN, TEST = (DIGITS.subset(torch.arange(*rows)) for rows in ((160,), (160, 220)))
PAIRS = TensorDataset(TRAIN.images.float(), TRAIN.labels)


def network(width: int = 8) -> nn.Module:
    return builder.network(64, 10, width, nn.Dropout(), nn.ReLU())


def build(folder: Path, resume: bool = False, **options: Any) -> Any:
    keeping = {"every": 3, **options.pop("keeping", {})}
    model = options.pop("model", None) or network()
    if "optimizer" in options:
        options["optimizer"] = options["optimizer"](model)
    defaults = {
        "train": Loader(TRAIN, 16, seed=4),
        "validation": Loader(TEST, 30, shuffle=False),
        "epochs": 3,
        "policy": Gate(0.4),
        "config": TrainConfig(lr=1e-2),
        "observers": [Records()],
        "checkpoints": Checkpoints(folder / "ckpt", **keeping),
    }
    return Trainer(model, resume=resume, device="cpu", **{**defaults, **options})


def left(trainer: Trainer) -> dict[str, Any]:
    state = trainer.state_dict()
    ledger = {key: state["ledger"][key] for key in ("samples", "flops", "flops_dense")}
    weights = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
    (kept,) = [each.kept for each in trainer.reports.observers if isinstance(each, Records)]
    records = timeless(kept)
    return {"weights": weights, "ledger": ledger, "policy": state["policy"], "records": records}


def names(folder: Path) -> list[str]:
    return [path.stem for path in checkpoint.list_checkpoints(folder / "ckpt")]


def test_saving_leaves_workers_that_persist_alone(tmp_path: Path) -> None:
    weights = []
    for every in (None, 3):
        drawn = torch.Generator().manual_seed(7)
        loader = DataLoader(
            PAIRS, 16, shuffle=True, generator=drawn, num_workers=1, persistent_workers=True
        )
        folder, keeping = tmp_path / str(every), {"every": every}
        options = {"train": loader, "validation": None, "policy": None, "epochs": 1}
        run = build(folder, keeping=keeping, **options)
        run.run()
        weights.append(left(run)["weights"])
    assert weights[0] == weights[1]


class Interrupted(torch.optim.SGD):
    """Is interrupted after the update of the weights, ``times`` times in that step."""

    times = 0

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        for _ in range(self.times):
            os.kill(os.getpid(), signal.SIGINT)
        self.times = 0
        return found


def interrupted(model: nn.Module) -> Interrupted:
    return Interrupted(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("resumed", [False, True])
def test_an_interrupt_within_a_step_neither_loses_nor_repeats_it(tmp_path, resumed):
    whole, run = (build(tmp_path / name, optimizer=interrupted) for name in ("whole", "parts"))
    whole.run()
    before = signal.getsignal(signal.SIGINT)
    leave_after(run, 4)
    run.optimizer.times = 1
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.step == 5
    assert signal.getsignal(signal.SIGINT) is before
    if resumed:
        run = build(tmp_path / "parts", resume=True, optimizer=interrupted)
        assert run.step == 5
    run.run()
    assert left(run)["weights"] == left(whole)["weights"]


def test_an_interrupt_after_the_last_record_is_not_lost(tmp_path: Path) -> None:
    closing = SimpleNamespace(
        log=lambda *_, **__: None, close=lambda: os.kill(os.getpid(), signal.SIGINT)
    )
    run = build(tmp_path, observers=[closing])
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.done


def test_a_second_interrupt_takes_effect_at_once(tmp_path: Path) -> None:
    run = build(tmp_path, optimizer=interrupted)
    run.optimizer.times = 2
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.step == 0
    assert names(tmp_path) == []


def test_the_time_budget_ends_a_run_which_is_saved(monkeypatch, tmp_path):
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "1e-9")
    steps = build(tmp_path).steps()
    assert next(steps).step == 1
    with pytest.raises(TimeIsUp, match=r"after step 1; saved in .*resume=True"):
        next(steps)
    with pytest.raises(TimeIsUp, match="after step 1; nothing was saved"):
        build(tmp_path / "unsaved", checkpoints=None).run()
    for hours in ("nan", "-1", "9h"):
        monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", hours)
        with pytest.raises(ValueError, match=f"_H is '{hours}': give a number of hours, 0 or more"):
            build(tmp_path / "unsaved", checkpoints=None).run()
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "1000")
    resumed = build(tmp_path, resume=True)
    assert resumed.step == 1
    resumed.run()
    assert resumed.done


def test_the_newest_are_kept(tmp_path: Path) -> None:
    build(tmp_path, keeping={"every": 2, "keep": 3}).run()
    assert [int(name.split("step")[1]) for name in names(tmp_path)] == [30, 30, 28]


def test_between_two_is_a_pause_but_not_before_the_end(tmp_path: Path) -> None:
    trainer = build(tmp_path, keeping={"every": 1, "pause": 1e6})
    trainer.run()
    assert names(tmp_path) == [f"000001_step{trainer.step:08}"]
    again = leave_after(build(tmp_path / "left", keeping={"every": 1, "pause": 1e6}), 4)
    assert names(tmp_path / "left") == [f"000001_step{again.step:08}"]


def test_checkpoints_of_an_earlier_run_are_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    assert build(tmp_path, resume=True).step == 0  # of a run that was killed before its first one
    leave_after(build(tmp_path), 5)
    refused(
        (partial(build, tmp_path), "pass resume=True to continue"),
        (partial(build, tmp_path, resume=True, checkpoints=None), "pass the folder"),
    )


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    wrong = {"keep": (0, 2.5, None), "every": (0, 1.5, "x"), "pause": (-1, float("nan"), None)}
    for name, values in wrong.items():
        for value in values:
            call = partial(Checkpoints, tmp_path, **{name: value})
            refused((call, f"{name} is {value!r}: give a (whole )?number of"))


def test_two_trainers_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    first, second = build(tmp_path), build(tmp_path)
    steps = first.steps()
    next(steps)
    for attempt in (lambda: build(tmp_path, resume=True), lambda: next(second.steps())):
        refused((attempt, r"another trainer is using .*/ckpt: stop it"))
    deque(steps, 0)
    refused((second.run, r"has written to .* since this one was built: build it"))
    again = build(tmp_path, resume=True)
    assert (again.step, again.done) == (first.step, True)
    shared = Checkpoints(tmp_path / "shared")
    first, second = (build(tmp_path, checkpoints=shared) for _ in range(2))
    first.run()
    refused((second.run, "another trainer has written to"))


@pytest.mark.parametrize("small_disk", ["400k"], indirect=True)
def test_a_full_disk_is_said_and_nothing_that_is_there_is_lost(small_disk: Path) -> None:
    steps = build(small_disk, model=network(64)).steps()
    for _ in range(5):
        next(steps)
    before = {path: path.read_bytes() for path in (small_disk / "ckpt").iterdir()}
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(10**6))
    with pytest.raises(OSError, match="No space left on device"):
        deque(steps, 0)
    assert before
    assert {path: path.read_bytes() for path in before} == before
    ballast.unlink()
    resumed = build(small_disk, True, model=network(64))
    resumed.run()
    whole = build(small_disk.parent / "whole", model=network(64))
    whole.run()
    assert left(resumed)["weights"] == left(whole)["weights"]


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """The two newest checkpoints of a run that was stopped."""
    leave_after(build(tmp_path), 20)
    return checkpoint.list_checkpoints(tmp_path / "ckpt")


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_one_flipped_bit_is_noticed_and_the_checkpoint_before_it_is_used(two, tmp_path, suffix):
    newest, chance = two[0].with_suffix(suffix), random.Random(1)
    content = newest.read_bytes()
    torn = newest.with_name(f".{newest.name}.abc")
    torn.write_bytes(b"half")
    for _ in range(20):
        spoilt = bytearray(content)
        spoilt[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        if re.search(rb"\dE[-+]\d", spoilt) and suffix == ".json":
            continue  # 1E-05 is the same number as 1e-05
        newest.write_bytes(spoilt)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            path, _ = checkpoint.newest(tmp_path / "ckpt")
        assert path == two[1]
        assert any("the previous checkpoint is used" in str(each.message) for each in said)
    with pytest.warns(UserWarning, match="the previous checkpoint is used"):
        resumed = build(tmp_path, resume=True)
    assert resumed.step == int(two[1].stem.split("step")[1])
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


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
DTYPES += [torch.complex64, torch.complex128]
plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8)
tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
keys = st.text(max_size=4) | st.integers(0, 9) | st.tuples(st.integers(0, 9), st.none())
states = st.recursive(
    plain | tensors,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(keys, parts, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.text(max_size=6), states, max_size=4), st.booleans())
def test_a_state_comes_back_as_it_was(tmp_path_factory, state, compress):
    path = checkpoint.write(tmp_path_factory.mktemp("state") / "some", state, compress)
    assert same(checkpoint.read(path), state)


def test_tensors_whose_keys_read_alike_are_kept_apart(tmp_path: Path) -> None:
    ones, zeros = torch.ones(2), torch.zeros(2)
    state = {"x": {1: ones, "1": zeros}, "a/b": ones * 2, "a": {"b": zeros - 1}}
    state |= {"numbers": [float("inf"), float("nan")]}
    assert same(checkpoint.read(checkpoint.write(tmp_path / "some", state)), state)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    path = checkpoint.write(tmp_path / "some", {"a": weight, "b": weight, "part": weight[:2]})
    state = checkpoint.read(path)
    assert state["a"].data_ptr() == state["b"].data_ptr()
    assert torch.equal(state["part"], weight[:2])
    assert path.with_suffix(".safetensors").stat().st_size < 1.3 * weight.nbytes


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    odd = {"set": {1}, "torch.sparse_coo tensor of torch.float32": torch.eye(2).to_sparse()}
    for name, value in odd.items():
        with pytest.raises(ValueError, match=f"gate/score is a {name}, which a checkpoint cannot"):
            checkpoint.write(tmp_path / "some", {"gate": {"score": value}})
    assert list(tmp_path.iterdir()) == []


def named(folder: Path, content: bytes) -> Path:
    """A checkpoint whose digest fits the ``content`` of its tensors."""
    tensors = folder / "some.safetensors"
    tensors.write_bytes(content)
    head: dict[str, Any] = {"file": tensors.name, "state": {}}
    path = folder / "some.json"
    path.write_text(json.dumps({**head, "sha256": checkpoint._digest(content, head)}))
    return path


class Malice:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_a_pickle_is_not_executed_even_with_a_fitting_digest(tmp_path: Path) -> None:
    target = tmp_path / "harm"
    torch.save({"model": Malice(target)}, tmp_path / "content")
    for content in (pickle.dumps(Malice(target)), (tmp_path / "content").read_bytes()):
        with pytest.raises(DamagedError, match="holds no training state"):
            checkpoint.read(named(tmp_path, content))
    assert not target.exists()
    pickle.loads(pickle.dumps(Malice(target)))  # it would have done harm
    assert target.exists()
