"""Energy: known joules from fake counters, and the reason wherever there are none."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import timeit
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astkit.profiling import EnergyMeter, EnergyReading, compare_energy, estimated, saved
from astkit.profiling.energy import meter as meters
from astkit.profiling.energy import nvml, rapl
from astkit.profiling.energy.nvml import NvmlPower
from astkit.profiling.energy.rapl import RaplCounter
from astkit.profiling.energy.reading import UnavailableError


class Machine:
    """A clock and a counter of what it draws, which moves in steps like the real ones."""

    backend, scope = "fake", "test bench"

    def __init__(self, step_s=0.1):
        self.step_s, self.now = step_s, 1000.0
        self._times, self._joules = [0.0, self.now], [0.0, 50.0]
        self.reads, self.closed, self.failing = 0, False, False

    def clock(self):
        return self.now

    def spend(self, seconds, watts):
        self.now += seconds
        self._times.append(self.now)
        self._joules.append(self._joules[-1] + seconds * watts)

    def spent(self, at):
        return float(np.interp(at, self._times, self._joules))

    def read(self):
        self.reads += 1
        if self.failing:
            raise UnavailableError("the cable is out")
        return (self.spent(math.floor(self.now / self.step_s) * self.step_s),)

    def joules(self, before, after, seconds):
        return after[0] - before[0]

    def close(self):
        self.closed = True


@pytest.fixture
def machine():
    return Machine()


def meter_of(machine):
    return EnergyMeter(counter=machine, clock=machine.clock)


def spend(meter, machine, seconds, watts, name="training"):
    with meter.window(name):
        machine.spend(seconds, watts)


# --- readings


READING = EnergyReading(5.0, "measured", "nvml", "GPU 0", 12.0)


def test_a_reading_says_its_joules_or_why_there_are_none():
    assert str(READING) == "5.0 J (nvml, GPU 0, 12.0 s)"
    missing = EnergyReading(None, "measured", None, "cpu", 0.0, "no readable RAPL counter here")
    assert str(missing) == "joules not measured: no readable RAPL counter here"


@pytest.mark.parametrize("joules", [0.0, -1.0, math.nan, math.inf])
def test_a_reading_is_never_zero_or_nonsense(joules):
    with pytest.raises(ValueError, match="above 0"):
        replace(READING, joules=joules)


@pytest.mark.parametrize(("joules", "reason"), [(None, None), (None, ""), (1.0, "too short")])
def test_a_reading_holds_exactly_one_of_joules_and_reason(joules, reason):
    with pytest.raises(ValueError, match="exactly one"):
        replace(READING, joules=joules, reason=reason)


def test_a_saving_is_a_share_of_the_dense_joules():
    assert saved(replace(READING, joules=2.0), READING) == pytest.approx(0.6)
    assert saved(replace(READING, joules=7.5), READING) == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (replace(READING, joules=None, reason="too short"), "joules not measured: too short"),
        (estimated(100.0, 12.0, "GPU 0"), "estimated, not measured"),
        (replace(READING, backend="nvml-power"), "same counter and scope"),
        (replace(READING, scope="GPU 1"), "same counter and scope"),
    ],
)
def test_a_saving_needs_two_measurements_of_one_kind(other, match):
    for pair in ((other, READING), (READING, other)):
        with pytest.raises(ValueError, match=match):
            saved(*pair)


def test_watts_are_the_users_and_labelled():
    reading = estimated(100.0, 12.0, "GPU 0")
    assert (reading.joules, reading.kind) == (1200.0, "estimated")
    assert "estimated" in str(reading)
    assert "100 W given by the user" in str(reading)
    with pytest.raises(ValueError, match="above 0"):
        estimated(0.0, 12.0, "GPU 0")


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


def test_energy_of_pauses_and_of_evaluation_is_left_out():
    machine = Machine()
    meter = meter_of(machine)
    for _ in range(20):
        spend(meter, machine, 5.0, 300.0)
        machine.spend(3.0, 50.0)  # nobody measures
        spend(meter, machine, 4.0, 120.0, "evaluation")
    assert meter.reading().joules == pytest.approx(20 * 5 * 300, rel=0.02)
    assert meter.reading("evaluation").joules == pytest.approx(20 * 4 * 120, rel=0.02)
    assert meter.reading().window_s == pytest.approx(100.0)
    assert meter.reading("evaluation").window_s == pytest.approx(80.0)


@pytest.mark.parametrize("pause", [0.35, 1.0, 7.3])
def test_stretches_that_are_accepted_err_by_2_percent_at_most(pause):
    """The worst case: nothing is drawn in the pauses, so each takes half a step's energy away."""
    machine, random = Machine(), np.random.default_rng(0)
    meter = meter_of(machine)
    for _ in range(300):
        spend(meter, machine, random.uniform(2.5, 3.0), 400.0)
        machine.spend(random.uniform(pause, pause + 0.1), 0.0)
    reading = meter.reading()
    assert reading.joules == pytest.approx(400.0 * reading.window_s, rel=0.02)
    assert reading.joules < 0.99 * 400.0 * reading.window_s  # the bias is there


