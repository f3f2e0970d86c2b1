"""Runs whose policy is switched off and on. All clocks are fake."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from astkit.trainers.switching import BEGIN, WARMUP, WINDOW, Switch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.datasets import Loader
from astkit.gating import Policy, RandomSubset, Selection
from astkit.trainers import Budget, Event, TrainConfig, Trainer, switching
from tests.trainers.states import hand_over, leave_after, same, timeless

ROWS, SIZE = 320, 8
FIRST = WARMUP + BEGIN  # steps of the first probe
DECIDED = FIRST + WARMUP + WINDOW  # the first step after which a policy may be switched off


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
    """A trainer with a policy of ``kind`` that loses or pays, on a clock of its own.

    A paying `Half` takes longer than dense training per trained row, and less per offered row.
    """
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
            policy=policy or kind(clock, 2**-5 if loses else 2**-8 * (kind is Half)),
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
    few = finish(make(policy=RandomSubset(0.05), epochs=2)).history.steps  # 2 batches a plan
    assert [step["progress"] for step in few] == sorted(step["progress"] for step in few)
    assert max(step["lr"] for step in few) == few[0]["lr"]


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


def test_changes_before_any_step_was_timed_are_replayed(make):
    events = [Event(2, "selection", "off"), Event(5, "selection", "on")]
    run = finish(make(loses=False, switch_off=False, replay=events, epochs=1))
    assert run.steering.events == events


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


class Later(Half):
    """Leaves rows of its first round for the second, selects none there, and scores three."""

    rounds = 2

    def plan(self, run):
        kept = run.rows[: 0 if run.round else len(run.rows) - 3]
        return Selection(kept, score_only=run.rows[-3:])


def test_loading_rows_that_are_only_scored_is_measured_and_rows_left_over_are_trained_on(
    make, monkeypatch
):
    run = make(Later, loses=False, epochs=1, switch_off=False)
    plain, given = Loader.batches, []

    def slow(loader, epoch, order=None, start=0):
        for batch in plain(loader, epoch, order, start):
            run.policy.clock.now += 1.0
            given.append(batch.rows)
            yield batch

    monkeypatch.setattr(Loader, "batches", slow)
    finish(run)
    assert run.ledger.samples.trained == ROWS // 2 - 3
    assert run.ledger.samples.scored == 3  # a run does not score after its last step
    assert run.ledger.phases["load"] == len(given)
