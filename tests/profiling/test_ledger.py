"""The ledger against torch's own counter, against hand-made clocks, and against plain sums."""

import copy
import json
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from astkit import Budget, Gate, Loader, RandomSubset, Trainer, distributed, models, rng
from astkit.profiling import BatchFlops, FlopCounter, Ledger, PassFlops
from tests.build import images

ROWS, HELD_OUT, SIZE = 50, 21, 16  # 4 batches, the last of 2 rows; 2 batches to evaluate


def cost_of(forward, backward, uncounted=()):
    return BatchFlops(PassFlops(forward), PassFlops(forward), PassFlops(backward), uncounted)


POLICIES = {
    "dense": None,
    "gate": Gate(0.3),
    "gate, contrast": Gate(0.3, "loss_and_contrast", "top_k"),
    "random": RandomSubset(0.5),
}


def build(model, policy):
    return Trainer(
        models.build(model, (1, 8, 8), 10),
        Loader(images(ROWS, classes=10), SIZE),
        Loader(images(HELD_OUT, classes=10, seed=1), SIZE),
        budget=Budget(epochs=2),
        policy=copy.deepcopy(POLICIES[policy]),
        device="cpu",
    )


@pytest.mark.parametrize(
    ("model", "policy"),
    [*(("digits_cnn", policy) for policy in POLICIES), ("simple_cnn", "gate, contrast"),
     ("simplified_vit", "gate, contrast")],
)  # fmt: skip
def test_the_ledger_agrees_with_what_torch_counts_while_it_trains(model, policy):
    trainer = build(model, policy)
    steps, ledger = trainer.steps(), trainer.ledger
    next(steps)  # counts, which is not part of the run
    total, evaluation = ledger.flops.total, ledger.flops.evaluation
    with FlopCounter() as counted:
        for _ in steps:
            pass
    assert counted.uncounted() == set()
    spent = ledger.flops.total - total
    assert spent > 0
    booked = spent + ledger.flops.evaluation - evaluation
    assert counted.get_total_flops() == pytest.approx(booked, rel=1e-4)  # contrast is not booked
    samples = ledger.samples
    assert ledger.flops.evaluation * samples.scored == ledger.flops.scoring * samples.evaluated
    assert samples.evaluated == 2 * HELD_OUT
    visited = 2 * (25 if policy == "random" else ROWS)
    assert samples.trained + samples.skipped == visited
    assert samples.trained + samples.skipped + samples.unloaded == 2 * ROWS
    assert samples.scored == (visited if "gate" in policy else 0)


counts = st.integers(0, 10**9)
parts = st.builds(PassFlops, st.integers(0, 10**12), st.integers(0, 10**12))


@given(
    batches=st.lists(st.tuples(*[counts] * 6, st.integers(1, 9)), max_size=5),
    cost=st.builds(BatchFlops, parts, parts, parts),
)
def test_notes_are_plain_sums(batches, cost):
    ledger = Ledger()
    names = ("scored", "trained", "skipped", "evaluated", "overflowed", "padded", "passes")
    for number, batch in enumerate(batches):
        values = dict(zip(names, batch, strict=True))
        if number % 2:  # as they lie on a device
            values["padded"] = torch.tensor(values["padded"])
        ledger.note(cost, **values)
    columns = [sum(column) for column in zip(*batches, strict=True)] or [0] * len(names)
    totals = dict(zip(names[:-1], columns, strict=False))
    # a row whose step overflowed was paid for like any other, and was not trained on
    kept = totals["trained"] - totals["overflowed"] - totals["padded"]
    assert asdict(ledger.samples) == totals | {"trained": kept, "unloaded": 0}

    def flops(part, column):
        rows = [(batch[column], batch[-1]) for batch in batches if batch[column]]
        return pytest.approx(sum(part.per_row * n + part.fixed * passes for n, passes in rows))

    assert ledger.flops.scoring == flops(cost.scoring, 0)
    assert ledger.flops.forward == flops(cost.forward, 1)
    assert ledger.flops.backward == flops(cost.backward, 1)
    assert ledger.flops.evaluation == flops(cost.scoring, 3)
    total = ledger.flops.scoring + ledger.flops.forward + ledger.flops.backward
    assert ledger.flops.total == total
    assert repr(ledger) == f"Ledger({kept:,} samples trained on, {total:.3g} FLOPs, 0.0 s)"