def test_short_windows_between_pauses_are_refused():
    """What the rule is for: here half of the joules would be booked to the pauses."""
    machine = Machine()
    meter = meter_of(machine)
    for number in range(300):
        spend(meter, machine, 0.1, 400.0)
        machine.spend(0.33 + 0.0071 * (number % 10), 0.0)
    reading = meter.reading()
    assert reading.joules is None
    assert reading.reason.startswith("too many pauses: 0.1 s between them")


def test_short_windows_between_evaluations_are_refused(machine):
    meter = meter_of(machine)
    for _ in range(300):
        spend(meter, machine, 0.1, 400.0)
        spend(meter, machine, 4.03, 300.0, "evaluation")
    assert meter.reading().reason.startswith("too many pauses: 0.1 s between them")
    assert meter.reading("evaluation").joules == pytest.approx(1209 * 300, rel=0.02)


def test_short_windows_without_pauses_are_fine(machine):
    meter = meter_of(machine)
    for _ in range(3000):
        spend(meter, machine, 0.004, 400.0)
        machine.spend(0.0001, 400.0)  # shorter than a step: no pause
    assert meter.reading().joules == pytest.approx(3000 * 0.0041 * 400, rel=0.02)


def test_a_total_below_ten_seconds_of_a_gpu_is_refused(machine):
    meter = meter_of(machine)
    spend(meter, machine, 9.99, 400.0)
    reading = meter.reading()
    assert reading.joules is None
    assert reading.reason == "too short: 9.99 s measured, at least 10 s needed"
    spend(meter, machine, 0.02, 400.0)
    assert meter.reading().joules == pytest.approx(10.01 * 400, rel=0.02)
    assert "at least 60 s" in meter.reading(min_window_s=60.0).reason
    assert "0.00 s measured" in meter.reading("evaluation").reason


def test_finer_counters_need_shorter_windows():
    machine = Machine(step_s=0.001)
    meter = meter_of(machine)
    spend(meter, machine, 0.2, 40.0)
    assert meter.reading().joules == pytest.approx(8.0, rel=0.02)


def test_a_slow_counter_is_not_read_in_every_short_step(machine):
    meter = meter_of(machine)
    for _ in range(11_000):
        spend(meter, machine, 0.001, 400.0)
    assert machine.reads <= 1101  # every tenth of a step, of 22,000 edges
    assert meter.reading().joules == pytest.approx(11 * 400, rel=0.02)


def test_a_counter_that_fails_once_spoils_that_total_alone(machine):
    meter = meter_of(machine)
    spend(meter, machine, 12.0, 300.0, "evaluation")
    machine.failing = True
    spend(meter, machine, 12.0, 300.0)
    machine.failing = False
    spend(meter, machine, 12.0, 300.0)
    assert meter.reading().reason == "the cable is out"
    assert meter.reading("evaluation").joules == pytest.approx(3600, rel=0.02)


def test_a_counter_that_does_not_move_measures_nothing(machine):
    meter = meter_of(machine)
    spend(meter, machine, 12.0, 0.0)
    assert meter.reading().joules is None
    assert "did not move" in meter.reading().reason


def test_windows_do_not_nest_and_close_on_errors(machine):
    meter = meter_of(machine)
    with pytest.raises(RuntimeError, match="no window is open"):
        meter.stop()
    meter.start()
    with pytest.raises(RuntimeError, match="'training' is still open"):
        meter.start("evaluation")
    meter.stop()

    @meter.window()
    def diverge():
        machine.spend(12.0, 100.0)
        raise FloatingPointError

    with pytest.raises(FloatingPointError):
        diverge()
    assert meter.reading().joules == pytest.approx(1200, rel=0.02)
    assert "evaluation" not in meter.state_dict()["accounts"]


def test_the_state_goes_through_json_and_goes_on(machine):
    meter = meter_of(machine)
    spend(meter, machine, 6.0, 100.0)
    spend(meter, machine, 3.0, 50.0, "evaluation")
    state = json.loads(json.dumps(meter.state_dict()))
    restored = meter_of(machine)
    machine.spend(100.0, 80.0)  # away
    restored.load_state_dict(state)
    assert restored.state_dict() == state
    spend(restored, machine, 6.0, 100.0)
    assert restored.reading().window_s == 12.0
    assert restored.reading().joules == pytest.approx(1200, rel=0.02)
    assert meter.reading().joules is None  # the first meter was not carried along


def test_joules_of_two_counters_are_not_added(machine):
    meter = meter_of(machine)
    spend(meter, machine, 20.0, 100.0)
    elsewhere = Machine()
    elsewhere.scope = "another bench"
    other = meter_of(elsewhere)
    other.load_state_dict(meter.state_dict())
    spend(other, elsewhere, 20.0, 100.0)
    spend(other, elsewhere, 20.0, 100.0, "evaluation")
    assert "fake on test bench, then by fake on another bench" in other.reading().reason
    assert other.reading("evaluation").joules == pytest.approx(2000, rel=0.02)


