"""Metrics on disk: every line there, none waited for, and a resumed run without duplicates."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from astkit.background import BackgroundError
from astkit.trainers.metrics_file import MetricsFile, encode, read
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from astkit.datasets import Loader
from astkit.trainers import Trainer, metrics_file
from tests.trainers.states import hand_over, timeless

PATIENCE = 30.0


class SlowDisk(MetricsFile):
    """Sleeps 50 ms before each write."""

    writes = 0

    def _append(self):
        time.sleep(0.05)
        self.writes += 1
        super()._append()


class StuckDisk(MetricsFile):
    """Writes nothing until it is let go."""

    def __init__(self, path):
        self.ready = threading.Event()
        super().__init__(path)

    def _append(self):
        assert self.ready.wait(PATIENCE)
        super()._append()


class FullDisk(MetricsFile):
    def _append(self):
        raise OSError(28, "No space left on device")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def trainer(digits, observers, epochs=2, rows=96):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    data = Loader(digits.subset(range(rows)), 8)
    return Trainer(model, data, data, epochs=epochs, observers=observers)


def test_the_file_holds_what_the_history_holds(digits, path):
    file = MetricsFile(path)
    run = trainer(digits, [file])
    run.run()
    records = read(path)
    assert [record["phase"] for record in records] == (["train"] * 12 + ["epoch"]) * 2
    assert file.lines == len(records) == 26
    for phase, kept in (("train", run.history.steps), ("epoch", run.history.epochs)):
        mine = [record for record in records if record["phase"] == phase]
        assert mine == [{"phase": phase, **metrics} for metrics in kept]


def test_events_are_kept_and_validation_is_not(path):
    file = MetricsFile(path)
    for step in (1, 2):
        file.log(step, phase="train", loss=1.0)
        file.log(step, phase="validate", epoch=0)
        file.log(step, phase="epoch")
        file.close()  # it continues after that
    file.log(2, phase="event", name="target_rate", value=0.3)
    file.close()
    told = [(record["step"], record["phase"]) for record in read(path)]
    assert told == [(1, "train"), (1, "epoch"), (2, "train"), (2, "epoch"), (2, "event")]
    assert read(path)[-1] == {"step": 2, "phase": "event", "name": "target_rate", "value": 0.3}
    assert file.lines == 5


def strict(text):
    """JSON by its standard: Python's reader alone takes NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_what_is_not_finite_is_null_with_a_reason():
    for value, name in ((math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")):
        for kind in (float, torch.tensor, np.float32):
            assert strict(encode({"loss": kind(value)})) == {"loss": None, "loss_reason": name}
        line = strict(encode({"loss": {"a": [value]}}))
        assert line == {"loss": {"a": [None]}, "loss_reason": name}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(), plain, max_size=5))
def test_plain_values_come_back_as_they_were_and_on_one_line(record):
    line = encode(record)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert strict(line) == record


def test_tensors_become_numbers_and_what_json_cannot_hold_is_named(path):
    record = {"rate": torch.tensor(0.25), "rows": np.int64(3), "scores": torch.arange(2)}
    assert strict(encode(record)) == {"rate": 0.25, "rows": 3, "scores": [0, 1]}
    with pytest.raises(ValueError, match=r"'model' is a Linear, which JSON cannot hold"):
        MetricsFile(path).log(1, phase="event", model=nn.Linear(1, 1))


def test_a_disk_that_hangs_holds_no_step_and_loses_no_metric(digits, path):
    file = StuckDisk(path)
    run = trainer(digits, [file])
    for _ in run.steps():  # would not get far if a step waited
        if run.position.step == 24 and not file.ready.is_set():
            written = path.read_bytes()
            file.ready.set()
    assert written == b""
    records = read(path)
    assert [record["step"] for record in records if record["phase"] == "train"] == [*range(1, 25)]
    assert len(records) == file.lines == 26


def test_lines_are_written_together_at_most_once_a_pause(path, monkeypatch):
    now, sizes = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    file = MetricsFile(path)
    for step in range(10):
        file.log(step, phase="train")
        file.writer.flush()
        sizes.append(len(read(path)))
        now[0] += metrics_file.PAUSE / 3.2
    assert sizes == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]
    file.close()
    assert [record["step"] for record in read(path)] == [*range(10)]


def test_lines_logged_while_others_are_written_are_not_forgotten(path, monkeypatch):
    monkeypatch.setattr(metrics_file, "PAUSE", 0.0)
    file = MetricsFile(path)
    for step in range(3000):
        file.log(step, phase="train")
    file.close()
    assert [record["step"] for record in read(path)] == [*range(3000)]


def test_a_line_survives_the_error_of_another_job(path):
    file, hold, known = MetricsFile(path), threading.Event(), threading.Event()
    for job in (hold.wait, partial(FullDisk._append, file), known.set):
        file.writer.put(job)
    hold.set()
    assert known.wait(PATIENCE)
    with pytest.raises(BackgroundError, match="No space left"):
        file.log(1, phase="train")
    file.log(2, phase="train")
    file.close()
    assert [record["step"] for record in read(path)] == [1, 2]


