"""The ledger against torch's own counter, against hand-made clocks, and against plain sums."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from astkit import distributed, models, rng
from astkit.datasets import Loader
from astkit.gating import Gate, RandomSubset, row_losses
from astkit.profiling.energy import EnergyMeter
from astkit.profiling.flops import FlopsPerSample, counter
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.trainers import (
    Budget,
    DenseStep,
    GatedStep,
    SampleStep,
    StepResult,
    TrainConfig,
    Trainer,
)
from tests.profiling.conftest import noise

ROWS, HELD_OUT, SIZE = 50, 21, 16  # 4 batches, the last of 2 rows; 2 batches to evaluate


MODELS = {
    "simple_cnn": ("simple_cnn", {}),
    "simple_cnn, batch norm": ("simple_cnn", {"batch_norm": True}),
    "digits_cnn": ("digits_cnn", {}),
    "simplified_vit": ("simplified_vit", {"width": 16, "depth": 2, "heads": 2}),
}
STEPS = {
    "dense": DenseStep,
    "gated": lambda: GatedStep(Gate(0.3)),
    "gated, contrast": lambda: GatedStep(Gate(0.3, "loss_and_contrast", "top_k")),
    "per batch": lambda: SampleStep(Gate(0.3), "per_batch"),
    "per sample": lambda: SampleStep(Gate(0.3)),
}


def build(model="digits_cnn", step="dense", validation=True, policy=None, epochs=1):
    name, options = MODELS[model]
    return Trainer(
        models.build(name, (1, 8, 8), 10, **options),
        Loader(noise(ROWS), SIZE),
        Loader(noise(HELD_OUT, seed=1), SIZE) if validation else None,
        budget=Budget(epochs=epochs),
        step=STEPS[step]() if isinstance(step, str) else step,
        policy=policy,
    )


def counted_and_booked(trainer):
    """FLOPs of a whole run as torch counts them while it runs, and as the ledger books them."""
    trainer._cost(next(trainer.train.batches(0)))  # the ledger's probe is not part of the run
    with counter() as count:
        trainer.run()
    assert count.uncounted() == ()
    return count.get_total_flops(), trainer.ledger.flops


# each step with the fastest model, and each model with one step; the others in the full suite
FAST = {("simple_cnn, batch norm", "dense"), ("simplified_vit", "gated, contrast")}


@pytest.mark.parametrize(
    ("model", "step"),
    [
        pytest.param(
            model,
            step,
            marks=() if model == "digits_cnn" or (model, step) in FAST else pytest.mark.full,
        )
        for model in MODELS
        for step in STEPS
    ],
)
def test_the_ledger_agrees_with_a_counted_epoch(model, step):
    counted, booked = counted_and_booked(build(model, step, validation=False))
    assert counted == pytest.approx(booked.total, rel=0.01)
    assert booked.evaluation == 0
    assert counted > 0


@pytest.mark.parametrize("step", ["gated", pytest.param("per sample", marks=pytest.mark.full)])
def test_evaluation_is_counted_apart(step):
    counted, booked = counted_and_booked(build(step=step))
    _, alone = counted_and_booked(build(step=step, validation=False))
    assert booked.total == alone.total
    assert counted == pytest.approx(booked.total + booked.evaluation, rel=0.01)
    trainer = build(step=step)
    trainer.run()
    per_row = trainer._cost(next(trainer.train.batches(0))).forward
    assert booked.evaluation == pytest.approx(HELD_OUT * per_row)
    assert trainer.ledger.samples.evaluated == HELD_OUT
    trainer.evaluate(Loader(noise(30), 7))
    assert trainer.ledger.flops.evaluation == pytest.approx((HELD_OUT + 30) * per_row)
    assert trainer.ledger.flops.total == booked.total


def test_skipping_rows_saves_what_it_should():
    dense, _ = counted_and_booked(build(validation=False))
    counted, booked = counted_and_booked(build(step="gated, contrast", validation=False))
    trained = 15 / 50  # top k of 0.3, whole rows carried from batch to batch
    # this first convolution needs no gradient of its inputs, so backward is just below 2 forwards
    share = booked.scoring / dense
    assert 1 / 3 <= share < 0.36
    assert counted == pytest.approx(dense * (trained + share), rel=0.01)


class MaskedStep(GatedStep):
    """The original's way: forward and backward of all rows, the loss of skipped ones set to 0."""

    def __call__(self, learner, batch, weight, ledger):
        chosen = self.gate.select(self.gate.scores(learner.scored(batch)))
        mask = torch.zeros(len(batch.y)).index_fill_(0, chosen.index, 1.0)
        losses = row_losses(learner.criterion, learner.model(batch.x), batch.y)
        learner.updates.backward((losses * mask).sum(), mask.sum(), len(chosen))
        learner.end_batch(ledger)
        return StepResult(chosen.index, losses.detach()[chosen.index], len(mask), chosen)