def test_without_a_counter_the_time_is_kept_and_the_reason_given(machine, nothing):
    meter = EnergyMeter("cpu", clock=machine.clock)
    spend(meter, machine, 12.0, 100.0)
    assert not meter.available
    reading = meter.reading()
    assert (reading.joules, reading.backend, reading.scope) == (None, None, "cpu")
    assert reading.window_s == 12.0
    assert str(reading).startswith("joules not measured: no readable RAPL counter here")
    later = meter_of(machine)
    later.load_state_dict(meter.state_dict())
    spend(later, machine, 12.0, 100.0)
    assert "measured by no counter, then by fake" in later.reading().reason
    meter.close()


def test_a_meter_hands_its_counter_back(machine):
    meter = meter_of(machine)
    assert meter.available
    meter.close()
    assert machine.closed


# --- nothing to read


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """An x86 machine without NVML, RAPL or zeus."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "zeus.device", None)
    monkeypatch.setattr(meters, "RaplCounter", lambda: RaplCounter(tmp_path / "powercap"))
    monkeypatch.setattr(meters.platform, "machine", lambda: "x86_64")
    return tmp_path


REASONS = {
    "cpu": "no readable RAPL counter here",
    "cuda": "no NVML: install astkit[energy]",
    "mps": "no zeus",
    "xpu": "no zeus",
}


@pytest.mark.parametrize("device", REASONS)
def test_nothing_to_read_is_none_with_a_reason_and_asks_no_network(nothing, monkeypatch, device):
    def refuse(*arguments, **options):
        raise AssertionError("asked the network")

    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    clock = iter(range(0, 1000, 20))
    meter = EnergyMeter(device, clock=lambda: next(clock))
    with meter.window():
        pass
    reading = meter.reading()
    assert reading.joules is None
    assert reading.reason.startswith(REASONS[device])
    compared = compare_energy({"dense": list, "gated": list}, device=device)
    assert compared.reason == reading.reason
    assert "saved" not in f"{reading} {compared}"
    assert "%" not in f"{reading} {compared}"


# --- NVML


class FakeNvml(ModuleType):
    """As much of pynvml as is used; ``energy`` (mJ) and ``power`` (mW) may be errors."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        def __str__(self):
            return "Not Supported"

    class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
        def __str__(self):
            return "NVML Shared Library Not Found"

    def __init__(self):
        super().__init__("pynvml")
        self.energy, self.power, self.users, self.asked = 1000, 250_000, 0, []
        self.library = True

    def nvmlInit(self):  # noqa: N802
        if not self.library:
            raise self.NVMLError_LibraryNotFound
        self.users += 1

    def nvmlShutdown(self):  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.asked.append(uuid)
        return f"handle of {uuid}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self._answer(handle, self.energy)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._answer(handle, self.power)

    def _answer(self, handle, value):
        assert self.users > 0, "Uninitialized"
        assert handle == "handle of GPU-11-22"
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def gpu(nothing, monkeypatch):
    """A fake pynvml and torch's view of the GPU."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    known = {1: SimpleNamespace(uuid="11-22", name="Fake GPU")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return fake


def test_nvml_counts_millijoules(gpu, machine):
    meter = EnergyMeter("cuda:1", clock=machine.clock)
    meter.start()
    gpu.energy = 6000
    machine.now += 12.0
    meter.stop()
    assert meter.reading().joules == 5.0
    assert str(meter.reading()) == "5.0 J (nvml, GPU 1 (Fake GPU), whole board, 12.0 s)"
    assert gpu.asked == ["GPU-11-22"]  # by UUID: NVML does not know CUDA_VISIBLE_DEVICES
    meter.close()
    assert gpu.users == 0


def test_a_device_without_a_number_is_the_current_one(gpu):
    meter = EnergyMeter("cuda")
    assert meter.counter.scope.startswith("GPU 1 ")
    meter.close()


def test_nvml_set_back_is_none_and_never_negative(gpu, machine):
    meter = EnergyMeter("cuda:1", clock=machine.clock)
    for energy in (90_000, 10, 90_000):
        with meter.window():
            gpu.energy = energy
            machine.now += 12.0
    assert meter.reading().joules is None
    assert "went back" in meter.reading().reason


def test_a_gpu_that_is_lost_is_a_reason(gpu, machine):
    meter = EnergyMeter("cuda:1", clock=machine.clock)
    with meter.window():
        machine.now += 12.0
        gpu.energy = gpu.NVMLError("GPU is lost")
    assert "GPU is lost" in meter.reading().reason


@pytest.mark.parametrize("broken", ["energy", "power"])
def test_nvml_without_either_counter_is_a_reason(gpu, broken):
    gpu.energy = gpu.NVMLError_NotSupported()
    gpu.power = gpu.NVMLError_NotSupported()
    if broken == "energy":  # any other error is not a reason to poll
        gpu.energy, gpu.power = gpu.NVMLError("No Permission"), 250_000
    reason = EnergyMeter("cuda:1").reading().reason
    assert reason.startswith("NVML reads neither energy nor power of cuda:1 (No")
    assert gpu.users == 0


def test_nvml_without_its_library_is_a_reason(gpu):
    gpu.library = False
    reason = EnergyMeter("cuda:1").reading().reason
    assert reason == "no NVML (NVML Shared Library Not Found)"


def test_a_gpu_that_torch_does_not_see_is_a_reason(gpu, monkeypatch):
    def refuse(index):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert "not compiled with CUDA" in EnergyMeter("cuda:1").reading().reason
    assert gpu.users == 0


def test_the_real_pynvml_has_what_is_used():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]:
        assert hasattr(real, name), name
    assert issubclass(real.NVMLError_NotSupported, real.NVMLError)
    assert real.nvmlDeviceGetTotalEnergyConsumption.__code__.co_varnames[0] == "handle"


# --- NVML's power, polled


def power_counter(gpu, machine, **options):
    gpu.nvmlInit()
    return NvmlPower(gpu, "handle of GPU-11-22", "GPU", clock=machine.clock, **options)


def test_polled_power_is_integrated_by_trapezoids(gpu, machine):
    counter = power_counter(gpu, machine, period_s=None)
    meter = EnergyMeter(counter=counter, clock=machine.clock)
    start, ramp = machine.now, 10_000  # mW a second
    with meter.window():
        for step in range(1, 121):
            machine.now = start + step * 0.1
            gpu.power = 250_000 + ramp * (machine.now - start)
            counter.read()  # as the thread does
    # trapezoids are exact on a ramp: 250 W x 12 s + 10 W/s x (12 s)^2 / 2
    assert meter.reading().joules == pytest.approx(3000 + 720)
    assert meter.reading().backend == "nvml-power"


def test_a_gpu_without_an_energy_counter_is_polled(gpu):
    gpu.energy = gpu.NVMLError_NotSupported()
    meter = EnergyMeter("cuda:1")
    assert meter.counter.backend == "nvml-power"
    meter.close()
    assert gpu.users == 0


@pytest.mark.parametrize("failing", [False, True])
def test_power_that_was_not_polled_is_a_reason(gpu, machine, failing):
    counter = power_counter(gpu, machine, period_s=None)
    meter = EnergyMeter(counter=counter, clock=machine.clock)
    meter.start()
    power, gpu.power = gpu.power, gpu.NVMLError("GPU is lost")
    for _ in range(120):
        machine.now += 0.1
        if failing:
            with pytest.raises(UnavailableError, match="lost"):
                counter.read()
    gpu.power = power
    meter.stop()
    assert "not polled for more than 1 s" in meter.reading().reason


def test_a_hole_in_a_pause_spoils_nothing(gpu, machine):
    counter = power_counter(gpu, machine, period_s=None)
    meter = EnergyMeter(counter=counter, clock=machine.clock)
    for _ in range(2):
        meter.start()
        for _ in range(60):
            machine.now += 0.1
            counter.read()
        meter.stop()
        machine.now += 50.0
    assert meter.reading().joules == pytest.approx(2 * 6 * 250)


class Counted(FakeNvml):
    """Says when power was asked for often enough."""

    def __init__(self, wanted):
        super().__init__()
        self.left, self.done = wanted, threading.Event()

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        self.left -= 1
        if self.left == 0:
            self.done.set()
        return super().nvmlDeviceGetPowerUsage(handle)


def polling_threads():
    return [t for t in threading.enumerate() if getattr(t, "_target", None) is nvml._poll]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_the_thread_polls_until_the_counter_is_closed_or_dropped(machine, end):
    fake = Counted(wanted=5)
    counter = power_counter(fake, machine, period_s=0.001)
    (thread,) = polling_threads()
    assert thread.daemon
    assert fake.done.wait(10.0)
    if end == "closed":
        counter.close()
    else:
        del counter
    thread.join(10.0)
    assert not thread.is_alive()


def test_the_thread_outlives_an_error(machine):
    fake = Counted(wanted=5)
    counter = power_counter(fake, machine, period_s=0.001)
    fake.power = fake.NVMLError("Timeout")
    fake.left = 5
    fake.done.clear()
    assert fake.done.wait(10.0)
    assert polling_threads()
    counter.close()


# --- RAPL


RANGE = 262_143_328_850


class Powercap:
    """A powercap tree; like the kernel's, it lists subzones beside their packages as well."""

    def __init__(self, root):
        self.root = root
        (root / "intel-rapl").mkdir(parents=True)

    def zone(self, folder, name, energy, span=RANGE):
        path = self.root / folder
        path.mkdir()
        (path / "name").write_text(f"{name}\n")
        if span is not None:
            (path / "max_energy_range_uj").write_text(f"{span}\n")
        self.set(folder, energy)

    def set(self, folder, energy):
        (self.root / folder / "energy_uj").write_text(f"{energy}\n")

    def read(self):
        return RaplCounter(self.root)


