"""Selection is switched off where it costs time, and only there. All clocks are fake."""

from __future__ import annotations

import copy
import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.datasets import Loader
from astkit.gating import Policy, RandomSubset, Selection
from astkit.trainers import Budget, Event, TrainConfig, Trainer, switching
from astkit.trainers.switching import BEGIN, PROBE, SHARE, WARMUP, WINDOW, Switch
from tests.trainers.states import hand_over, leave_after, same, timeless

ROWS, SIZE = 320, 8
FIRST = WARMUP + BEGIN  # steps of the first probe
DECIDED = FIRST + WARMUP + WINDOW  # the first step after which a policy may be switched off


# --- the decision alone


def drive(switch, cost, steps, may_probe=lambda step: True, rows=100):
    """Events of ``steps`` steps that take ``cost(selecting, step)`` seconds each, and the time.

    Also the seconds of the probes after the first.
    """
    now, probes, events = switch.mark, 0.0, []
    for step in range(1, steps + 1):
        seconds = cost(switch.selecting, step)
        now, probes = now + seconds, probes + seconds * switch.probing
        event = switch.step_ended(step, now, rows, may_probe(step))
        events += [] if event is None else [event]
    return events, now, probes


def test_a_policy_made_to_lose_is_switched_off_after_30_steps_with_one_sentence():
    switch = Switch("RandomSubset")
    with pytest.warns(UserWarning, match="is switched off") as told:
        events, _, _ = drive(switch, lambda selecting, _: 0.011 if selecting else 0.01, 20_000)
    assert events[:2] == [Event(FIRST, "probe", "on"), Event(DECIDED, "selection", "off")]
    assert {event.name for event in events[2:]} == {"probe"}
    assert len(told) == 1
    assert str(told[0].message) == (
        "RandomSubset is switched off: it takes a median of 0.00011 s per offered row, and dense"
        " training 0.0001 s; training continues on all rows, and short probes test the policy again"
    )


def test_one_that_pays_stays_on_and_so_does_one_at_the_same_cost():
    for cost in (1, 4):
        switch = Switch("RandomSubset")
        events, _, _ = drive(switch, lambda selecting, _, c=cost: c if selecting else 4, 20_000)
        assert len(events) > 3
        assert {event.name for event in events} == {"probe"}
        assert switch.selecting or switch.probing


def test_the_median_forgives_single_slow_steps_and_warm_up():
    def cost(selecting, step):
        slow = selecting and (step <= FIRST + WARMUP or step % 3 == 0)
        return 1.0 if slow else 0.009 if selecting else 0.01

    switch = Switch("RandomSubset")
    drive(switch, cost, DECIDED + 100)
    assert switch.switched == "on"


@pytest.mark.parametrize("selection", [0.002, 0.009, 0.011, 0.03])
@pytest.mark.filterwarnings("ignore:RandomSubset is switched off")
def test_probes_after_the_first_take_at_most_half_a_percent_of_the_time(selection):
    def cost(selecting, step):
        return selection if selecting else 0.01

    switch = Switch("RandomSubset")
    _, now, probes = drive(switch, cost, 30_000)
    assert 0.5 * SHARE * now < probes <= SHARE * now + 1e-9
    assert probes == pytest.approx(switch.probed)


@pytest.mark.filterwarnings("ignore:RandomSubset is switched off")
def test_a_probe_that_becomes_dearer_than_allowed_is_broken_off():
    def cost(selecting, step):
        return 0.01 if not selecting else 0.011 if step < 1000 else 1.0

    switch = Switch("RandomSubset")
    _, now, probes = drive(switch, cost, 20_000)
    assert probes <= SHARE * now + 1.0  # by one step at most


@pytest.mark.filterwarnings("ignore:x is switched off")
def test_it_comes_back_on_when_it_pays_again_and_follows_a_dearer_dense_step():
    def cost(selecting, step):
        return 0.01 if not selecting else 0.02 if step < 8_000 else 0.005

    decided = [e for e in drive(Switch("x"), cost, 20_000)[0] if e.name == "selection"]
    assert [event.value for event in decided] == ["off", "on"]
    assert decided[1].step > 8_000

    def later(selecting, step):  # dense training becomes faster than selection
        return 0.01 if selecting else 0.02 if step < 8_000 else 0.005

    decided = [e for e in drive(Switch("x"), later, 20_000)[0] if e.name == "selection"]
    assert [event.value for event in decided] == ["off"]
    assert decided[0].step > 8_000


@pytest.mark.filterwarnings("ignore:x is switched off")
def test_a_machine_that_becomes_slower_does_not_keep_a_policy_off():
    def cost(selecting, step):
        return (4 if selecting else 5) * (1 if step < 500 else 2)

    events, _, _ = drive(Switch("x"), cost, 1_500)
    off, on = [event for event in events if event.name == "selection"]
    assert (off.value, on.value) == ("off", "on")
    assert 500 < off.step < 500 + WINDOW
    assert on.step == off.step + WARMUP + PROBE


