"""The profiler runs in its window and nowhere else, and what it reports adds up."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from astkit import logs, rng
from astkit.datasets import Loader
from astkit.profiling import ProfilerWindow, peak_tensor_bytes
from astkit.profiling.window import _operators
from astkit.trainers import Budget, DenseStep, Trainer
from tests.profiling.conftest import noise

DATA = noise(160)  # 5 batches of 32


class Watched(DenseStep):
    """Notes for each batch whether a profiler records it."""

    def __init__(self):
        self.recorded = []

    def __call__(self, *arguments):
        self.recorded.append(torch.autograd._profiler_enabled())
        return super().__call__(*arguments)


def build(*observers, epochs=4):
    with rng.isolated("cpu", 0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return Trainer(
        model,
        Loader(DATA, 32),
        Loader(DATA.subset(range(32)), 16),
        budget=Budget(epochs=epochs),
        step=Watched(),
        observers=observers,
    )


def places(recorded):
    """The numbers, from 1, of the batches that were recorded."""
    return [number for number, on in enumerate(recorded, start=1) if on]


@pytest.mark.parametrize(("wait", "warmup", "active"), [(1, 1, 1), (5, 1, 3), (1, 4, 2)])
def test_it_runs_in_its_window_only(wait, warmup, active):
    window = ProfilerWindow(wait, warmup, active)
    trainer = build(window)
    trainer.run()
    first = wait + warmup + 1
    assert len(trainer.step.recorded) == 20
    assert places(trainer.step.recorded) == list(range(first, first + active))
    assert window.done
    assert not torch.autograd._profiler_enabled()


def test_weights_and_metrics_are_those_without_it(tmp_path):
    plain, profiled = build(), build(ProfilerWindow(folder=tmp_path))
    assert plain.run().steps == profiled.run().steps
    pairs = zip(plain.model.parameters(), profiled.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert places(plain.step.recorded) == []
    assert places(profiled.step.recorded) == [5, 6, 7, 8]


def test_calls_are_counted_for_the_batches_of_the_window():
    window = ProfilerWindow(wait=1, warmup=1, active=3)
    build(window, epochs=1).run()
    rows = {row["name"]: row for row in window.operators()}
    assert rows["aten::addmm"]["calls"] == 2 * 3  # a layer and batch each
    assert rows["aten::threshold_backward"]["calls"] == 3
    assert not any(name.startswith("ProfilerStep") for name in rows)


def test_the_table_is_sorted_and_its_shares_add_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    window = ProfilerWindow()
    build(window).run()
    assert list(tmp_path.iterdir()) == []  # without a folder nothing is written
    rows = window.operators()
    times = [row["self_cpu_ms"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= 0
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    for row in rows:
        assert set(row) == {"name", "calls", "self_cpu_ms", "self_device_ms", "share"}
        assert row["share"] == pytest.approx(row["self_cpu_ms"] / sum(times))
    assert window.operators(top=3) == rows[:3]
    assert window.operators(top=10_000) == rows


def event(name, device, cpu, on_device, annotation=False):
    return SimpleNamespace(
        key=name,
        count=1,
        device_type=SimpleNamespace(name=device),
        self_cpu_time_total=cpu,
        self_device_time_total=on_device,
        is_user_annotation=annotation,
    )


def test_a_kernel_is_counted_once_and_for_its_operator():
    events = [
        event("aten::relu", "CPU", 500.0, 1000.0),
        event("aten::mm", "CPU", 100.0, 3000.0),
        event("sgemm", "CUDA", 0.0, 3000.0),
        event("elementwise", "CUDA", 0.0, 1000.0),
        event("Memcpy HtoD", "CUDA", 0.0, 1000.0),  # of no operator, but time of the device
        event("ProfilerStep*", "CPU", 9e9, 0.0, annotation=True),
        event("Optimizer.step", "CUDA", 0.0, 9e9, annotation=True),
    ]
    rows = _operators(SimpleNamespace(key_averages=lambda: events))
    assert [(row["name"], row["self_device_ms"], row["share"]) for row in rows] == [
        ("aten::mm", 3.0, 0.6),
        ("aten::relu", 1.0, 0.2),
    ]


def test_the_trace_is_one_whole_file(tmp_path):
    folder = tmp_path / "new" / "folder"
    window = ProfilerWindow(wait=1, warmup=1, active=3, folder=folder)
    build(window, epochs=1).run()
    (trace,) = folder.iterdir()
    assert trace.name == "trace.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events]
    assert names.count("aten::addmm") == 2 * 3
    steps = {name for name in names if name.startswith("ProfilerStep")}
    assert len(steps) == 3


# --- runs that end early


def test_a_run_that_ends_before_the_window_says_so(tmp_path):
    window = ProfilerWindow(wait=10, warmup=10, active=1, folder=tmp_path)
    build(window).run()  # 20 batches
    assert not window.done
    assert not torch.autograd._profiler_enabled()
    with pytest.raises(ValueError, match=r"no batch was profiled.*= 20 batches.*lower wait"):
        window.operators()
    assert list(tmp_path.iterdir()) == []


def test_a_window_that_the_end_cuts_short_keeps_what_it_has():
    window = ProfilerWindow(wait=1, warmup=1, active=50)
    trainer = build(window, epochs=1)
    trainer.run()
    assert places(trainer.step.recorded) == [3, 4, 5]
    assert window.done
    rows = {row["name"]: row["calls"] for row in window.operators()}
    assert rows["aten::threshold_backward"] == 3


@pytest.mark.parametrize("left", [1, 4])
def test_a_window_that_was_left_before_it_began_begins_anew(left):
    window = ProfilerWindow(wait=2, warmup=2, active=2)
    trainer = build(window)
    steps = trainer.steps()
    for _ in range(left):
        next(steps)
    steps.close()
    assert not window.done
    trainer.run()
    assert places(trainer.step.recorded) == [left + 5, left + 6]


def test_a_loop_of_ones_own():
    window, recorded = ProfilerWindow(1, 1, 2), []
    layer = nn.Linear(4, 2)
    for _ in range(8):
        recorded.append(torch.autograd._profiler_enabled())
        layer(torch.ones(3, 4)).sum().backward()
        window.step()
    assert window._profiler is None  # its events are not kept until the run ends
    window.close()
    assert places(recorded) == [3, 4]
    assert {row["name"]: row["calls"] for row in window.operators()}["aten::addmm"] == 2


def test_the_operators_are_logged_where_somebody_listens(caplog):
    caplog.set_level("PERFORMANCE", "astkit")
    build(ProfilerWindow()).run()
    assert not [record for record in caplog.records if record.levelno == logs.PROFILING]
    caplog.set_level("PROFILING", "astkit")
    window = ProfilerWindow()
    build(window).run()
    (record,) = (record for record in caplog.records if record.levelno == logs.PROFILING)
    assert list(record.metrics) == [row["name"] for row in window.operators(5)]


def test_a_count_below_one_is_refused():
    for name in ("wait", "warmup", "active"):
        with pytest.raises(ValueError, match=f"{name} is 0.*give 1 or more"):
            ProfilerWindow(**{name: 0})


# --- peaks of tensors


def test_a_peak_is_what_is_held_at_once():
    size = 250_000

    def run():
        first = torch.empty(size)
        both = first + 1
        del first
        torch.empty(size // 2).sum()
        del both

    for _ in range(2):  # the second time the heap has it all
        assert peak_tensor_bytes(run) == pytest.approx(8 * size, rel=0.05)


def test_what_was_there_before_does_not_count():
    before = torch.ones(500_000)
    assert peak_tensor_bytes(lambda: before.add_(1)) < 10_000
