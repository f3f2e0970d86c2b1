"""Rows against hand-made clocks and against the run's own counts; free where nobody asks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from astkit import logs, models
from astkit.datasets import Loader
from astkit.gating import Gate
from astkit.profiling import Ledger, Throughput, throughput
from astkit.profiling import ledger as ledger_module
from astkit.trainers import Budget, DenseStep, GatedStep, Trainer
from tests.profiling.conftest import noise

DATA = noise(320)
EPOCHS, BATCH = 3, 32  # 10 batches a pass


def build(step=None, validation=True, batch=BATCH, epochs=EPOCHS):
    return Trainer(
        models.build("digits_cnn", (1, 8, 8), 10),
        Loader(DATA, batch),
        Loader(DATA.subset(range(64)), BATCH) if validation else None,
        budget=Budget(epochs=epochs),
        step=step or GatedStep(Gate(0.3)),
    )


def watch(trainer, **options):
    speed = Throughput(trainer.ledger, trainer.device, **options)
    trainer.observers.append(speed)
    return speed


# --- one window, by hand


@pytest.fixture
def clocks(monkeypatch):
    hands = SimpleNamespace(wall=100.0, cpu=10.0)
    fake = SimpleNamespace(perf_counter=lambda: hands.wall, process_time=lambda: hands.cpu)
    monkeypatch.setattr(throughput, "time", fake)
    return hands


def test_a_row_is_the_difference_of_two_moments(clocks):
    ledger = Ledger()
    ledger.seconds["training"], ledger.phases["load"] = 50.0, 7.0
    speed = Throughput(ledger, every=2)
    speed.cores = 4
    speed.log(1, phase="train")  # opens the window
    for step in (2, 3):
        speed.log(step, phase="validate")
        assert not speed.rows
        clocks.wall += 5.0
        clocks.cpu += 8.0
        ledger.seconds["training"] += 3.0
        ledger.seconds["evaluation"] += 0.5
        ledger.phases["load"] += 1.0
        ledger.phases["score"] = ledger.phases.get("score", 0.0) + 0.25
        ledger.samples.trained += 30
        ledger.samples.skipped += 90
        speed.log(step, phase="train")
    (row,) = speed.rows
    assert (
        row.items()
        >= {
            "step": 3,
            "training_steps": 2,
            "seen_per_second": 240 / 6,
            "trained_per_second": 60 / 6,
            "wall_seconds": 10.0,
            "seconds": 6.0,
            "evaluation_seconds": 1.0,
            "phases": {"load": 2.0, "score": 0.5},
            "utilisation": 0.6,
            "cpu_utilisation": 16 / 10 / 4,
            "gpu_utilisation": None,
        }.items()
    )
    assert row["gpu_utilisation_reason"]
    assert row["memory_bytes"] > 0


def test_the_next_window_begins_where_the_last_ended(clocks):
    ledger = Ledger()
    speed = Throughput(ledger, every=1)
    for step in range(1, 5):
        clocks.wall += step
        ledger.seconds["training"] += 0.5
        speed.log(step, phase="train")
    assert [row["wall_seconds"] for row in speed.rows] == [2, 3, 4]
    assert [row["step"] for row in speed.rows] == [2, 3, 4]


def test_an_accelerators_queue_is_the_work_of_its_own_window(clocks, monkeypatch):
    def wait():
        clocks.wall += queue.pop() if queue else 0.0

    class Padding:
        def __int__(self):  # a read of the device's memory
            wait()
            return 0

    monkeypatch.setattr(ledger_module, "time", throughput.time)
    ledger, queue = Ledger(synchronize=wait, waiting=False), []
    speed = Throughput(ledger, every=1)
    for step, left in ((1, 1000.0), (2, 7.0), (3, 0.0)):
        with ledger.clock("training"):
            clocks.wall += 1.0
            queue.append(left)
        ledger.padding = Padding()
        speed.log(step, phase="train")
    assert [row["seconds"] for row in speed.rows] == [8.0, 1.0]
    assert [row["wall_seconds"] for row in speed.rows] == [8.0, 1.0]
    assert ledger.seconds["training"] == 1001 + 8 + 1  # the waits are not lost to the run


def test_a_window_of_no_batches_is_refused():
    for every in (0, -1):
        with pytest.raises(ValueError, match=f"every is {every}.*give 1 or more"):
            Throughput(Ledger(), every=every)


# --- a whole run


@pytest.mark.parametrize(("gated", "every"), [(True, 4), (False, 29), (True, 100)])
def test_rows_add_up_to_the_run(gated, every):
    trainer = build(None if gated else DenseStep())
    speed = watch(trainer, every=every)
    steps = trainer.run().steps
    rows, batches = speed.rows, EPOCHS * len(DATA) // BATCH
    assert sum(row["training_steps"] for row in rows) == batches - 1  # the first opens the window
    assert [row["step"] for row in rows] == [
        min(1 + every * place, batches) for place in range(1, 1 + math.ceil((batches - 1) / every))
    ]
    for what in ("seen", "trained"):
        counted = sum(row[f"{what}_per_second"] * row["seconds"] for row in rows)
        assert counted == pytest.approx(sum(entry[what] for entry in steps[1:]))
    for row in rows:
        assert row["seconds"] + row["evaluation_seconds"] <= row["wall_seconds"]
        assert 0 < sum(row["phases"].values()) <= row["seconds"]
        assert 0 < row["utilisation"] <= 1
        assert row["cpu_utilisation"] > 0
    assert sum(row["evaluation_seconds"] for row in rows) <= trainer.ledger.seconds["evaluation"]


def test_a_run_that_was_left_goes_on_in_a_window_of_its_own():
    trainer = build(validation=False)
    speed = watch(trainer, every=8)
    steps = trainer.steps()
    for _ in range(12):
        next(steps)
    steps.close()
    assert [row["step"] for row in speed.rows] == [9, 12]
    trainer.run()
    assert [row["step"] for row in speed.rows] == [9, 12, 21, 29, 30]
    assert [row["training_steps"] for row in speed.rows] == [8, 3, 8, 8, 1]


def test_weights_and_decisions_are_those_without_it():
    plain, watched = build(), build()
    watch(watched, every=3)
    assert plain.run().steps == watched.run().steps
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


# --- levels


def test_a_level_that_is_off_reads_no_counter(monkeypatch):
    def fail(*_):
        raise AssertionError("a counter was read")

    trainer = build()
    speed = watch(trainer, every=4, level=logs.PERFORMANCE)
    monkeypatch.setattr(speed, "_mark", fail)
    monkeypatch.setattr(throughput, "peak_memory", fail)
    trainer.run()
    assert speed.rows == []


def test_rows_are_logged_where_a_level_is_given_and_on(caplog):
    trainer = build()
    speed = watch(trainer, every=10)
    trainer.run()
    assert len(speed.rows) == 3
    assert not caplog.records
    caplog.set_level("PERFORMANCE", "astkit")
    trainer = build()
    speed = watch(trainer, every=10, level=logs.PERFORMANCE)
    trainer.run()
    assert len(speed.rows) == 3
    records = [record for record in caplog.records if record.levelno == logs.PERFORMANCE]
    # the trainer has one of its own, with other windows
    records = [record for record in records if record.metrics in speed.rows]
    assert [record.metrics for record in records] == speed.rows
    assert records[0].getMessage().startswith("throughput step=11 training_steps=10 ")


def test_switched_off_and_on_while_the_run_goes_on(caplog):
    caplog.set_level("PERFORMANCE", "astkit")
    trainer = build(validation=False)
    speed = watch(trainer, every=100, level=logs.PERFORMANCE)
    for record in trainer.steps():
        caplog.set_level("INFO" if 4 <= record.step < 10 else "PERFORMANCE", "astkit")
    # batches 2 to 4; batch 11 opens the second window
    assert [(row["step"], row["training_steps"]) for row in speed.rows] == [(4, 3), (30, 19)]


# --- GPUs


def rows_of(device, monkeypatch, ask):
    monkeypatch.setattr(torch.cuda, "utilization", ask)
    speed = Throughput(ledger := Ledger(), device, every=1)
    for step in range(1, 4):
        ledger.seconds["training"] += 1.0
        speed.log(step, phase="train")
    return speed.rows


def test_the_drivers_percent_become_a_share(monkeypatch):
    rows = rows_of("cuda", monkeypatch, lambda device: 37)
    assert [row["gpu_utilisation"] for row in rows] == [0.37, 0.37]
    assert [row["gpu_utilisation_reason"] for row in rows] == [None, None]


def test_a_driver_that_does_not_tell_is_asked_once(monkeypatch):
    asked = []

    def refuse(device):
        asked.append(device)
        raise ModuleNotFoundError("pynvml is not installed")

    rows = rows_of("cuda", monkeypatch, refuse)
    assert [row["gpu_utilisation"] for row in rows] == [None, None]
    assert all("pynvml is not installed" in row["gpu_utilisation_reason"] for row in rows)
    assert asked == [torch.device("cuda")]


def test_nobody_is_asked_for_other_devices(monkeypatch):
    def fail(device):
        raise AssertionError("NVML was asked")

    for device in ("cpu", "mps"):
        rows = rows_of(device, monkeypatch, fail)
        assert rows[0]["gpu_utilisation"] is None
        assert "NVIDIA" in rows[0]["gpu_utilisation_reason"]
