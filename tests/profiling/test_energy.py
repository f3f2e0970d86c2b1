"""The meter against known joules: exact within its steps, ``None`` with a reason elsewhere."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astkit.profiling import EnergyMeter, energy
from tests.profiling.conftest import Machine


def spend(meter, machine, seconds, watts, name="training"):
    with meter.window(name):
        machine.spend(seconds, watts)


@given(
    windows=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=40),
    watts=st.floats(50.0, 700.0),
    before=st.floats(0.0, 0.3),
)
def test_windows_without_pauses_are_off_by_one_step_at_most(windows, watts, before):
    machine = Machine()
    machine.spend(before, watts)
    meter, began = machine.meter(), machine.now
    for seconds in (10.0, *windows):
        spend(meter, machine, seconds, watts)
    truth = machine.spent(machine.now) - machine.spent(began)
    assert meter.reading().window_s == pytest.approx(10.0 + sum(windows))
    # a step at either end, and the tenth of one within which a reading is used again
    assert abs(meter.reading().joules - truth) <= 1.11 * watts * machine.step_s


def test_energy_of_pauses_and_of_evaluation_is_left_out(machine):
    meter = machine.meter()
    for _ in range(20):
        spend(meter, machine, 5.0, 300.0)
        machine.spend(3.0, 50.0)  # nobody measures
        spend(meter, machine, 4.0, 120.0, "evaluation")
    for name, seconds, watts in (("training", 100.0, 300), ("evaluation", 80.0, 120)):
        assert meter.reading(name).joules == pytest.approx(seconds * watts, rel=0.02)
        assert meter.reading(name).window_s == pytest.approx(seconds)


@pytest.mark.parametrize("between", [None, "evaluation"])
def test_short_windows_between_pauses_or_evaluations_are_refused(machine, between):
    """What the rule is for: here half of the joules would be booked to the pauses."""
    meter = machine.meter()
    for number in range(300):
        spend(meter, machine, 0.1, 400.0)
        if between is None:
            machine.spend(0.33 + 0.0071 * (number % 10), 0.0)
        else:
            spend(meter, machine, 4.03, 300.0, between)
    assert meter.reading().joules is None
    assert meter.reading().reason == (
        "too short: 30.00 s with 299 pauses, and at least 750 s are needed"
    )


def test_a_counter_that_fails_or_stands_still_spoils_that_total_alone(machine):
    meter = machine.meter()
    spend(meter, machine, 12.0, 300.0, "evaluation")
    machine.failing = True
    spend(meter, machine, 12.0, 300.0)
    machine.failing = False
    spend(meter, machine, 12.0, 300.0)
    assert (meter.reading().joules, meter.reading("evaluation").joules) == (
        None,
        pytest.approx(3600, rel=0.02),
    )
    assert meter.reading().reason == "the counter cannot be read (the cable is out)"
    spend(meter, machine, 12.0, 0.0, "idle")
    assert meter.reading("idle").joules is None
    assert "did not move" in meter.reading("idle").reason


def test_windows_do_not_nest_and_close_on_errors(machine):
    meter = machine.meter()
    nested = pytest.raises(RuntimeError, match="'training' is still open")
    with meter.window(), nested, meter.window("evaluation"):
        pass

    @meter.window()
    def diverge():
        machine.spend(12.0, 100.0)
        raise FloatingPointError

    with pytest.raises(FloatingPointError):
        diverge()
    assert meter.reading().joules == pytest.approx(1200, rel=0.02)
    assert meter.reading("evaluation").window_s == 0


class FakeNvml(ModuleType):
    """As much of pynvml as is used; ``energy`` (mJ) may be an error."""

    def __init__(self):
        super().__init__("pynvml")
        self.energy, self.asked = 1000, []
        self.library = True

    def nvmlInit(self):  # noqa: N802
        if not self.library:
            raise OSError("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.asked.append(uuid)
        return f"handle of {uuid}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        assert handle == "handle of GPU-11-22"
        if isinstance(self.energy, Exception):
            raise self.energy
        return self.energy


@pytest.fixture
def gpu(monkeypatch):
    """A fake pynvml and torch's view of the GPU."""
    fake, known = FakeNvml(), SimpleNamespace(uuid="11-22", name="Fake GPU")
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    return fake


