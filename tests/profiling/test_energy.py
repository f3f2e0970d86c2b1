"""The meter against known joules: exact within its steps, and refused where it would not be."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astkit.profiling import EnergyMeter, EnergyReading
from astkit.profiling.energy import REUSED
from tests.profiling.conftest import Machine


def meter_of(machine):
    return EnergyMeter(counter=machine, clock=machine.clock)


def spend(meter, machine, seconds, watts, name="training"):
    with meter.window(name):
        machine.spend(seconds, watts)


# --- readings


def test_a_reading_says_its_joules_or_why_there_are_none():
    assert str(EnergyReading(5.0, "nvml", "GPU 0", 12.0)) == "5.0 J (nvml, GPU 0, 12.0 s)"
    missing = EnergyReading(None, None, "cpu", 0.0, "no readable RAPL counter here")
    assert str(missing) == "joules not measured: no readable RAPL counter here"


# --- the meter


@given(
    windows=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=40),
    watts=st.floats(50.0, 700.0),
    before=st.floats(0.0, 0.3),
)
def test_windows_without_pauses_are_off_by_one_step_at_most(windows, watts, before):
    machine = Machine()
    machine.spend(before, watts)
    meter, began = meter_of(machine), machine.now
    spend(meter, machine, 10.0, watts)
    for seconds in windows:
        spend(meter, machine, seconds, watts)
    truth = machine.spent(machine.now) - machine.spent(began)
    reading = meter.reading()
    assert reading.window_s == pytest.approx(10.0 + sum(windows))
    # a step at either end, and the tenth of one within which a reading is used again
    assert abs(reading.joules - truth) <= 1.11 * watts * machine.step_s
    assert abs(reading.joules / truth - 1) <= 0.0111


def test_energy_of_pauses_and_of_evaluation_is_left_out(machine):
    meter = meter_of(machine)
    for _ in range(20):
        spend(meter, machine, 5.0, 300.0)
        machine.spend(3.0, 50.0)  # nobody measures
        spend(meter, machine, 4.0, 120.0, "evaluation")
    for name, seconds, watts in (("training", 100.0, 300), ("evaluation", 80.0, 120)):
        assert meter.reading(name).joules == pytest.approx(seconds * watts, rel=0.02)
        assert meter.reading(name).window_s == pytest.approx(seconds)


@pytest.mark.parametrize("pause", [0.35, 1.0, 7.3])
def test_stretches_that_are_accepted_err_by_2_percent_at_most(machine, pause):
    """The worst case: nothing is drawn in the pauses, so each takes half a step's energy away."""
    random, meter = np.random.default_rng(0), meter_of(machine)
    for _ in range(300):
        spend(meter, machine, random.uniform(2.5, 3.0), 400.0)
        machine.spend(random.uniform(pause, pause + 0.1), 0.0)
    reading = meter.reading()
    assert reading.joules == pytest.approx(400.0 * reading.window_s, rel=0.02)
    assert reading.joules < 0.99 * 400.0 * reading.window_s  # the bias is there


@pytest.mark.parametrize("between", [None, "evaluation"])
def test_short_windows_between_pauses_or_evaluations_are_refused(machine, between):
    """What the rule is for: here half of the joules would be booked to the pauses."""
    meter = meter_of(machine)
    for number in range(300):
        spend(meter, machine, 0.1, 400.0)
        if between is None:
            machine.spend(0.33 + 0.0071 * (number % 10), 0.0)
        else:
            spend(meter, machine, 4.03, 300.0, between)
    assert meter.reading().joules is None
    assert meter.reading().reason.startswith("too many pauses: 0.1 s between them")
    if between is not None:
        assert meter.reading(between).joules == pytest.approx(1209 * 300, rel=0.02)


def test_short_windows_without_pauses_are_fine_and_seldom_read(machine):
    meter = meter_of(machine)
    for _ in range(3000):
        spend(meter, machine, 0.004, 400.0)
        machine.spend(0.0001, 400.0)  # shorter than a step: no pause
    assert meter.reading().joules == pytest.approx(3000 * 0.0041 * 400, rel=0.02)
    assert machine.reads <= 12.3 / 0.01 + 1  # every tenth of a step, of 6,000 edges