@pytest.fixture
def powercap(tmp_path):
    tree = Powercap(tmp_path / "powercap")
    tree.zone("intel-rapl:0", "package-0", 7_000_000)
    tree.zone("intel-rapl:0:0", "core", 3_000_000)
    tree.zone("intel-rapl:0:1", "dram", 2_000_000)
    tree.zone("intel-rapl:1", "psys", 30_000_000)
    return tree


def joules(counter, change, seconds=12.0):
    before = counter.read()
    change()
    return counter.joules(before, counter.read(), seconds)


def test_a_package_is_counted_without_what_it_holds_and_what_holds_it(powercap):
    counter = powercap.read()
    assert counter.scope == "CPU package-0"
    assert len(counter.read()) == 1

    def all_move():
        powercap.set("intel-rapl:0", 12_000_000)
        powercap.set("intel-rapl:0:0", 7_000_000)
        powercap.set("intel-rapl:0:1", 8_000_000)
        powercap.set("intel-rapl:1", 90_000_000)

    assert joules(counter, all_move) == 5.0


def test_packages_are_added_up_and_a_twin_is_not(powercap):
    powercap.zone("intel-rapl:2", "package-1", 100_000_000)
    powercap.zone("intel-rapl-mmio:0", "package-0", 500_000_000)
    counter = powercap.read()
    assert counter.scope == "CPU package-0 + package-1"

    def all_move():
        powercap.set("intel-rapl:0", 8_000_000)
        powercap.set("intel-rapl:2", 102_000_000)
        powercap.set("intel-rapl-mmio:0", 504_000_000)

    assert joules(counter, all_move) == 3.0