def test_a_second_model_has_flops_of_its_own_and_none_of_the_origins_units():
    ledger = Ledger()
    ledger.flops.helper += cost_of(5.0, 10.0).scoring(6)
    assert ledger.flops.total == 6 * 5.0
    ledger.note(cost_of(1.0, 1.0), trained=3, skipped=20, scored=7)
    ledger.counts.unloaded = 5
    assert ledger.origin_energy_units == pytest.approx(32.5)


@pytest.fixture
def clock(monkeypatch):
    """A hand-made clock in the place of the ledger's."""
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        "astkit.profiling.ledger.time", SimpleNamespace(perf_counter=lambda: hands.now)
    )
    return hands


def test_clocks_and_phases_add_up_also_after_errors(clock):
    ledger = Ledger()

    def work(name, phase, seconds):
        with ledger.clock(name), ledger.phase(phase):
            clock.now += seconds
            raise FloatingPointError

    for name, phase, seconds in (("training", "load", 1.0), ("training", "load", 2.5)):
        with pytest.raises(FloatingPointError):
            work(name, phase, seconds)
        clock.now += 50.0
    with pytest.raises(FloatingPointError):
        work("evaluation", "score", 4.0)
    ledger.note(cost_of(0, 0), trained=5, skipped=2)
    assert ledger.seconds == {"training": 3.5, "evaluation": 4.0}
    assert ledger.phases == {"load": 3.5, "score": 4.0}
    assert (ledger.samples_per_second, Ledger().samples_per_second) == (2.0, 0.0)
    ledger.seconds["training"] = 0.0
    assert ledger.samples_per_second == 0.0


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
        if len(x) <= 4:  # while FLOPs are counted, no clock runs
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


@pytest.mark.parametrize(
    ("gated", "cuts"), [(False, []), (True, [0]), (True, [2, 1]), (False, [1] * 12)]
)
def test_no_clock_runs_while_nobody_trains(clock, gated, cuts):
    trainer = Trainer(
        Timed(clock),
        Slow(clock, images(48), SIZE),
        Slow(clock, images(36, seed=1), 12),
        epochs=2,
        # never few rows, which would pass for those that are counted
        policy=Gate(0.35, min_active=5, fallback=5) if gated else None,
        observers=[SlowObserver(clock)],
        device="cpu",
    )

    def step_takes_five_seconds(*_):
        clock.now += 5.0

    trainer.optimizer.register_step_post_hook(step_takes_five_seconds)
    for cut in [*cuts, 1000]:
        steps = trainer.steps()
        for _ in zip(range(cut), steps, strict=False):
            clock.now += 1e6  # the reader thinks about it
        steps.close()
        clock.now += 1e7
    assert trainer.done
    train, scoring = 6 * (1 + 2 + 5), 600 if gated else 0
    # two passes of three batches each, for training and for validation
    assert trainer.ledger.seconds["evaluation"] == 6 * (10 + 100)
    assert trainer.ledger.seconds["training"] == 6 * 10 + train + scoring
    phases = {"load": 60.0, "forward": 6.0, "backward": 12.0, "optimizer": 30.0, "score": scoring}
    assert {name: trainer.ledger.phases.get(name, 0) for name in phases} == phases
    before = dict(trainer.ledger.seconds)
    trainer.evaluate(Slow(clock, images(48), SIZE))
    assert trainer.ledger.seconds["training"] == before["training"]
    assert trainer.ledger.seconds["evaluation"] == before["evaluation"] + 3 * 110


class Device:
    """Works off its queue by itself; the clock moves only while the host waits for it."""

    def __init__(self, clock):
        self.clock, self.done, self.waits = clock, 0.0, 0

    def queue(self, seconds):
        self.done = max(self.done, self.clock.now) + seconds

    def wait(self):
        self.waits += 1
        self.clock.now = max(self.clock.now, self.done)