def test_no_probe_of_dense_training_begins_within_a_round():
    events, _, _ = drive(Switch("x"), lambda *_: 1, 20_000, lambda step: step % 700 == 0)
    begun = [event.step for event in events if event.value == "probe dense"]
    assert begun
    assert not any(step % 700 for step in begun)


@pytest.mark.filterwarnings("ignore:x is switched off")
def test_costs_of_a_round_are_divided_by_its_candidates():
    for planning, kept in ((0.9, "on"), (1.1, "off")):  # for 10,000 rows at 0.0001 s each
        switch, now = Switch("x"), 0.0
        for step in range(1, DECIDED + 1):
            if switch.selecting and step % 20 == 0:
                for part in ("plan", "score"):
                    now += planning / 4
                    switch.round_cost(part, now, 5_000)
            now += 0.0 if switch.selecting else 0.01
            switch.step_ended(step, now, 100, True)
        assert switch.switched == kept


@pytest.mark.filterwarnings("ignore:x is switched off")
def test_a_switch_continues_from_its_state_and_repeats_recorded_events():
    def cost(selecting, step):
        return (0.375 if step < 900 else 1 / 64) * (1 + step % 7) if selecting else 1

    whole = Switch("x")
    events, _, _ = drive(whole, cost, 9_000)
    assert {"on", "off"} <= {event.value for event in events if event.name == "selection"}
    for cut in (1, FIRST, DECIDED, events[3].step + 2):
        first, second = Switch("x"), Switch("x")
        before, _, _ = drive(first, cost, cut)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        now, after = second.mark, []
        for step in range(cut + 1, 9_001):
            now += cost(second.selecting, step)
            after += [event for event in [second.step_ended(step, now, 100, True)] if event]
        assert before + after == events
    repeated = Switch("x", {event.step: event for event in events})
    assert drive(repeated, lambda selecting, step: 0.01 + selecting, 9_000)[0] == events


# --- in a run


class Clock:
    now = 0.0


class Costing(nn.Module):
    """A linear model: 1/1024 s a row in training, ``scoring`` s a row in scoring; all exact."""

    def __init__(self, clock, scoring):
        super().__init__()
        self.linear, self.clock, self.scoring = nn.Linear(4, 3), clock, scoring

    def forward(self, x):
        if len(x) > 2:  # not the two rows of the FLOP count
            self.clock.now += len(x) * (2**-10 if self.training else self.scoring)
        return self.linear(x)


