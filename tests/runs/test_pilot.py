"""The pilot: predictions from known times, and that measuring leaves everything as it was."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch.utils.data import DataLoader

from astkit import Budget, Gate, Policy
from astkit.gating import Kakurenbo
from astkit.gating.policy import Cost
from astkit.profiling import Timings
from astkit.runs import pilot
from astkit.runs.comparison_task import Task
from tests.runs import small_tasks


def task(**options):
    usual = {"config": small_tasks.CONFIG, "batch_size": 16, "device": "cpu"}
    data = {
        "train": small_tasks.TRAIN,
        "validation": small_tasks.VALIDATION,
        "test": small_tasks.TEST,
    }
    criterion = torch.nn.functional.cross_entropy
    return Task(
        small_tasks.make_model,
        **{**data, **usual, "criterion": lambda a, b: criterion(a, b, reduction="none"), **options},
    )


class Twice(Policy):
    """Chooses a quarter after two forward passes of the model; has to be prepared."""

    cost = Cost(1.0, 1.0)
    rate = 0.25

    def choose(self, batch):
        raise AssertionError("it has not been prepared")

    def prepare(self, make_model, data):
        pass


SECONDS = {
    "dense": 10.0,
    "score": 2.0,
    "train 16": 8.0,
    "train 4": 3.5,  # 2 a step, and 6 for the rows of a whole batch
    "choose gate": 2.5,
}
POLICIES = {
    "gate": Gate(0.25),
    "twice": Twice(),
    "hidden": Kakurenbo(0.4),
    "random": {"name": "random", "rate": 0.3},
    "infobatch": {"name": "infobatch"},
}


@pytest.fixture
def played(monkeypatch):
    """The pilot, with seconds from the table above in place of a clock's."""

    def interleaved(arms, *, rounds, **options):
        for arm in arms.values():
            arm()
        found = {name: (SECONDS[name],) * rounds for name in arms}
        return Timings(found, "dense")

    monkeypatch.setattr(pilot, "interleaved", interleaved)
    return pilot.measure(task(), POLICIES)


def test_predictions_follow_from_the_times_of_the_parts(played):
    load = played.seconds["load"]
    expected = {  # rate, seconds, ceiling, break-even rate
        "gate": (0.25, (10 - 8 + 2.5 + 3.5) / 10, 10 / (10 - 8 + 2.5 + 2), 1 - 2.5 / 6),
        "twice": (0.25, (10 - 8 + 4 + 3.5) / 10, 10 / (10 - 8 + 4 + 2), 1 - 4 / 6),
        # 64 rows are 4 batches: 4 a batch and 6 / 16 a row; 38 rows are 3 batches, 19 are 2
        "hidden": (0.6, (3 * 4 + 38 * 6 / 16 + 0.4 * 4 * (load + 2)) / 40, None, 1.0),
        "random": (0.3, (2 * 4 + 19 * 6 / 16) / 40, None, 1.0),
        "infobatch": (1.0, 1.0, None, 1.0),
    }
    for label, (rate, seconds, ceiling, break_even) in expected.items():
        found = played.of(label)
        assert (found.rate, found.seconds, found.break_even) == pytest.approx(
            (rate, seconds, break_even)
        )
        assert found.ceiling == pytest.approx(ceiling)
        assert found.low == found.high == found.seconds
        assert found.pays
    # a forward pass is a third of the FLOPs, less what the first layer's inputs need no gradient of
    share = played.of("gate").flops - 0.25
    assert 1 / 3 < share < 0.5
    assert played.of("twice").flops == pytest.approx(0.25 + 2 * share)
    assert played.of("hidden").flops == pytest.approx(0.6 + 0.4 * share)
    assert played.of("dense") is None
    assert "assumed: it depends on the data" in played.of("infobatch").measured
    assert "assumed" not in played.of("random").measured + played.of("gate").measured
    assert pilot.Pilot.from_dict(asdict(played)) == played


def test_a_gate_above_its_break_even_rate_does_not_pay(monkeypatch):
    for dense, low, pays in ((1.0, 0.99, True), (1.0, 1.01, False)):
        ceiling = dense / 0.8
        found = pilot.Prediction("gate", 0.9, 1.1, low, 1.2, 1.2, ceiling, 0.5)
        assert found.pays == pays
    assert pilot.Prediction("infobatch", 1.0, 1.0, 1.0, 1.0, 1.0, None, 1.0).pays
    seconds = {**SECONDS, "choose gate": 6.5}
    monkeypatch.setattr(
        pilot,
        "interleaved",
        lambda arms, rounds, **_: Timings({name: (seconds[name],) * rounds for name in arms}, ""),
    )
    gate = pilot.measure(task(), {"gate": Gate(0.25)}).of("gate")
    assert (gate.break_even, gate.pays) == (0.0, False)


def test_the_time_of_an_arm_is_estimated_for_every_kind_of_budget(played):
    steps, start = 2 * small_tasks.ROWS / 16, played.seconds["start"]
    flops = 2 * small_tasks.ROWS * played.flops
    for budget in (Budget(epochs=2), Budget(steps=int(steps)), Budget(flops=flops)):
        assert played.arm_seconds("dense", budget, 0) == pytest.approx(start + 10 * steps)
    gate = played.of("gate")
    expected = start + 10 * steps * gate.seconds / gate.flops + 2 * 48 / 16
    assert played.arm_seconds("gate", Budget(epochs=2), 48) == pytest.approx(expected)
    assert pilot.held_rows(task()) == 12 * small_tasks.HELD + small_tasks.HELD


def test_the_pilot_leaves_model_data_policies_and_generators_alone(monkeypatch):
    monkeypatch.setattr(pilot, "ROUNDS", 5)
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(small_tasks.TRAIN, 16, shuffle=True, generator=generator)
    gate = Gate(0.25)
    before = [torch.get_rng_state(), generator.get_state()]
    threads = torch.get_num_threads()
    found = pilot.measure(task(train=loader), {"gate": gate})
    assert all(map(torch.equal, before, [torch.get_rng_state(), generator.get_state()]))
    assert (gate.seen, torch.get_num_threads()) == (0, threads)
    assert 0 < found.seconds["score"] < found.seconds["dense"] < 1
    assert {*found.seconds} == {
        "dense",
        "score",
        "start",
        "load",
        "forward",
        "backward",
        "optimizer",
    }
    assert (found.batch, found.rows) == (16, small_tasks.ROWS)