class Timed:
    """Times each call of two observers, which take turns in going first."""

    def __init__(self, first, second):
        self.observers, self.seconds = (first, second), ([], [])

    def log(self, step, **metrics):
        for which in (0, 1) if step % 2 else (1, 0):
            start = time.perf_counter()
            self.observers[which].log(step, **metrics)
            self.seconds[which].append(time.perf_counter() - start)

    def close(self):
        self.observers[1].ready.set()
        for observer in self.observers:
            observer.close()


@pytest.mark.full
@pytest.mark.benchmark
def test_a_slow_disk_delays_no_step(digits, tmp_path):
    """50 ms a write; `log` takes less than 5 ms longer than beside a disk that writes nothing.

    The machine may hold any call for longer than that, so the bound is on the 98th percentile of
    over 300 calls, against the same percentile of the control's. Waiting would take 50 ms a call.
    """
    timed = Timed(SlowDisk(tmp_path / "slow.jsonl"), StuckDisk(tmp_path / "idle.jsonl"))
    trainer(digits, [timed], epochs=13).run()
    slow, control = (np.array(seconds) for seconds in timed.seconds)
    assert len(slow) >= 300
    assert np.median(slow) < np.median(control) + 0.001
    assert np.quantile(slow, 0.98) < np.quantile(control, 0.98) + 0.005
    for file in timed.observers:
        assert len(read(file.path)) == file.lines == 13 * 13  # none lost
    assert timed.observers[0].writes < 13 * 13  # lines that gathered went in one go


def test_an_error_of_the_disk_ends_the_run_with_its_sentence(digits, path):
    run = trainer(digits, [FullDisk(path)], epochs=10**6)
    run.model[1].eval()
    modes = [module.training for module in run.model.modules()]
    sentence = (
        r"writing metrics to .*metrics.jsonl failed in the background \(OSError: \[Errno 28\] No"
        r" space left on device\): fix the cause, then resume the run"
    )
    with pytest.raises(BackgroundError, match=sentence):
        run.run()
    assert 1 <= run.position.step < 10**5
    assert [module.training for module in run.model.modules()] == modes


def test_close_reaches_the_disk(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    file = MetricsFile(path)
    synced.clear()
    file.log(1, phase="train", loss=0.5)
    file.close()
    assert synced == [path.stat().st_size]


def test_a_later_job_finds_the_lines_before_it_on_the_disk(path):
    file, seen = MetricsFile(path), []
    for step in range(1, 50):
        file.log(step, phase="train")
        file.sync()
        file.writer.put(lambda: seen.append(len(read(path))))
    file.close()
    assert all(lines >= step for step, lines in enumerate(seen, start=1))
    assert len(seen) == 49


def test_a_torn_last_line_is_dropped(path):
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


def test_a_damaged_line_is_named(path):
    file = MetricsFile(path)
    for line in ("nonsense", "3", "[1]", '"step"', "null", "[" * 100_000, '{"phase": "train"}',
                 '{"step": "1", "phase": "train"}', '{"step": 1}', '{"step": 1, "phase": []}',
                 "\0\0"):  # fmt: skip
        path.write_text('{"step": 1, "phase": "train"}\n' + line + '\n{"step": 3}\n')
        for act in (lambda: read(path), lambda: file.load_state_dict({"lines": 5})):
            with pytest.raises(ValueError, match=r"line 2 of .*jsonl is damaged .*delete that"):
                act()


def test_a_resumed_file_is_cut_to_the_lines_of_its_checkpoint(path):
    file = MetricsFile(path)
    file.log(1, phase="train")
    state = file.state_dict()
    file.log(1, phase="epoch")
    file.log(2, phase="train")
    file.close()
    with path.open("a") as torn:
        torn.write('{"step"')
    with pytest.warns(UserWarning, match=r"holds 3 lines, but 5 were written"):
        file.load_state_dict({"lines": 5})
    assert (file.lines, len(read(path))) == (3, 3)
    file.load_state_dict(state)
    assert file.lines == 1
    assert [record["phase"] for record in read(path)] == ["train"]
    file.log(2, phase="train")
    file.close()
    assert path.read_bytes().count(b"\n") == 2


def test_a_resumed_run_writes_the_file_of_an_uninterrupted_one(digits, tmp_path):
    start = nn.Linear(64, 10).state_dict()
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"

    def make(path):
        file = MetricsFile(path)
        run = trainer(digits, [file])
        run.model[1].load_state_dict(start)
        return run, file

    make(whole)[0].run()
    run, file = make(broken)
    for record in run.steps():
        if record.step == 12 and record.phase == "train":  # before the epoch is closed
            other, lines = hand_over(run, trainer(digits, [])), file.lines
        if record.step == 15:
            break
    run, file = make(broken)
    file.load_state_dict({"lines": lines})
    hand_over(other, run).run()
    assert timeless(read(broken)) == timeless(read(whole))


def test_a_link_or_a_pipe_in_the_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")  # which would wait for a reader
    for name in ("link", "pipe"):
        with pytest.raises(ValueError, match=f"{name} is .*not a regular file"):
            MetricsFile(tmp_path / name)
    assert (tmp_path / "elsewhere").read_text() == "mine"