@pytest.mark.parametrize(
    ("second", "scope"),
    [
        (50_400_000, "CPU package-0-die-0"),  # one counter shown twice, read a moment later
        (90_000_000, "CPU package-0-die-0 + package-0-die-1"),
    ],
)
def test_dies_that_show_one_counter_count_once(tmp_path, second, scope):
    tree = Powercap(tmp_path / "dies")
    tree.zone("intel-rapl:0", "package-0-die-0", 50_000_000)
    tree.zone("intel-rapl:1", "package-0-die-1", second)
    assert tree.read().scope == scope


def test_one_wrap_is_exact(powercap):
    powercap.zone("intel-rapl:2", "package-1", 10_000_000)
    powercap.set("intel-rapl:0", RANGE - 3_000_000)
    counter = powercap.read()

    def wrap():
        powercap.set("intel-rapl:0", 2_000_000)
        powercap.set("intel-rapl:2", 11_000_000)

    assert joules(counter, wrap) == 6.0


def test_wraps_of_many_windows_add_up(powercap, machine):
    meter = EnergyMeter(counter=powercap.read(), clock=machine.clock)
    energy, windows = 7_000_000, 40
    for _ in range(windows):
        with meter.window():
            energy += 20_000_000_000  # 20 kJ in 100 s: three wraps in all
            powercap.set("intel-rapl:0", energy % RANGE)
            machine.now += 100.0
    assert energy // RANGE == 3
    assert meter.reading().joules == windows * 20_000.0
    assert meter.reading().backend == "rapl"


def test_wraps_that_cannot_be_counted_are_refused(powercap):
    counter = powercap.read()
    move = {"change": lambda: powercap.set("intel-rapl:0", 30_007_000_000)}
    assert joules(counter, **move, seconds=250.0) == 30_000.0
    powercap.set("intel-rapl:0", 7_000_000)
    with pytest.raises(UnavailableError, match=r"may have wrapped unseen .* every 262 s"):
        joules(counter, **move, seconds=1800.0)


@pytest.mark.parametrize("span", [RANGE, 0, None])
def test_a_reset_is_not_taken_for_a_wrap(tmp_path, span):
    tree = Powercap(tmp_path / "reset")
    tree.zone("intel-rapl:0", "package-0", 90_000_000_000, span)
    counter = tree.read()
    with pytest.raises(UnavailableError, match="package-0 went back"):
        joules(counter, lambda: tree.set("intel-rapl:0", 1_000_000))


def denied(path):
    raise PermissionError(13, "Permission denied", str(path))


def test_a_counter_of_root_alone_is_a_reason_with_the_remedy(powercap, monkeypatch):
    (powercap.root / "intel-rapl:0" / "energy_uj").chmod(0)
    if os.geteuid() == 0:  # whom no mode keeps out
        monkeypatch.setattr(rapl, "open", denied, raising=False)
    with pytest.raises(UnavailableError, match=r"only root .*sudo chmod a\+r .*/energy_uj"):
        powercap.read()