class Half(Policy):
    """Plans the first half of the candidates; observes, which takes ``seconds`` a batch."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.plans, self.visits = clock, seconds, 0, 0

    def plan(self, run):
        self.plans += 1
        return Selection(run.rows[: len(run.rows) // 2])

    def observe(self, visit):
        self.clock.now += self.seconds
        self.visits += 1

    def config(self):
        return {}


class Chooses(Half):
    """Chooses the first half of a scored batch."""

    plan = Policy.plan

    def choose(self, batch):
        return Selection(batch.losses.argsort()[: batch.rows // 2])


@pytest.fixture
def make(monkeypatch):
    """A trainer with a policy of ``kind`` that loses or pays, on a clock of its own."""
    clock = Clock()
    monkeypatch.setattr(
        "astkit.profiling.ledger.time", SimpleNamespace(perf_counter=lambda: clock.now)
    )

    def build(kind=Half, loses=True, epochs=4, policy=None, switch_off=True, **options):
        with rng.isolated("cpu", 0):
            data = TensorDataset(torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,)))
            model = Costing(clock, 2**-13)
        return Trainer(
            model,
            Loader(data, SIZE),
            policy=policy or kind(clock, 2**-5 if loses else 0.0),
            budget=Budget(epochs=epochs),
            config=TrainConfig(switch_off=switch_off),
            device="cpu",
            **options,
        )

    return build


def finish(run):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is switched off")
        run.run()
    return run


@pytest.mark.parametrize("kind", [Half, Chooses])
def test_a_losing_policy_ends_as_dense_training(make, kind):
    run = make(kind)
    with pytest.warns(UserWarning, match=f"{kind.__name__} is switched off") as told:
        run.run()
    assert len([each for each in told if "switched off" in str(each.message)]) == 1
    steps, events = run.history.steps, run.history.events
    assert events[:2] == [
        {**events[0], "step": FIRST, "name": "probe", "value": "on"},
        {**events[1], "step": DECIDED, "name": "selection", "value": "off"},
    ]
    dense = [*steps[:FIRST], *steps[DECIDED:]]
    assert all(step["trained"] == step["seen"] for step in dense)
    observed = run.policy.visits
    assert WARMUP + WINDOW <= observed <= 2 * (WARMUP + WINDOW)  # chosen rows, and the others
    progress = [step["progress"] for step in steps]
    assert progress == sorted(progress)
    saved = (WARMUP + WINDOW) * SIZE * (1 if kind is Half else 0.5)
    assert run.ledger.samples.trained == pytest.approx(4 * ROWS - saved, abs=SIZE)
    assert run.position.epoch == 4
    assert run.steering.events
    assert not run.steering.steered  # nobody changed a setting by hand


@pytest.mark.parametrize("kind", [Half, Chooses])
def test_a_policy_that_pays_stays_on(make, kind):
    run = finish(make(kind, loses=False))
    assert [event["name"] for event in run.history.events] == ["probe"]
    counts = run.ledger.samples
    assert counts.trained == pytest.approx(2 * ROWS + FIRST * SIZE / 2, abs=SIZE)
    assert counts.trained + counts.skipped + counts.unloaded == pytest.approx(4 * ROWS, abs=SIZE)


def test_the_first_probe_is_a_part_of_the_first_epoch_and_the_plan_follows(make):
    run = finish(make(policy=RandomSubset(0.5), epochs=1))
    trained = [step["trained"] for step in run.history.steps]
    assert trained == [SIZE] * (FIRST + (ROWS // SIZE - FIRST) // 2)


def test_probes_change_between_plan_and_all_rows_in_a_long_run(make, monkeypatch):
    monkeypatch.setattr(switching, "SHARE", 0.1)
    run = finish(make(Half, epochs=20))
    values = [event["value"] for event in run.history.events]
    assert values[:4] == ["on", "off", "probe selection", "off"]
    assert values.count("probe selection") == values.count("off") - 1
    assert 2 < run.policy.plans < 10
    assert 0 < run.switch.probed <= 0.1 * run.ledger.seconds["training"]
    paying = finish(make(Half, loses=False, epochs=40))
    events = paying.history.events
    assert [event["value"] for event in events][:4] == ["on", "probe dense", "on", "probe dense"]
    dense = {event["step"] for event in events if event["value"] == "probe dense"}
    shares = [step["of_epoch"] for step in paying.history.steps if step["step"] in dense]
    assert shares == [1.0] * len(dense)  # the plan of a round is not broken off for a probe
    progress = [step["progress"] for step in run.history.steps]
    assert progress == sorted(progress)


def test_with_the_switch_off_by_default_nothing_is_decided(make):
    run = finish(make(loses=True, switch_off=False))
    assert run.switch is None
    assert not run.history.events
    assert run.selecting


def test_a_run_without_a_policy_has_nothing_to_switch():
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
    config = TrainConfig(switch_off=True)
    assert Trainer(nn.Linear(4, 3), Loader(data, 4), epochs=1, config=config).switch is None


@pytest.mark.parametrize("kind", [Half, Chooses])
def test_a_resumed_run_goes_on_as_it_was(make, kind):
    whole = finish(make(kind))
    for cut in (4, FIRST, DECIDED - 5, DECIDED + 3):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* is switched off")
            first = leave_after(make(kind), cut)
        second = finish(hand_over(first, make(kind)))
        assert same(second.model.state_dict(), whole.model.state_dict())
        assert second.steering.events == whole.steering.events
        assert same(second.switch.state_dict(), whole.switch.state_dict())


@pytest.mark.filterwarnings("ignore:Half is switched off")
def test_a_checkpoint_holds_the_state_of_the_switch(make, tmp_path):
    whole = finish(make())
    leave_after(make(checkpoints=tmp_path), DECIDED - 5)
    second = finish(make(checkpoints=tmp_path, resume=True))
    assert second.history.events == whole.history.events
    assert same(second.switch.state_dict(), whole.switch.state_dict())
    assert same(second.model.state_dict(), whole.model.state_dict())
    with pytest.raises(ValueError, match="switch_off was True and is False"):
        make(checkpoints=tmp_path, resume=True, switch_off=False)


@pytest.mark.parametrize("kind", [Half, Chooses])
def test_a_replayed_run_makes_the_same_choices_on_any_clock(make, kind):
    first = finish(make(kind))
    events = copy.deepcopy(first.steering.events)
    again = finish(make(kind, loses=False, switch_off=False, replay=events))
    assert again.steering.events == events
    assert timeless(again.history.steps) == timeless(first.history.steps)
    assert same(again.model.state_dict(), first.model.state_dict())


@pytest.mark.parametrize(
    "policy",
    ["cached_loss", "infobatch", "kakurenbo", "repb", "seta", "selective_backprop"],
)
def test_policies_of_the_field_can_be_changed_at_any_step(make, policy, monkeypatch):
    following = {"start": "on", "on": "off", "off": "probe selection", "probe selection": "on"}

    def scripted(switch, now, may_probe):
        drawn = rng.generator(switch.since, "mode", round(now * 1024))
        switch.told = True  # nothing is announced
        return following[switch.mode] if torch.rand(1, generator=drawn) < 0.15 else None

    monkeypatch.setattr(Switch, "_decided", scripted)
    run = finish(make(policy=policy, epochs=3))
    assert len(run.history.events) > 6
    assert run.position.epoch == 3
    progress = [step["progress"] for step in run.history.steps]
    assert progress == sorted(progress)
    counts = run.ledger.samples
    passed = counts.trained + counts.skipped + counts.unloaded
    assert passed == pytest.approx(3 * ROWS, rel=0.05)
    part = finish(
        hand_over(leave_after(make(policy=policy, epochs=3), 50), make(policy=policy, epochs=3))
    )
    assert same(part.model.state_dict(), run.model.state_dict())
    assert part.steering.events == run.steering.events
