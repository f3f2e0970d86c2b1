"""The doctor sees what is missing, by fakes: nothing here depends on what this machine has."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from astkit.datasets import cifar10
from astkit.export import gpu
from astkit.profiling import energy_counters
from astkit.profiling.energy_counters import UnavailableError
from astkit.runs import doctor
from astkit.runs.doctor import Finding, text, verdict, works


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A current folder that holds nothing, and no data set anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cifar10, "search_places", lambda root: [tmp_path / "data"])
    return tmp_path


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_NVIDIA", tmp_path / "no driver")


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA device by hearsay: named, but never computed on."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    fake = SimpleNamespace(get_device_name=lambda index=0: "Tesla P100")
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


ROOT = Path(__file__).parents[2]


def found() -> dict[str, Finding]:
    return {finding.topic: finding for finding in doctor.examine()}


def test_here_the_core_works_and_nothing_names_a_person_or_a_place(folder):
    findings = doctor.examine()
    assert works(findings)
    said = text(findings)
    assert said.endswith("The core of astkit works here.")
    topics = {finding.topic: finding for finding in findings}
    assert {"torch", "torchvision", "numpy", "CPU", "source"} <= topics.keys()
    assert topics["GPU"].mark == "--"  # which is no fault
    for private in (socket.gethostname(), str(Path.home()), str(folder), sys.prefix):
        assert private not in said
    assert not re.search(rf"\b{getpass.getuser()}\b", said)


def test_it_fits_on_a_screen_even_if_everything_is_missing(monkeypatch):
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    lines = text(doctor.examine()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 42
    assert sum(line.startswith("--") for line in lines) >= 7


def test_a_command_is_never_broken_over_two_lines():
    command = "`" + " ".join(["word"] * 9) + "`"
    said = text([Finding("topic", "--", "some words before it", f"then {command}")])
    assert command in said.replace("\n", "|")


def test_an_extra_that_is_missing_is_told_with_its_purpose_and_its_command(monkeypatch):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"].keys() - {"dev"}  # which is all of them
    assert doctor.EXTRAS.keys() == extras
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(doctor.CORE) == sorted(re.split("[<>=]", line)[0] for line in core)
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None if name == "optuna" else name)
    monkeypatch.setattr(doctor, "install_command", lambda extra: f"pip install {extra}")
    findings = found()
    expected = Finding("tune", "--", "no optuna, for `astkit tune`", "`pip install tune`")
    assert findings["tune"] == expected
    assert findings["data"] == Finding("data", "ok", "installed, for datasets in parquet files")
    assert works(list(findings.values()))


def test_the_command_fits_the_way_it_was_installed(monkeypatch):
    assert doctor.install_command("tune") == "python -m pip install -e .'[tune]'"
    monkeypatch.setattr(doctor, "__file__", "/site-packages/astkit/runs/doctor.py")
    assert doctor.install_command("tune") == "python -m pip install astkit'[tune]'"


def test_torch_that_does_not_import_is_the_end_of_it_but_not_of_the_doctor(monkeypatch):
    real = doctor.importlib.import_module

    def broken(name):
        if name == "torch":
            raise OSError("/home/somebody/.venv/lib/libcudart.so.13: cannot open\nmore")
        return real(name)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    findings = doctor.examine()
    (torch_,) = [finding for finding in findings if finding.topic == "torch"]
    assert (torch_.mark, torch_.core) == ("!!", True)
    assert torch_.fact == "does not import (OSError: libcudart.so.13: cannot open)"
    assert "pip install --force-reinstall torch" in torch_.remedy
    assert not works(findings)
    assert verdict(findings) == "astkit cannot work here: fix torch first."
    topics = {finding.topic for finding in findings}
    assert {"compiler", "disk"} <= topics  # needs no torch
    assert not {"CPU", "GPU", "cifar10"} & topics


def test_a_gpu_that_the_driver_has_and_torch_does_not_see(monkeypatch, tmp_path):
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(doctor, "_NVIDIA", tmp_path / "gpus")
    finding = found()["GPU"]
    assert (finding.mark, finding.core) == ("!!", False)
    assert "not by torch" in finding.fact


@pytest.mark.parametrize("fault", [None, "torch 2.10 has no kernels for Tesla P100"])
def test_a_gpu_counts_only_if_it_computes(monkeypatch, cuda, fault):
    monkeypatch.setattr(gpu, "trial", lambda: fault)
    monkeypatch.setattr(energy_counters, "open_counter", unreadable)
    finding = found()["GPU"]
    assert finding.mark == ("ok" if fault is None else "!!")
    assert (fault or "Tesla P100, 1 of cuda") in finding.fact


def test_a_driver_that_does_not_start_is_told(monkeypatch, cuda):
    def fails():
        raise RuntimeError("CUDA driver initialization failed\nmore")

    monkeypatch.setattr(gpu, "trial", fails)
    monkeypatch.setattr(energy_counters, "open_counter", unreadable)
    assert found()["GPU"].fact == "RuntimeError: CUDA driver initialization failed"


def unreadable(device):
    raise UnavailableError(f"nothing to read on {device}")


def test_joules_are_looked_for_on_cpu_and_gpu(monkeypatch, cuda):
    closed = []
    counter = SimpleNamespace(backend="rapl", scope="CPU", close=lambda: closed.append(True))
    monkeypatch.setattr(gpu, "trial", lambda: None)
    monkeypatch.setattr(
        energy_counters,
        "open_counter",
        lambda device: counter if device.type == "cpu" else unreadable(device),
    )
    findings = found()
    assert findings["cpu joules"] == Finding("cpu joules", "ok", "rapl, CPU")
    assert findings["cuda joules"].fact == "not measured; nothing to read on cuda"
    assert closed == [True]


def test_cifar10_where_it_lies(folder, monkeypatch):
    assert "data/README.md" in found()["cifar10"].remedy
    (folder / "data" / "cifar10").mkdir(parents=True)
    (folder / "data" / "cifar10" / "train-00000.parquet").touch()
    assert found()["cifar10"] == Finding("cifar10", "ok", "parquet layout")
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    assert "[data]" in found()["cifar10"].remedy


def test_a_full_disk_and_a_folder_that_may_not_be_written(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    finding = found()["disk"]
    assert (finding.mark, finding.fact.endswith("not writable")) == ("!!", True)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6))
    findings = found()
    assert findings["disk"].fact == "0.0 GB free in this folder"
    assert works(list(findings.values()))


def test_the_compiler_is_the_one_that_torch_would_take(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "g++" else f"/bin/{name}")
    monkeypatch.setenv("CXX", "clang++ -O2")
    assert doctor._compiler() == Finding("compiler", "ok", "clang++ -O2, for torch.compile")
    monkeypatch.delenv("CXX")
    lacking = Finding("compiler", "--", "no g++, for torch.compile", "install g++")
    assert doctor._compiler() == lacking


def test_too_many_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    finding = found()["threads"]
    assert finding.mark == "!!"
    assert "OMP_NUM_THREADS=" in finding.remedy