@pytest.mark.parametrize(
    ("windows", "gap"),
    [
        ([0.0095], 0.0004),
        ([0.0098], 0.0004),
        ([0.0005, 0.0085], 0.0004),
        ([0.0005, 0.0085], 0.0113),
        ([0.012], 0.0113),
        ([0.005], 0.05),
    ],
)
def test_no_energy_is_lost_between_short_windows(machine, windows, gap):
    """Whatever the length of a window, and whether a reading is reused at its edges or not."""
    meter = meter_of(machine)
    while meter.reading().window_s < 12:
        for seconds in windows:
            spend(meter, machine, seconds, 300.0)
            machine.spend(gap, 300.0)
    joules, measured = meter.reading().joules, 300.0 * meter.reading().window_s
    share = gap / np.mean(windows) if gap < REUSED * machine.step_s else 0.0
    assert 0.98 * measured < joules < (1.02 + share) * measured


def test_a_total_below_100_steps_of_the_counter_is_refused(machine):
    meter = meter_of(machine)
    spend(meter, machine, 9.99, 400.0)
    assert meter.reading().joules is None
    assert meter.reading().reason == "too short: 9.99 s measured, at least 10 s needed"
    spend(meter, machine, 0.02, 400.0)
    assert meter.reading().joules == pytest.approx(10.01 * 400, rel=0.02)
    assert "0.00 s measured" in meter.reading("evaluation").reason
    fine = Machine(step_s=0.001)
    meter = meter_of(fine)
    spend(meter, fine, 0.2, 40.0)
    assert meter.reading().joules == pytest.approx(8.0, rel=0.02)


def test_a_counter_that_fails_once_spoils_that_total_alone(machine):
    meter = meter_of(machine)
    spend(meter, machine, 12.0, 300.0, "evaluation")
    machine.failing = True
    spend(meter, machine, 12.0, 300.0)
    machine.failing = False
    spend(meter, machine, 12.0, 300.0)
    assert meter.reading().reason == "the cable is out"
    assert meter.reading("evaluation").joules == pytest.approx(3600, rel=0.02)
    spend(meter, machine, 12.0, 0.0, "idle")
    assert meter.reading("idle").joules is None
    assert "did not move" in meter.reading("idle").reason


def test_windows_do_not_nest_and_close_on_errors(machine):
    meter = meter_of(machine)
    with (
        meter.window(),
        pytest.raises(RuntimeError, match="'training' is still open"),
        meter.window("evaluation"),
    ):
        pass

    @meter.window()
    def diverge():
        machine.spend(12.0, 100.0)
        raise FloatingPointError

    with pytest.raises(FloatingPointError):
        diverge()
    assert meter.reading().joules == pytest.approx(1200, rel=0.02)
    assert "evaluation" not in meter.state_dict()["accounts"]


def test_the_state_is_continued_and_joules_of_two_counters_are_not_added(machine):
    meter = meter_of(machine)
    spend(meter, machine, 6.0, 100.0)
    state = json.loads(json.dumps(meter.state_dict()))
    restored = meter_of(machine)
    machine.spend(100.0, 80.0)  # away
    restored.load_state_dict(state)
    assert restored.state_dict() == state
    spend(restored, machine, 6.0, 100.0)
    assert restored.reading().window_s == 12.0
    assert restored.reading().joules == pytest.approx(1200, rel=0.02)
    assert meter.reading().joules is None  # the first meter was not carried along
    elsewhere = Machine(scope="another bench")
    other = meter_of(elsewhere)
    other.load_state_dict(state)
    for name in ("training", "evaluation"):
        spend(other, elsewhere, 20.0, 100.0, name)
    assert "fake on test bench, then by fake on another bench" in other.reading().reason
    assert other.reading("evaluation").joules == pytest.approx(2000, rel=0.02)


def test_without_a_counter_the_time_is_kept_and_the_reason_given(machine, nothing):
    meter = EnergyMeter("cpu", clock=machine.clock)
    spend(meter, machine, 12.0, 100.0)
    reading = meter.reading()
    assert meter.counter is None
    assert (reading.joules, reading.backend, reading.scope) == (None, None, "cpu")
    assert reading.window_s == 12.0
    later = meter_of(machine)
    later.load_state_dict(meter.state_dict())
    spend(later, machine, 12.0, 100.0)
    assert "measured by no counter, then by fake" in later.reading().reason


@pytest.mark.parametrize(
    ("device", "why"), [("cpu", "no readable RAPL counter here"), ("cuda", "no NVML: install")]
)
def test_nothing_to_read_is_none_with_a_reason_and_asks_no_network(
    nothing, monkeypatch, device, why
):
    def refuse(*arguments, **options):
        raise AssertionError("asked the network")

    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    clock = iter(range(0, 1000, 20))
    meter = EnergyMeter(device, clock=lambda: next(clock))
    with meter.window():
        pass
    assert meter.reading().joules is None
    assert meter.reading().reason.startswith(why)
