"""Counters of energy against fakes of what they read; the reason wherever there are no joules."""

from __future__ import annotations

import os
import sys
import timeit
from types import ModuleType, SimpleNamespace

import pytest
import torch

from astkit.profiling import EnergyMeter, energy_counters
from astkit.profiling.energy_counters import RaplCounter, UnavailableError


def read_once(device, machine, change, seconds=12.0):
    """The reading of one window in which ``change`` happens."""
    meter = EnergyMeter(device, clock=machine.clock)
    with meter.window():
        machine.now += seconds
        change()
    return meter.reading()


def test_the_real_machine_has_joules_or_a_reason():
    meter = EnergyMeter("cpu")
    with meter.window():
        timeit.timeit("sum(range(1000))", number=20_000)
    assert (meter.reading().joules is None) == bool(meter.reading().reason)


# --- NVML


class FakeNvml(ModuleType):
    """As much of pynvml as is used; ``energy`` (mJ) may be an error."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        def __str__(self):
            return "Not Supported"

    def __init__(self):
        super().__init__("pynvml")
        self.energy, self.users, self.asked = 1000, 0, []
        self.library = True

    def nvmlInit(self):  # noqa: N802
        if not self.library:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.users += 1

    def nvmlShutdown(self):  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.asked.append(uuid)
        return f"handle of {uuid}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        assert self.users > 0, "Uninitialized"
        assert handle == "handle of GPU-11-22"
        if isinstance(self.energy, Exception):
            raise self.energy
        return self.energy


@pytest.fixture
def gpu(nothing, monkeypatch):
    """A fake pynvml and torch's view of the GPU."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    known = {1: SimpleNamespace(uuid="11-22", name="Fake GPU")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return fake


@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_nvml_counts_millijoules(gpu, machine, device):
    reading = read_once(device, machine, lambda: setattr(gpu, "energy", 6000))
    assert str(reading) == "5.0 J (nvml, GPU 1 (Fake GPU), whole board, 12.0 s)"
    assert gpu.asked == ["GPU-11-22"]  # by UUID: NVML does not know CUDA_VISIBLE_DEVICES


def test_nvml_set_back_or_lost_is_none_and_never_negative(gpu, machine):
    meter = EnergyMeter("cuda:1", clock=machine.clock)
    for energy in (90_000, 10, 90_000):
        with meter.window():
            gpu.energy = energy
            machine.now += 12.0
    assert meter.reading().joules is None
    assert "went back" in meter.reading().reason
    lost = gpu.NVMLError("GPU is lost")
    assert (
        "GPU is lost" in read_once("cuda:1", machine, lambda: setattr(gpu, "energy", lost)).reason
    )


def test_nvml_without_counters_library_or_gpu_is_a_reason(gpu, monkeypatch):
    for error in (gpu.NVMLError_NotSupported(), gpu.NVMLError("No Permission")):
        gpu.energy = error
        assert EnergyMeter("cuda:1").missing == f"NVML reads no energy of cuda:1 ({error})"
        assert gpu.users == 0

    def refuse(index):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert "not compiled with CUDA" in EnergyMeter("cuda:1").missing
    assert gpu.users == 0
    gpu.library = False
    assert EnergyMeter("cuda:1").missing == "no NVML (NVML Shared Library Not Found)"


def test_the_real_pynvml_has_what_is_used():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]:
        assert hasattr(real, name), name
    assert issubclass(real.NVMLError_NotSupported, real.NVMLError)
    assert real.nvmlDeviceGetTotalEnergyConsumption.__code__.co_varnames[0] == "handle"


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
        self.set({folder: energy})

    def set(self, energies):
        for folder, energy in energies.items():
            (self.root / folder / "energy_uj").write_text(f"{energy}\n")

    def joules(self, after, seconds=12.0):
        """What a counter makes of the energies ``after`` those that are there."""
        counter = RaplCounter(self.root)
        before = counter.read()
        self.set(after)
        return counter.joules(before, counter.read(), seconds)


@pytest.fixture
def powercap(tmp_path):
    tree = Powercap(tmp_path / "tree")
    tree.zone("intel-rapl:0", "package-0", 7_000_000)
    tree.zone("intel-rapl:0:0", "core", 3_000_000)
    tree.zone("intel-rapl:0:1", "dram", 2_000_000)
    tree.zone("intel-rapl:1", "psys", 30_000_000)
    return tree


def test_a_package_is_counted_without_what_it_holds_and_what_holds_it(powercap):
    assert RaplCounter(powercap.root).scope == "CPU package-0"
    energies = {"": 12_000_000, ":0": 7_000_000, ":1": 8_000_000}
    moved = {f"intel-rapl:0{place}": energy for place, energy in energies.items()}
    assert powercap.joules({**moved, "intel-rapl:1": 90_000_000}) == 5.0


