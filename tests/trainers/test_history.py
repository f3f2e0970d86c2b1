"""Records in memory and on disk, at the levels that were asked for; and changes during a run."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.gating import Gate, OriginPI, Policy, TopK
from astkit.trainers import Checkpoints, Event, MetricsFile, TrainConfig, Trainer
from astkit.trainers.history import History, Steering, read
from tests.trainers.states import hand_over, leave_after

DATA = TensorDataset(torch.randn(96, 4), torch.arange(96) % 3)


def trainer(observers: Any = (), epochs: float = 2, **options: Any) -> Trainer:
    with rng.isolated("cpu", 0):
        model = nn.Linear(4, 3)
    options = {"epochs": epochs, "batch_size": 8, "observers": observers, **options}
    return Trainer(model, DATA, DATA, device="cpu", **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


# --- history


def test_batches_epochs_and_events_are_kept_apart() -> None:
    history = History()
    history.log(1, phase="train", loss=2.0, epoch=0)
    history.close()  # it continues after that
    history.log(2, phase="train", loss=None, epoch=0)
    history.log(2, phase="epoch", val_accuracy=0.5, epoch=1)
    history.log(2, phase="event", name="rate", value=0.5)
    assert history.steps == [{"step": 1, "loss": 2.0, "epoch": 0},
                             {"step": 2, "loss": None, "epoch": 0}]  # fmt: skip
    assert history.epochs == [{"step": 2, "val_accuracy": 0.5, "epoch": 1}]
    assert history.events == [{"step": 2, "name": "rate", "value": 0.5}]
    assert (history.steps_to(0.5), history.steps_to(0.6)) == (2, None)


def test_the_history_stays_bounded_over_50_000_steps() -> None:
    history = History(limit=1000)
    for step in range(1, 50_001):
        history.log(step, phase="train", loss=0.0)
        assert len(history.steps) <= 1000
    kept = [entry["step"] for entry in history.steps]
    assert len(kept) > 400
    assert kept == list(range(1, 50_001, history.every))  # evenly, from the first on


@pytest.mark.parametrize(("every", "latest"), [(1, 0), (7, 6), (1000, 11)])
def test_every_batch_is_reported_in_groups(every: int, latest: int) -> None:
    class Heard(History):
        """Knows how many batches were trained when a record came."""

        def log(self, step: int, *, phase: str, **metrics: Any) -> None:
            super().log(step, phase=phase, **metrics)
            late.append(run.step - step)

    late: list[int] = []
    heard = Heard()
    run = trainer([heard], config=TrainConfig(report_every=every))
    run.run()
    assert [entry["step"] for entry in heard.steps] == [*range(1, 25)]
    assert all(isinstance(entry["loss"], float) for entry in heard.steps)
    # the first at once, the others with the next report or the end of the epoch
    assert max(late) == latest
    assert run.history.steps == heard.steps


# --- the metrics file


def test_the_file_holds_what_the_history_holds(path: Path) -> None:
    file = MetricsFile(path)
    run = trainer([file])
    run.run()
    records = read(path)
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
    assert [record["step"] for record in read(path)] == [1]
    again = MetricsFile(path)
    assert again.lines == 1
    again.log(2, phase="train", loss=0.1)
    again.close()
    assert [record["step"] for record in read(path)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[1]", '{"step": "1", "phase": "train"}', '{"step": 1}'],
    ids=lambda line: line[:9],
)
def test_a_damaged_line_is_named(path: Path, line: str) -> None:
    file = MetricsFile(path)
    path.write_text('{"step": 1, "phase": "train"}\n' + line + '\n{"step": 3}\n')
    for act in (lambda: read(path), lambda: file.load_state_dict({"file": path.name, "lines": 5})):
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
    assert len(read(path)) == 3
    file.load_state_dict(state)
    assert (file.lines, [record["phase"] for record in read(path)]) == (1, ["train"])


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
    assert [record["step"] for record in read(file.path)] == [1, 2]


# --- steering


CHANGES = [(3, "rate", 0.5), (7, "gain", 2.0), (11, "controller", "top_k")]


def steered(run: Trainer, changes: Any = CHANGES) -> Trainer:
    """Run to the end, making each (step, name, value) of ``changes`` after that many batches."""
    wanted = list(changes)
    for record in run.steps():
        while wanted and wanted[0][0] == record.step:
            run.steer(*wanted.pop(0)[1:])
    return run


def gated(gate: Gate | None = None, **options: Any) -> Trainer:
    return trainer(epochs=1.5, policy=gate or Gate(0.2), **options)


def test_a_change_takes_effect_before_the_next_batch_and_can_be_replayed(difference: Any) -> None:
    run = steered(gated())
    rates = [step["rate"] for step in run.history.steps]
    assert rates == [0.2] * 3 + [0.5] * 15
    assert isinstance(run.policy, Gate)
    assert isinstance(run.policy.controller, TopK)
    assert [step["measured_rate"] for step in run.history.steps][11:] == [0.5] * 7
    assert [tuple(vars(event).values()) for event in run.steering.events] == CHANGES
    assert [(e["step"], e["name"], e["value"]) for e in run.history.events] == CHANGES

    events = json.loads(json.dumps(run.history.events))
    again, plain = steered(gated(replay=events), []), steered(gated(), [])
    assert difference(run.model, again.model) == 0
    assert again.steering.events == run.steering.events
    assert plain.history.events == []
    assert difference(run.model, plain.model) > 1e-4
    for cut in (3, 12):  # a resumed run makes the changes that are left
        first = leave_after(gated(replay=events), cut)
        second = steered(hand_over(first, gated(replay=events)), [])
        assert difference(second.model, run.model) == 0
        assert second.steering.events == run.steering.events


def test_the_last_of_several_values_counts_and_gains_can_be_turned() -> None:
    run = gated(Gate(controller=OriginPI(0.2)))
    for rate in (0.3, 0.4, 0.6):
        run.steer("rate", rate)
    run.steer("kp", 0.25)
    run.run()
    assert run.steering.events == [Event(0, "rate", 0.6), Event(0, "kp", 0.25)]


def test_a_change_that_waits_is_resumed() -> None:
    first = leave_after(gated(), 3)
    first.steer("rate", 0.5)
    second = steered(hand_over(first, gated()), [])
    assert second.steering.events == [Event(3, "rate", 0.5)]


def test_a_change_that_waits_is_saved_where_nothing_else_has_changed(tmp_path: Path) -> None:
    options: Any = {"checkpoints": Checkpoints(tmp_path, every=1)}
    first = gated(**options)
    steps = first.steps()
    next(steps)
    first.steer("rate", 0.5)
    steps.close()
    second = gated(**options, resume=True)
    second.run()
    assert second.steering.events == [Event(1, "rate", 0.5)]


def test_a_file_that_missed_a_part_of_the_run_is_not_continued(tmp_path: Path) -> None:
    folder, file = tmp_path / "kept", tmp_path / "metrics.jsonl"
    leave_after(gated(checkpoints=folder, observers=[MetricsFile(file)]), 3).steps().close()
    leave_after(gated(checkpoints=folder, resume=True), 2).steps().close()
    with pytest.raises(ValueError, match=r"metrics.jsonl is not of this run: give a new file"):
        gated(checkpoints=folder, resume=True, observers=[MetricsFile(file)])


def test_events_that_cannot_be_replayed_are_named() -> None:
    with pytest.raises(ValueError, match="Policy has no setting 'rate' to steer"):
        trainer(replay=[Event(1, "rate", 0.5)])
    with pytest.warns(UserWarning, match=r"the run ended before Event\(step=500, "):
        gated(replay=[Event(1, "rate", 0.5), Event(500, "rate", 0.9)]).run()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("rate", 1.5, "rate is 1.5"),
        ("rate", None, "the setting was not changed"),
        ("momentum", 1.0, "no setting 'momentum' to steer: choose one of rate, controller"),
    ],
)
def test_a_slip_of_the_hand_does_not_end_the_run(name: str, value: Any, sentence: str) -> None:
    run = gated()
    run.steer(name, value)
    with pytest.warns(UserWarning, match=sentence):
        run.run()
    assert run.done
    assert run.steering.events == []


def test_a_run_without_such_a_policy_cannot_be_steered() -> None:
    for policy in (None, "infobatch"):
        with pytest.raises(ValueError, match="has no setting 'rate' to steer: give the"):
            trainer(policy=policy).steer("rate", 0.3)


def test_changes_come_from_any_thread() -> None:
    class Board(Policy):
        def steer(self, name: str, value: Any) -> None:
            taken[name] = value

    taken = dict[str, int]()
    steering = Steering(Board())
    threads = [threading.Thread(target=steering.put, args=(f"gain{i}", i)) for i in range(50)]
    for thread in threads:
        thread.start()
    while len(taken) < 50:
        steering.applied(0)
    for thread in threads:
        thread.join()
    assert taken == {f"gain{i}": i for i in range(50)}
    assert steering.applied(1) == []