def test_masking_the_loss_saves_nothing():
    dense, _ = counted_and_booked(build(validation=False))
    masked, booked = counted_and_booked(build(step=MaskedStep(Gate(0.3)), validation=False))
    assert masked - booked.scoring == dense  # to the last FLOP
    # and a step that books savings it did not make is caught by the comparison above
    assert booked.total < 0.75 * masked


# --- samples


EPOCHS = 2


@pytest.mark.parametrize(
    ("step", "rate"),
    [("dense", 0.5), ("gated", None), ("gated, contrast", 0.5), ("per sample", 0.5)],
)
def test_samples_add_up(step, rate):
    policy = None if rate is None else RandomSubset(rate)
    trainer = build(step=step, policy=policy, epochs=EPOCHS)
    history = trainer.run()
    samples = trainer.ledger.samples
    visited = EPOCHS * (ROWS if rate is None else 25)
    assert samples.trained + samples.skipped == visited
    assert samples.trained + samples.skipped + samples.unloaded == EPOCHS * ROWS
    assert samples.evaluated == EPOCHS * HELD_OUT
    assert samples.trained == sum(entry["trained"] for entry in history.steps)
    assert visited == sum(entry["seen"] for entry in history.steps)
    if step == "dense":
        assert (samples.scored, samples.skipped) == (0, 0)
    elif step == "per sample":
        assert samples.scored == visited + SIZE  # the first batch is scored twice
    else:
        assert samples.scored == visited
    if step != "dense":
        assert 0 < samples.trained < visited


counts = st.integers(0, 10**9)
costs = st.integers(0, 10**12)


@given(
    batches=st.lists(st.tuples(*[counts] * 5), max_size=5),
    forward=costs,
    backward=costs,
)
def test_notes_are_plain_sums(batches, forward, backward):
    ledger, cost = Ledger(), FlopsPerSample(forward, backward)
    names = ("scored", "trained", "skipped", "evaluated", "overflowed")
    for batch in batches:
        ledger.note(cost, **dict(zip(names, batch, strict=True)))
    columns = [sum(column) for column in zip(*batches, strict=True)] or [0] * len(names)
    totals = dict(zip(names, columns, strict=True))
    scored, trained, evaluated = (totals[name] for name in ("scored", "trained", "evaluated"))
    # a row whose step overflowed was paid for like any other, and was not trained on
    kept = {"trained": trained - totals["overflowed"], "unloaded": 0, "padded": 0}
    assert asdict(ledger.samples) == totals | kept
    assert ledger.flops.scoring == pytest.approx(scored * forward)
    assert ledger.flops.total == pytest.approx((scored + trained) * forward + trained * backward)
    assert ledger.flops.evaluation == pytest.approx(evaluated * forward)
    assert ledger.seconds == {"training": 0.0, "evaluation": 0.0}


@given(trained=counts, skipped=counts, unloaded=counts, others=counts)
def test_the_origins_units(trained, skipped, unloaded, others):
    ledger = Ledger()
    ledger.samples.trained, ledger.samples.skipped = trained, skipped
    ledger.samples.unloaded = unloaded
    ledger.samples.scored = ledger.samples.evaluated = others  # which it leaves out
    expected = (100 * trained + skipped + unloaded) / 10
    assert ledger.origin_energy_units == pytest.approx(expected, rel=1e-12)


# --- clocks


@pytest.fixture
def clock(monkeypatch):
    """A hand-made clock in the place of the ledger's."""
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        "astkit.profiling.ledger.time", SimpleNamespace(perf_counter=lambda: hands.now)
    )
    return hands