def test_permission_taken_away_in_a_window_is_a_reason(powercap, machine, monkeypatch):
    meter = EnergyMeter(counter=powercap.read(), clock=machine.clock)
    with meter.window():
        machine.now += 12.0
        monkeypatch.setattr(rapl, "open", denied, raising=False)
    assert meter.reading().joules is None
    assert "only root" in meter.reading().reason


@pytest.mark.parametrize("spoil", ["unlink", "garbage"])
def test_a_counter_that_cannot_be_read_is_a_reason(powercap, spoil):
    counter = powercap.read()
    path = powercap.root / "intel-rapl:0" / "energy_uj"
    path.unlink() if spoil == "unlink" else path.write_text("n/a")
    with pytest.raises(UnavailableError, match="package-0 cannot be read"):
        counter.read()


def test_a_tree_without_packages_is_a_reason(tmp_path):
    tree = Powercap(tmp_path / "bare")
    tree.zone("intel-rapl:0", "psys", 1)
    (tmp_path / "bare" / "dtpm:0").mkdir()  # a zone of another kind, without a name
    with pytest.raises(UnavailableError, match="no readable RAPL counter"):
        tree.read()


def test_the_cpu_is_measured_by_rapl(powercap, machine, monkeypatch):
    monkeypatch.setattr(meters, "RaplCounter", powercap.read)
    meter = EnergyMeter("cpu", clock=machine.clock)
    with meter.window():
        machine.now += 1.0
        powercap.set("intel-rapl:0", 47_000_000)
    assert str(meter.reading()) == "40.0 J (rapl, CPU package-0, 1.0 s)"


def test_the_real_machine_has_joules_or_a_reason():
    meter = EnergyMeter("cpu")
    with meter.window():
        timeit.timeit("sum(range(1000))", number=20_000)
    reading = meter.reading()
    assert (reading.joules is None) == bool(reading.reason)
    meter.close()


@pytest.mark.benchmark
def test_reading_rapl_is_cheap(powercap):
    counter = powercap.read()
    assert min(timeit.repeat(counter.read, number=10, repeat=200)) / 10 < 50e-6


# --- zeus


@pytest.fixture
def zeus(nothing, monkeypatch):
    """A fake zeus.device on a machine that is not x86; ``soc`` and ``gpus`` are read through it."""
    fake = ModuleType("zeus.device")
    fake.soc = fake.gpus = None

    def get(name):
        def getter():
            if getattr(fake, name) is None:
                raise ValueError("No observable SoC was found on the current machine.")
            return SimpleNamespace(get_total_energy_consumption=getattr(fake, name))

        return getter

    fake.get_soc, fake.get_gpus = get("soc"), get("gpus")
    monkeypatch.setitem(sys.modules, "zeus", ModuleType("zeus"))
    monkeypatch.setitem(sys.modules, "zeus.device", fake)
    monkeypatch.setattr(meters.platform, "machine", lambda: "arm64")
    return fake


def read_twice(device, machine, change):
    meter = EnergyMeter(device, clock=machine.clock)
    with meter.window():
        machine.now += 12.0
        change()
    return meter.reading()


APPLE = {"cpu_total_mj": 100, "gpu_mj": 200, "gpu_sram_mj": 9, "dram_mj": None, "ane_mj": 0}


@pytest.mark.parametrize("device", ["mps", "cpu"])
def test_zeus_measures_apple_silicon(zeus, machine, device):
    now = SimpleNamespace(**APPLE)
    zeus.soc = lambda: now
    reading = read_twice(device, machine, lambda: vars(now).update(cpu_total_mj=1100, gpu_mj=4200))
    assert reading.joules == 5.0
    assert reading.backend == "zeus-soc"
    assert reading.scope == "system on chip (cpu_total + gpu + ane)"


def test_zeus_measures_jetson_where_nvml_does_not(zeus, machine):
    now = SimpleNamespace(total_energy_mj=1000.0, cpu_energy_mj=400.0, gpu_energy_mj=500.0)
    zeus.soc = lambda: now
    reading = read_twice(
        "cuda", machine, lambda: vars(now).update(total_energy_mj=6000.0, cpu_energy_mj=3000.0)
    )
    assert (reading.joules, reading.scope) == (5.0, "system on chip (total_energy)")