def test_queued_training_is_training_and_nothing_waits_for_it(clock):
    device = Device(clock)
    ledger = Ledger(synchronize=device.wait)
    for _ in range(3):
        with ledger.clock("training"), ledger.phase("forward"):
            device.queue(10.0)
    assert (device.waits, ledger.seconds["training"]) == (0, 0.0)
    with ledger.clock("evaluation"):
        device.queue(1.0)
    assert ledger.seconds == {"training": 30.0, "evaluation": 1.0}
    assert device.waits == 2
    ledger.settle()
    assert device.waits == 2  # nothing of the training is left
    with ledger.clock("training"):
        device.queue(10.0)
    assert ledger.state_dict()["seconds"] == {"training": 40.0, "evaluation": 1.0}


def test_within_a_pause_neither_clock_nor_phase_nor_meter_runs(clock, machine):
    device = Device(clock)
    ledger = Ledger(synchronize=device.wait, meter=machine.meter())
    for _ in range(2):
        with ledger.clock("training"), ledger.phase("plan"):
            machine.spend(12.0, 100.0)
            device.queue(10.0)
            with ledger.paused():  # which waits for the queue, once
                clock.now += 1e6
                machine.spend(50.0, 100.0)
                device.queue(3.0)
                device.wait()
            clock.now += 1.0
    with ledger.paused():
        clock.now += 1e6
    assert ledger.seconds == {"training": 22.0, "evaluation": 0.0}
    assert ledger.phases == {"plan": 22.0}
    assert ledger.energy().joules == pytest.approx(2400, rel=0.02)


class Looks(RandomSubset):
    """Looks at features of the data before it plans."""

    def plan(self, run):
        run.features(torch.arange(8), "target")
        return super().plan(run)


def test_counting_for_a_policy_is_no_training(machine):
    class Counting(Trainer):
        def count_flops(self, model, batch):
            counted.append(time.sleep(0.1))
            return super().count_flops(model, batch)

    model = models.build("digits_cnn", (1, 8, 8), 10)
    data = Loader(images(ROWS), SIZE), Loader(images(HELD_OUT, seed=1), SIZE)
    run = Counting(model, *data, epochs=1, policy=Looks(0.5), meter=machine.meter(), device="cpu")
    run.ledger.synchronize = int  # as on a device
    counted, begun = [], time.perf_counter()
    run.run()
    passed = time.perf_counter() - begun
    assert sum(run.ledger.seconds.values()) < passed - 0.1 * len(counted)


def test_the_exchange_between_processes_counts_the_queue_it_waits_for(clock, monkeypatch):
    device = Device(clock)

    def total(*values):
        device.wait()
        return [2 * value for value in values]

    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(distributed, "total", total)
    ledger = Ledger(synchronize=device.wait)
    for expected in (14, 28):
        with ledger.clock("training"):
            device.queue(10.0)
        ledger.note(cost_of(1.0, 2.0), trained=7)
        ledger.pool()
        assert ledger.samples.trained == expected
        assert ledger.flops.total == 3.0 * expected
    assert ledger.seconds == {"training": 20.0, "evaluation": 0.0}


def test_the_state_goes_through_json_and_goes_on(machine):
    ledger = Ledger(meter=machine.meter())
    with ledger.clock("training"), ledger.phase("load"):
        machine.spend(12.0, 100.0)
    ledger.note(cost_of(1.0, 2.0, ("fft",)), trained=5, padded=torch.tensor(2))
    ledger.flops_dense = 15.0
    state = json.loads(json.dumps(ledger.state_dict()))
    restored = Ledger(meter=machine.meter())
    restored.load_state_dict(state)
    assert restored == ledger
    assert ledger.energy().joules == pytest.approx(1200, rel=0.02)
    # what is restored is a copy: going on changes neither the state nor the ledger it came from
    restored.note(cost_of(1.0, 1.0), trained=1, scored=1)
    with restored.clock("training"), restored.phase("load"):
        pass
    assert state == ledger.state_dict()
    assert restored.samples.trained == ledger.samples.trained + 1
    assert restored.seconds["training"] > ledger.seconds["training"]
    with restored.clock("training"):  # joules of a part are none of the whole
        machine.spend(12.0, 100.0)
    assert (restored.energy().joules, restored.energy().reason) == (None, "the run was resumed")
    assert Ledger().energy().reason == "no meter was given"