def test_packages_are_added_up_and_a_twin_is_not(powercap):
    powercap.zone("intel-rapl:2", "package-1", 100_000_000)
    powercap.zone("intel-rapl-mmio:0", "package-0", 500_000_000)
    assert RaplCounter(powercap.root).scope == "CPU package-0 + package-1"
    moved = {"intel-rapl:0": 8_000_000, "intel-rapl:2": 102_000_000}
    assert powercap.joules({**moved, "intel-rapl-mmio:0": 504_000_000}) == 3.0


def test_dies_that_show_one_counter_count_once(tmp_path):
    for second, scope in (
        (50_400_000, "CPU package-0-die-0"),  # one counter shown twice, read a moment later
        (90_000_000, "CPU package-0-die-0 + package-0-die-1"),
    ):
        tree = Powercap(tmp_path / str(second))
        tree.zone("intel-rapl:0", "package-0-die-0", 50_000_000)
        tree.zone("intel-rapl:1", "package-0-die-1", second)
        assert RaplCounter(tree.root).scope == scope


def test_one_wrap_is_exact_and_wraps_of_many_windows_add_up(powercap, machine):
    powercap.zone("intel-rapl:2", "package-1", 10_000_000)
    powercap.set({"intel-rapl:0": RANGE - 3_000_000})
    moved = {"intel-rapl:0": 2_000_000, "intel-rapl:2": 11_000_000}
    assert powercap.joules(moved) == 6.0
    powercap.set({"intel-rapl:0": RANGE - 3_000_000, "intel-rapl:2": 10_000_000})
    assert powercap.joules(moved, seconds=0.001) == 6.0  # a step of the counter, seen late
    meter = EnergyMeter(counter=RaplCounter(powercap.root), clock=machine.clock)
    energy, windows = 2_000_000, 40
    for _ in range(windows):
        with meter.window():
            energy += 20_000_000_000  # 20 kJ in 100 s: three wraps in all
            powercap.set({"intel-rapl:0": energy % RANGE})
            machine.now += 100.0
    assert energy // RANGE == 3
    assert meter.reading().joules == windows * 20_000.0


def test_wraps_that_cannot_be_counted_and_resets_are_refused(powercap, tmp_path):
    moved = {"intel-rapl:0": 30_007_000_000}
    assert powercap.joules(moved, seconds=250.0) == 30_000.0
    powercap.set({"intel-rapl:0": 7_000_000})
    with pytest.raises(UnavailableError, match=r"may have wrapped unseen .* every 262 s"):
        powercap.joules(moved, seconds=1800.0)
    for span in (RANGE, 0, None):  # a reset is no wrap
        tree = Powercap(tmp_path / f"reset {span}")
        tree.zone("intel-rapl:0", "package-0", 90_000_000_000, span)
        with pytest.raises(UnavailableError, match="package-0 went back"):
            tree.joules({"intel-rapl:0": 1_000_000})


def denied(path):
    raise PermissionError(13, "Permission denied", str(path))


def test_a_counter_that_cannot_be_read_is_a_reason(powercap, machine, monkeypatch, tmp_path):
    counter, path = RaplCounter(powercap.root), powercap.root / "intel-rapl:0" / "energy_uj"
    path.write_text("n/a")
    with pytest.raises(UnavailableError, match="package-0 cannot be read"):
        counter.read()
    path.unlink()
    with pytest.raises(UnavailableError, match="package-0 cannot be read"):
        counter.read()
    tree = Powercap(tmp_path / "bare")
    tree.zone("intel-rapl:0", "psys", 1)
    (tree.root / "dtpm:0").mkdir()  # a zone of another kind, without a name
    with pytest.raises(UnavailableError, match="no readable RAPL counter"):
        RaplCounter(tree.root)


def test_a_counter_of_root_alone_is_a_reason_with_the_remedy(powercap, machine, monkeypatch):
    meter = EnergyMeter(counter=RaplCounter(powercap.root), clock=machine.clock)
    (powercap.root / "intel-rapl:0" / "energy_uj").chmod(0)
    with meter.window():
        machine.now += 12.0
        if os.geteuid() == 0:  # whom no mode keeps out
            monkeypatch.setattr(energy_counters, "open", denied, raising=False)
    assert "only root" in meter.reading().reason  # taken away within a window
    with pytest.raises(UnavailableError, match=r"only root .*sudo chmod a\+r .*/energy_uj"):
        RaplCounter(powercap.root)


def test_the_cpu_is_measured_by_rapl(powercap, machine, monkeypatch):
    monkeypatch.setattr(energy_counters, "RaplCounter", lambda: RaplCounter(powercap.root))
    reading = read_once("cpu", machine, lambda: powercap.set({"intel-rapl:0": 47_000_000}), 1.0)
    assert str(reading) == "40.0 J (rapl, CPU package-0, 1.0 s)"


def test_other_devices_have_no_counter(nothing, monkeypatch):
    assert "for this mps device" in EnergyMeter("mps").missing
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "for this cuda device" in EnergyMeter("cuda").missing