def test_zeus_measures_amd(zeus, machine, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    energy = {2: 1000}
    zeus.gpus = energy.__getitem__
    reading = read_twice("cuda:2", machine, lambda: energy.update({2: 6000}))
    assert (reading.joules, reading.backend, reading.scope) == (5.0, "zeus-amd", "GPU 2")


@pytest.mark.parametrize(
    ("soc", "reason"),
    [
        (None, "zeus reads nothing of mps (No observable SoC"),
        (lambda: SimpleNamespace(cpu_total_mj=None), "zeus finds a system on chip but no counter"),
        (lambda: SimpleNamespace(**APPLE), "did not move"),  # constructs fine and stays at zero
        (lambda: SimpleNamespace(cpu_total_mj=-timeit.default_timer()), "went back"),
    ],
)
def test_zeus_with_nothing_to_read_is_a_reason(zeus, machine, soc, reason):
    zeus.soc = soc
    reading = read_twice("mps", machine, lambda: None)
    assert reading.joules is None
    assert reason in reading.reason


def test_zeus_that_breaks_within_a_run_is_a_reason(zeus, machine):
    zeus.soc = lambda: SimpleNamespace(**APPLE)

    def break_it(meter):
        meter.counter._millijoules = lambda: 1 / 0

    meter = EnergyMeter("mps", clock=machine.clock)
    with meter.window():
        machine.now += 12.0
        break_it(meter)
    assert "zeus cannot read system on chip" in meter.reading().reason


def test_zeus_is_left_alone_where_nvml_and_rapl_reach(zeus, monkeypatch):
    zeus.soc = zeus.gpus = lambda *_: pytest.fail("asked zeus")
    monkeypatch.setattr(meters.platform, "machine", lambda: "x86_64")
    assert "RAPL" in EnergyMeter("cpu").reading().reason
    assert "NVML" in EnergyMeter("cuda").reading().reason


# --- comparisons


def arms_of(machine, watts=(300.0, 200.0), seconds=(3.0, 2.0), jitter=0.0):
    """Two arms; ``jitter`` moves the watts of each call of the first by up to that share."""
    ran = []

    def arm(name, watts, seconds, jitter):
        def run():
            share = jitter * math.sin(5 * len(ran))
            ran.append(name)
            machine.spend(seconds, watts * (1 + share))

        return run

    dense = arm("dense", watts[0], seconds[0], jitter)
    return {"dense": dense, "gated": arm("gated", watts[1], seconds[1], 0.0)}, ran


def compared(machine, arms, **options):
    return compare_energy(arms, counter=machine, clock=machine.clock, **options)


def test_arms_are_compared_by_joules_a_call(machine):
    arms, ran = arms_of(machine)
    result = compared(machine, arms)
    assert result.reason is None
    # windows of 12 s (4 calls of 3 s) and of 10 s (5 calls of 2 s)
    assert result.calls == {"dense": (4,) * 5, "gated": (5,) * 5}
    assert ran.count("dense") == 6 * 4  # one warm-up pair
    assert result.joules("dense") == pytest.approx([900.0] * 5, rel=0.02)
    ratio = result.ratio("gated", "dense")
    assert ratio.median == pytest.approx(400 / 900, rel=0.02)
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.n == 5
    assert result.flags() == []
    assert all(r.window_s >= 10 for rs in result.readings.values() for r in rs)
    assert not machine.closed  # it belongs to who brought it


def test_pairs_interleave_the_arms_in_changing_order(machine):
    arms, ran = arms_of(machine)
    compared(machine, arms, pairs=8, warmup=0)
    calls, first = {"dense": 4, "gated": 5}, []
    for at in range(0, 8 * 9, 9):
        one = ran[at]
        other = "gated" if one == "dense" else "dense"
        assert ran[at : at + 9] == [one] * calls[one] + [other] * calls[other]
        first.append(one)
    assert len(ran) == 8 * 9
    assert set(first) == {"dense", "gated"}


def test_a_drift_of_the_machine_cancels_within_pairs(machine):
    """Power climbs by a third while it is measured, as of a GPU that warms up."""
    began = machine.now

    def arm(watts):
        def run():
            machine.spend(11.0, watts * (1 + (machine.now - began) / 1000))

        return run

    result = compared(machine, {"dense": arm(300.0), "gated": arm(150.0)}, pairs=15)
    assert result.ratio("gated", "dense").median == pytest.approx(0.5, rel=0.02)
    assert [flag.partition(":")[0] for flag in result.flags()] == ["dense", "gated"]


def test_readings_that_spread_are_flagged(machine):
    arms, _ = arms_of(machine, seconds=(12.0, 12.0), jitter=0.2)
    result = compared(machine, arms)
    joules = np.array(result.joules("dense"))
    assert result.spread("dense") == pytest.approx(joules.std(ddof=1) / joules.mean())
    assert result.spread("dense") > 0.03 > result.spread("gated")
    (flag,) = result.flags()
    assert flag.startswith("dense: readings spread by")
    assert flag in str(result)


def test_a_long_call_is_one_window(machine):
    arms, _ = arms_of(machine, seconds=(40.0, 0.4))
    result = compared(machine, arms)
    assert result.calls["dense"] == (1,) * 5
    assert result.calls["gated"][0] in (25, 26)


def test_no_window_is_shorter_than_the_counter_allows(machine):
    arms, _ = arms_of(machine)
    assert compared(machine, arms, min_window_s=0.5).calls["dense"] == (4,) * 5
    fine = Machine(step_s=0.001)
    arms, _ = arms_of(fine)
    assert compared(fine, arms, min_window_s=0.5).calls["dense"] == (1,) * 5


def test_one_missing_reading_leaves_no_ratio(machine):
    arms, ran = arms_of(machine)

    def failing():
        machine.failing = len(ran) == 20
        arms["dense"]()

    result = compared(machine, {"dense": failing, "gated": arms["gated"]})
    assert result.reason == "the cable is out"
    with pytest.raises(ValueError, match="not measured: the cable is out"):
        result.ratio("gated", "dense")
    assert (result.table(), result.flags()) == ([], [])
    assert str(result) == "joules not measured: the cable is out"
    assert json.loads(result.to_json())["reason"] == "the cable is out"


def test_no_arm_is_run_for_nothing(nothing):
    result = compare_energy({"a": lambda: pytest.fail("ran"), "b": list}, device="cpu")
    assert result.readings == {}
    assert "no readable RAPL" in result.reason


def test_work_on_a_device_is_waited_for_within_the_window(machine):
    """What an arm has queued is drawn when it is waited for, and booked to that arm."""
    queued = []

    def wait():
        while queued:
            machine.spend(*queued.pop())

    arms = {
        "dense": lambda: queued.append((3.0, 300.0)),
        "gated": lambda: queued.append((3.0, 100.0)),
    }
    queued.append((5.0, 700.0))  # left over from before
    result = compared(machine, arms, synchronize=wait, warmup=0)
    assert result.joules("dense") == pytest.approx([900.0] * 5, rel=0.03)
    assert result.ratio("dense", "gated").median == pytest.approx(3.0, rel=0.03)


def test_a_comparison_goes_into_json_and_one_text(machine):
    arms, _ = arms_of(machine)
    result = compared(machine, arms, baseline="dense")
    content = json.loads(result.to_json())
    assert content["baseline"] == "dense"
    assert [row["arm"] for row in content["table"]] == ["dense", "gated"]
    row = content["table"][1]
    assert row["of_baseline"] == result.ratio("gated", "dense").median
    assert row["of_baseline_low"] <= row["of_baseline"] <= row["of_baseline_high"]
    assert row["joules"] == pytest.approx(400, rel=0.02)
    first = content["readings"]["gated"][0]
    assert (first["calls"], first["kind"], first["scope"]) == (5, "measured", "test bench")
    assert str(result).splitlines()[0].startswith("dense: ")
    assert "gated: " in str(result)
    assert "0.4" in str(result)
    assert "n = 5" in str(result)


def test_the_counter_that_was_opened_is_closed(gpu, machine):
    def run():
        gpu.energy += 3_000_000
        machine.now += 12.0

    arms = {"a": run, "b": run}
    result = compare_energy(arms, device="cuda:1", clock=machine.clock)
    assert result.ratio("a", "b").median == 1.0
    assert gpu.users == 0
    with pytest.raises(ZeroDivisionError):
        compare_energy({"a": run, "b": lambda: 1 / 0}, device="cuda:1", clock=machine.clock)
    assert gpu.users == 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"arms": {"a": list}}, "at least 2 arms, got 1"),
        ({"pairs": 4}, "at least 5 pairs, got 4"),
        ({"warmup": -1}, "warmup must be 0 or more"),
        ({"min_window_s": 0.0}, "min_window_s above 0"),
        ({"baseline": "c"}, "Unknown arm 'c'"),
    ],
)
def test_bad_comparisons_are_refused(machine, options, match):
    arms = options.pop("arms", {"a": list, "b": list})
    with pytest.raises(ValueError, match=match):
        compared(machine, arms, **options)