def measured(device, energies, set_energy):
    """The reading of windows of 12 s, one for each change of the counter."""
    clock = SimpleNamespace(now=0.0)
    meter = EnergyMeter(device)
    meter._clock = lambda: clock.now
    for each in energies:
        with meter.window():
            clock.now += 12.0
            set_energy(each)
    return meter.reading()


def test_nvml_counts_millijoules(gpu):
    reading = measured("cuda:1", [6000], lambda energy: setattr(gpu, "energy", energy))
    assert str(reading) == "5.0 J (nvml, cuda:1 (Fake GPU), whole board, 12.0 s)"
    assert gpu.asked == ["GPU-11-22"]  # by UUID: NVML does not know CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    ("energies", "why"),
    [
        ([90_000, 10, 90_000], "was reset"),
        ([1000], "did not move"),
        ([OSError("GPU is lost")], "GPU is lost"),
    ],
)
def test_nvml_set_back_or_lost_is_none_and_never_negative(gpu, energies, why):
    reading = measured("cuda:1", energies, lambda energy: setattr(gpu, "energy", energy))
    assert reading.joules is None
    assert why in reading.reason


def test_nvml_without_counter_library_or_gpu_is_a_reason(gpu, monkeypatch):
    gpu.energy = OSError("Not Supported")
    assert EnergyMeter("cuda:1").reading().reason == "no energy counter of cuda:1 (Not Supported)"
    gpu.library = False
    assert "NVML Shared Library Not Found" in EnergyMeter("cuda:1").reading().reason
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pynvml" in EnergyMeter("cuda:1").reading().reason
    monkeypatch.setattr(torch.version, "hip", "6.2")
    for device in ("cuda", "mps"):
        assert "only NVML and RAPL are read" in EnergyMeter(device).reading().reason


def test_the_real_pynvml_has_what_is_used():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in [name for name in vars(FakeNvml) if name.startswith("nvml")]:
        assert hasattr(real, name), name
    assert real.nvmlDeviceGetTotalEnergyConsumption.__code__.co_varnames[0] == "handle"


RANGE = 262_143_328_850  # microjoules


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """A powercap tree; like the kernel's, it lists subzones beside their packages as well."""
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    zone(tmp_path, ":0", "package-0", 7_000_000)
    zone(tmp_path, ":0:0", "core", 3_000_000)
    zone(tmp_path, ":1", "psys", 30_000_000)
    zone(tmp_path, "-mmio:0", "package-0", 500_000_000)  # the same counter once more
    return tmp_path


def zone(root, place, name, energy):
    folder = root / f"intel-rapl{place}"
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (folder / "energy_uj").write_text(f"{energy}\n")


def package_of(root):
    return root / "intel-rapl:0" / "energy_uj"


def test_a_package_is_counted_without_what_it_holds_and_what_holds_it(powercap):
    energies = [12_000_000, 20_000_000]
    reading = measured("cpu", energies, lambda uj: package_of(powercap).write_text(f"{uj}\n"))
    assert str(reading) == "13.0 J (rapl, CPU package, all processes, 24.0 s)"


def test_one_wrap_is_exact_and_wraps_of_many_windows_add_up(powercap):
    joules = [20_000 * (number + 1) for number in range(40)]  # three wraps in all

    def set_to(total):
        package_of(powercap).write_text(f"{(7_000_000 + total * 1_000_000) % RANGE}\n")

    assert measured("cpu", joules, set_to).joules == pytest.approx(800_000, rel=1e-12)


def test_a_counter_of_root_alone_is_a_reason(powercap, monkeypatch):
    package_of(powercap).chmod(0)
    if os.geteuid() == 0:  # whom no mode keeps out
        package_of(powercap).unlink()
        package_of(powercap).mkdir()
    assert "energy_uj" in EnergyMeter("cpu").reading().reason


@pytest.mark.parametrize("packages", [0, 2])
def test_without_one_package_there_is_no_total(tmp_path, monkeypatch, packages):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    for number in range(packages):
        zone(tmp_path, f":{number}", f"package-{number}", 1)
    reading = measured("cpu", [None], lambda _: None)
    assert (reading.joules, reading.backend, reading.window_s) == (None, None, 12.0)
    assert str(reading).startswith("joules not measured: no energy counter of cpu (")
    assert f"has {packages} CPU packages" in reading.reason


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert f"no energy counter of {kind} (" in str(EnergyMeter("auto").reading().reason)