class Timed(nn.Module):
    """Takes 1 s forward and 2 s back, 100 s without gradients, ages to be counted."""

    def __init__(self, clock):
        super().__init__()
        with rng.isolated("cpu", 0):
            self.linear = nn.Linear(64, 10)
        self.clock = clock
        self.linear.weight.register_hook(self.back)

    def back(self, gradient):
        self.clock.now += 2.0

    def forward(self, x):
        if len(x) <= 2:  # the probe that counts FLOPs, which belongs to no clock
            self.clock.now += 1e8
        else:
            self.clock.now += 1.0 if self.training else 100.0
        return self.linear(x.flatten(1))


class Slow(Loader):
    """Takes 10 s to load a batch."""

    def __init__(self, clock, *arguments):
        super().__init__(*arguments)
        self.clock = clock

    def batches(self, epoch, order=None, start=0):
        for batch in super().batches(epoch, order, start):
            self.clock.now += 10.0
            yield batch


class SlowObserver:
    """Takes 1e5 s over everything that it is told."""

    def __init__(self, clock):
        self.clock = clock

    def log(self, step, *, phase, **metrics):
        self.clock.now += 1e5

    def close(self):
        pass


def timed(clock, step, model=None):
    gate = Gate(0.3, min_active=3, fallback=3)  # never two rows, which would pass for the probe
    trainer = Trainer(
        model or Timed(clock),
        Slow(clock, noise(48), SIZE),
        Slow(clock, noise(36, seed=1), 12),
        budget=Budget(epochs=2),
        step=GatedStep(gate) if step == "gated" else DenseStep(),
        observers=[SlowObserver(clock)],
    )

    def step_takes_five_seconds(*_):
        clock.now += 5.0

    trainer.learner.optimizer.register_step_post_hook(step_takes_five_seconds)
    return trainer


@pytest.mark.parametrize(
    ("step", "cuts"), [("dense", []), ("gated", [0]), ("gated", [2, 1]), ("dense", [1] * 12)]
)
def test_no_clock_runs_while_nobody_asks_for_a_record(clock, step, cuts):
    trainer = timed(clock, step)
    for cut in [*cuts, 1000]:
        steps = trainer.steps()
        for _ in zip(range(cut), steps, strict=False):
            clock.now += 1e6  # the reader thinks about it
        steps.close()
        clock.now += 1e7
    assert trainer.done
    train, scoring = 6 * (1 + 2 + 5), 600 if step == "gated" else 0
    # two passes of three batches each, for training and for validation
    assert trainer.ledger.seconds["evaluation"] == 6 * (10 + 100)
    assert trainer.ledger.seconds["training"] == 6 * 10 + train + scoring
    expected = {"load": 60.0, "forward": 6.0, "backward": 12.0, "optimizer": 30.0, "log": 0.0}
    if step == "gated":
        expected |= {"score": 600.0, "gate": 0.0}
    assert trainer.ledger.phases == expected
    epochs = trainer.history.epochs
    assert [epoch["seconds"] for epoch in epochs] == [
        trainer.ledger.seconds["training"] / 2,
        trainer.ledger.seconds["training"],
    ]


def test_reading_the_test_split_is_evaluation(clock):
    trainer = timed(clock, "dense")
    trainer.run()
    before = dict(trainer.ledger.seconds)
    trainer.evaluate(Slow(clock, noise(48), SIZE))
    assert trainer.ledger.seconds == {
        "training": before["training"],
        "evaluation": before["evaluation"] + 3 * 110,
    }


def test_an_error_stops_the_clocks(clock):
    class Failing(Timed):
        def forward(self, x):
            out = super().forward(x)
            return out * float("nan") if self.training and len(x) > 2 else out

    trainer = timed(clock, "dense", Failing(clock))
    with pytest.raises(FloatingPointError):
        trainer.run()
    clock.now += 1e6
    assert trainer.ledger.seconds == {"training": 11.0, "evaluation": 0.0}
    assert trainer.ledger.phases == {"load": 10.0, "forward": 1.0, "backward": 0.0}


@pytest.mark.parametrize("step", ["dense", "gated", "per sample"])
def test_phases_split_the_training_clock(monkeypatch, step):
    """With a clock that moves by one at each reading, what no phase holds is the gaps between."""
    readings = iter(range(10**9))
    monkeypatch.setattr(
        "astkit.profiling.ledger.time", SimpleNamespace(perf_counter=lambda: next(readings))
    )
    trainer = build(step=step)
    trainer.run()
    ledger = trainer.ledger
    names = {"load", "forward", "backward", "optimizer", "log"}
    names |= set() if step == "dense" else {"score", "gate"}
    assert set(ledger.phases) == names
    assert all(seconds > 0 for seconds in ledger.phases.values())
    assert sum(ledger.phases.values()) < ledger.seconds["training"]