# --- the benchmark


def test_the_benchmark_says_why_it_measured_nothing(nothing, capsys):
    from tests.benchmarks import energy

    out = nothing / "energy.json"
    energy.main(["--device", "cpu", "--out", str(out)])
    said = capsys.readouterr().out.strip()
    assert said.startswith("joules not measured: no readable RAPL counter here")
    assert len(said.splitlines()) == 1
    assert not out.exists()


def test_the_benchmark_measures_dense_and_gated_epochs(monkeypatch, capsys, tmp_path):
    from tests.benchmarks import energy

    class Draw(RaplCounter):
        """A package that draws 50 W."""

        def __init__(self):
            self.scope, self._zones = "CPU package-0", [rapl._Zone("package-0", Path(), RANGE)]

        def read(self):
            return (int(timeit.default_timer() * 50e6),)

    monkeypatch.setattr(meters, "RaplCounter", Draw)
    out = tmp_path / "energy.json"
    energy.main(["--device", "cpu", "--out", str(out), "--rows", "32", "--min-window", "0.1"])
    content = json.loads(out.read_text())
    assert {"stamp", "baseline", "readings", "table", "flags"} <= content.keys()
    assert content["rows"] == 32
    assert [row["arm"] for row in content["table"]] == ["dense", "gated"]
    for readings in content["readings"].values():
        assert len(readings) == 5
        assert all(r["joules"] == pytest.approx(50 * r["window_s"], rel=0.02) for r in readings)
    assert "of baseline" in capsys.readouterr().out
