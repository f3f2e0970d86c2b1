import copy
import random
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import astkit.datasets.settings as module
from astkit.datasets import Images, Loader, open_mapped, write_mapped
from astkit.datasets.settings import loader_settings

IMAGES = Images(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8) % 2, ("a", "b"), "toy")


class Noisy(Dataset):
    """Rows of ``bytes`` bytes that draw from every global generator."""

    def __init__(self, size=1000):
        self.size = size

    def __len__(self):
        return 8

    def __getitem__(self, row):
        random.random()
        np.random.rand()
        return torch.rand(self.size // 4), row % 2


class NoMemoryInfo:
    pass


@pytest.fixture
def machine(monkeypatch):
    def pretend(cores=8, room=10**9):
        monkeypatch.setattr(module, "allowed_cpus", lambda: cores)
        monkeypatch.setattr(module, "_room", lambda: room)
        monkeypatch.setattr(torch, "get_device_module", lambda device: NoMemoryInfo)

    return pretend


@pytest.mark.parametrize(
    ("cores", "device", "workers", "ahead"),
    [
        (1, "cpu", 0, None),  # the only core trains
        (5, "cpu", 4, 2),
        (64, "cpu", 4, 2),
        (1, "cuda", 1, 4),
        (64, "cuda", 8, 4),
    ],
)
def test_workers_follow_cores_and_device(machine, cores, device, workers, ahead):
    machine(cores=cores)
    found = loader_settings(Noisy(), 4, device)
    assert (found.num_workers, found.prefetch_factor) == (workers, ahead)
    assert found.pin_memory == (device == "cuda")


def test_rows_that_are_on_the_device_already_are_not_pinned_or_sent(machine):
    machine()
    rows = torch.zeros(8, 2)
    images = copy.copy(IMAGES)
    object.__setattr__(images, "images", IMAGES.images.to("meta"))
    there = {"x": {"ids": rows.to("meta")}, "y": 1}
    for data in (TensorDataset(rows, rows.to("meta")), [there], images):
        assert loader_settings(data, 4, "cuda", resident=False).num_workers == 0
        assert not loader_settings(data, 4, "cuda", num_workers=0, resident=False).pin_memory
    for data in (TensorDataset(rows), [{"x": {"ids": rows}}], ["text"], IMAGES):
        assert loader_settings(data, 4, "cuda", num_workers=0, resident=False).pin_memory


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_waiting_batches_never_take_more_than_the_room(machine, device):
    most = 4 if device == "cpu" else 8
    for room in (0, 3999, 4000, 9000, 16_000, 10**9):
        machine(room=room)
        found = loader_settings(Noisy(1000), 4, device)
        waiting = found.num_workers * (found.prefetch_factor or 0)
        assert waiting * 4 * 1000 <= room
        assert found.num_workers == min(most, room // 4000)


def test_the_size_of_a_row_counts_its_nested_parts(machine):
    machine(room=4000)
    for row in ({"x": [torch.zeros(250)], "y": 1}, (torch.zeros(250), 1), torch.zeros(250)):
        assert loader_settings([row] * 8, 4).num_workers == 1


def test_images_need_no_workers(machine, tmp_path):
    machine()
    mapped = write_mapped(tmp_path / "set", IMAGES)
    for data, device, resident in (
        (IMAGES, "cpu", True),
        (IMAGES, "cuda", False),
        (mapped, "cpu", False),
    ):
        found = loader_settings(data, 4, device)
        assert (found.num_workers, found.resident) == (0, resident)
    assert loader_settings(IMAGES, 4, resident=False).resident is False
    assert loader_settings(mapped, 4, "cuda", resident=True).resident is True
    assert not Loader(open_mapped(tmp_path / "set")).settings.resident
    assert loader_settings(Noisy(), 4).resident is False


def test_a_loader_keeps_what_it_was_told_and_may_choose(machine):
    machine(cores=3)
    told = Loader(Noisy(), 4, num_workers=1, timeout_s=9).settings
    assert (told.num_workers, told.prefetch_factor, told.timeout_s) == (1, 2, 9)
    assert Loader(Noisy(), 4).settings.num_workers == 0
    loader = Loader(Noisy(), 4, num_workers="auto")
    assert loader.settings.num_workers == 2


def test_learning_the_size_of_a_row_moves_no_generator(machine):
    machine()
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    loader_settings(Noisy(), 4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate()


def test_memory_is_what_machine_and_group_leave(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(module, "_GROUP", tmp_path)
    assert module.free_memory() == sys.maxsize
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:    50 kB\n")
    assert module.free_memory() == 50 * 1024
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 90000\nshmem 24\n")
    for limit, free in (("max\n", 50 * 1024), ("3000\n", 1976), ("900\n", 0), ("9999999", 51200)):
        (tmp_path / "memory.max").write_text(limit)
        assert module.free_memory() == free


def test_room_is_a_share_of_memory_and_half_the_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "free_memory", lambda: 1000)
    monkeypatch.setattr(module, "_SHARED", tmp_path / "none")
    assert module._room() == 100
    monkeypatch.setattr(module, "_SHARED", tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: type("U", (), {"free": 80}))
    assert module._room() == 40