def test_a_clock_adds_up_and_knows_its_name(clock):
    ledger = Ledger()
    for seconds in (1.0, 2.5):
        with ledger.clock("training"):
            clock.now += seconds
        clock.now += 50.0
    with ledger.clock("evaluation"), ledger.phase("load"):
        clock.now += 4.0
    assert ledger.seconds == {"training": 3.5, "evaluation": 4.0}
    assert ledger.phases == {"load": 4.0}


def test_work_on_a_device_is_waited_for_before_a_clock_is_read(clock):
    def wait():
        clock.now += 7.0  # the queue that was launched and is not done

    ledger = Ledger(synchronize=wait)
    with ledger.clock("training"):
        clock.now += 1.0
    assert ledger.seconds["training"] == 8.0
    with ledger.phase("score"):
        clock.now += 1.0
    assert ledger.phases == {"score": 8.0}


def test_preparing_a_batch_is_part_of_loading_it(clock, monkeypatch):
    trainer = timed(clock, "dense")
    prepare = trainer.learner.prepare

    def slow(batch):
        clock.now += 3.0
        return prepare(batch)

    monkeypatch.setattr(trainer.learner, "prepare", slow)
    trainer.run()
    assert trainer.ledger.phases["load"] == 6 * (10 + 3)
    assert trainer.ledger.seconds == {"training": 6 * (13 + 8), "evaluation": 6 * (13 + 100)}


class Device:
    """Works off its queue by itself; the clock moves only while the host waits for it."""

    def __init__(self, clock):
        self.clock, self.done = clock, 0.0

    def queue(self, seconds):
        self.done = max(self.done, self.clock.now) + seconds

    def wait(self):
        self.clock.now = max(self.clock.now, self.done)


def queueing(clock, every, budget, observers=()):
    """A run that queues 10 s per training batch and 1 s per evaluated batch."""
    device = Device(clock)

    class Queueing(DenseStep):
        def __call__(self, *parts):
            device.queue(10.0)
            return super().__call__(*parts)

    trainer = Trainer(
        models.build("digits_cnn", (1, 8, 8), 10),
        Loader(noise(ROWS), SIZE),
        Loader(noise(HELD_OUT, seed=1), SIZE),
        budget=budget,
        step=Queueing(),
        observers=observers,
        config=TrainConfig(metrics_every=every),
        device="cpu",
    )
    trainer.ledger.synchronize, evaluated = device.wait, trainer.evaluator._of

    def evaluate(batch):
        device.queue(1.0)
        return evaluated(batch)

    trainer.evaluator._of = evaluate
    return trainer


@pytest.mark.parametrize("evaluating", [False, True])
@pytest.mark.parametrize("every", [1, 5, 100])
def test_queued_training_is_training_however_rarely_metrics_are_read(clock, every, evaluating):
    points = []

    def log(step, *, phase, **metrics):
        if phase == "train" and step % 3 == 0 and evaluating:
            trainer.evaluate(trainer.validation)
            points.append(trainer.ledger.seconds["training"])

    observer = SimpleNamespace(log=log, close=lambda: None)
    trainer, began = queueing(clock, every, Budget(epochs=3), [observer]), clock.now
    trainer.run()
    assert trainer.position.step == 12
    assert points == ([30.0, 60.0, 90.0, 120.0] if evaluating else [])
    passes = 3 + len(points)
    assert trainer.ledger.seconds == {"training": 120.0, "evaluation": passes * 2.0}
    assert clock.now - began == 120 + passes * 2
    assert [entry["seconds"] for entry in trainer.history.epochs] == [40.0, 80.0, 120.0]


def test_a_budget_in_seconds_ends_on_time_however_rarely_metrics_are_read(clock):
    trainer = queueing(clock, 100, Budget(seconds=65))
    trainer.run()
    assert trainer.position.step == 7
    assert trainer.ledger.seconds["training"] == 70.0


def test_queued_training_is_counted_when_a_run_is_saved_and_left(clock):
    trainer = queueing(clock, 100, Budget(epochs=3))
    steps = trainer.steps()
    for _ in range(2):
        next(steps)
    assert trainer.state_dict()["ledger"]["seconds"]["training"] == 20.0
    next(steps)
    steps.close()
    assert trainer.ledger.seconds == {"training": 30.0, "evaluation": 0.0}


