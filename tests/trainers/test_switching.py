"""The decision: selection is switched off where it costs time, and only there."""

from __future__ import annotations

import json

import pytest
from astkit.trainers.switching import BEGIN, PROBE, SHARE, WARMUP, WINDOW, Switch

from astkit.trainers import Event

FIRST = WARMUP + BEGIN  # steps of the first probe
DECIDED = FIRST + WARMUP + WINDOW  # the first step after which a policy may be switched off


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


@pytest.mark.filterwarnings("ignore:x is switched off")
def test_a_plan_in_a_probe_counts_as_time_of_the_probe():
    switch, now, probes, selecting = Switch("x"), 0.0, 0.0, False
    for step in range(1, 20_000):
        if switch.selecting and not selecting:  # a plan, which takes as long as 20 steps
            now += 20
            probes += 20 * switch.probing
            switch.round_cost("plan", now, 10_000)
        selecting = switch.selecting
        now += 1 + selecting
        probes += (1 + selecting) * switch.probing
        switch.step_ended(step, now, 100, True)
        assert probes == switch.probed
        assert probes <= SHARE * now
    assert probes > 0


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