def test_joules_of_queued_training_are_not_those_of_the_evaluation(machine, monkeypatch):
    monkeypatch.setattr("astkit.profiling.ledger.time", SimpleNamespace(perf_counter=machine.clock))
    queue = []

    def wait():
        while queue:
            machine.spend(*queue.pop(0))

    ledger = Ledger(synchronize=wait, meter=EnergyMeter(counter=machine, clock=machine.clock))
    ledger.waiting = False
    for name, watts in (("training", 300.0), ("evaluation", 100.0)):
        with ledger.clock(name):
            queue.append((20.0, watts))
    assert ledger.seconds == {"training": 20.0, "evaluation": 20.0}
    assert ledger.energy("training").joules == pytest.approx(6000, rel=0.02)
    assert ledger.energy("evaluation").joules == pytest.approx(2000, rel=0.02)


def test_the_exchange_between_processes_counts_the_queue_it_waits_for(clock, monkeypatch):
    device = Device(clock)

    def total(*values):
        device.wait()
        return list(values)

    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(distributed, "total", total)
    ledger = Ledger(synchronize=device.wait, waiting=False)
    with ledger.clock("training"):
        device.queue(10.0)
    ledger.pool()
    assert ledger.seconds == {"training": 10.0, "evaluation": 0.0}


def test_only_an_accelerator_has_something_to_wait_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert synchronizer(torch.device("cpu")) is None
    wait = synchronizer(torch.device("cuda", 1))
    assert waited == []
    wait()
    assert waited == [torch.device("cuda", 1)]


# --- state


def test_the_state_goes_through_json_and_goes_on():
    trainer = build(step="gated", policy=RandomSubset(0.5), epochs=2)
    trainer.run()
    state = json.loads(json.dumps(trainer.ledger.state_dict()))
    restored = Ledger()
    restored.load_state_dict(state)
    assert restored == trainer.ledger
    assert restored.flops.total == trainer.ledger.flops.total > 0
    assert restored.origin_energy_units == trainer.ledger.origin_energy_units > 0
    # what is restored is a copy: going on changes neither the state nor the ledger it came from
    restored.note(FlopsPerSample(1.0, 1.0), trained=1, scored=1)
    with restored.clock("training"), restored.phase("load"):
        pass
    assert state == trainer.ledger.state_dict()
    assert restored.samples.trained == trainer.ledger.samples.trained + 1
    assert restored.seconds["training"] > trainer.ledger.seconds["training"]


def test_padding_cost_flops_and_is_not_trained():
    ledger = Ledger()
    for _ in range(2):
        ledger.note(FlopsPerSample(1.0, 2.0), trained=8, padded=torch.tensor(3))
    assert (ledger.samples.trained, ledger.samples.padded) == (10, 6)
    assert ledger.flops.total == 2 * 8 * 3.0


def test_helper_models_have_flops_of_their_own():
    ledger = Ledger()
    ledger.note_helper(FlopsPerSample(5.0, 10.0), rows=4, trained=False)
    ledger.note_helper(FlopsPerSample(5.0, 10.0, ("fft",)), rows=2, trained=True)
    assert ledger.flops.helper == ledger.flops.total == 4 * 5.0 + 2 * 15.0
    assert ledger.uncounted == {"fft"}
    restored = Ledger()
    restored.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert restored == ledger


def test_joules_go_on_with_the_state(machine):
    first, second = (Ledger(meter=EnergyMeter(counter=machine, clock=machine.clock)) for _ in "ab")
    for ledger in (first, second):
        with ledger.clock("training"):
            machine.spend(12.0, 100.0)
    joules = first.energy().joules
    assert joules == pytest.approx(1200, rel=0.02)
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.energy() == first.energy()
    Ledger().load_state_dict(state)  # a run without a meter
    second.load_state_dict(Ledger().state_dict())  # a state without one
    assert second.energy().joules == joules
    assert Ledger().energy().reason == "no meter was given"


def test_counts_that_are_no_numbers_are_refused():
    for part, wrong in (("samples", "many"), ("flops", None), ("seconds", [1]), ("phases", True)):
        state = Ledger(phases={"load": 1.0}).state_dict()
        state[part][next(iter(state[part]))] = wrong
        with pytest.raises(ValueError, match="the ledger counts"):
            Ledger().load_state_dict(state)
