"""Automatic loader settings from cores, memory, device and the size of a row."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset

from astkit.batch import tensors
from astkit.datasets.images import Images
from astkit.datasets.mapped import MappedImages
from astkit.rng import restored
from astkit.system import allowed_cpus, text_of

FREE_SHARE = 0.25  # of the device's free memory that a resident dataset may take
WAITING_SHARE = 0.1  # of the free memory that prefetched batches may take
MOST_WORKERS = {True: 4, False: 8}  # True: the device is the CPU and computes on the same cores
TIMEOUT_S = 300.0

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_SHARED = Path("/dev/shm")

Auto = Literal["auto"]


@dataclass(frozen=True)
class LoaderSettings:
    """Settings for loading rows.

    ``num_workers``: worker processes, kept between epochs; ``prefetch_factor``: batches
    prefetched per worker, ``None`` without workers; ``pin_memory``: page-locked batches, whose
    copies to a GPU overlap with computation; ``timeout_s``: seconds to wait for a batch from
    workers; ``resident``: all images are kept on the device.
    """

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    timeout_s: float
    resident: bool


def loader_settings(
    data: Images | Dataset[Any],
    batch_size: int,
    device: torch.device | str = "cpu",
    *,
    num_workers: int | Auto = "auto",
    resident: bool | Auto = "auto",
    timeout_s: float = TIMEOUT_S,
) -> LoaderSettings:
    """Settings for batches of ``batch_size`` rows of ``data`` on ``device``.

    Values other than ``"auto"`` are used unchanged. One row may be loaded, to see its size and its
    device; random generators are restored. Raises ``ValueError`` for invalid arguments.
    """
    _check_arguments(data, batch_size, num_workers, resident, timeout_s)
    device = torch.device(device)
    if resident == "auto":
        on_disk = isinstance(data, MappedImages) and device.type == "cpu"
        resident = isinstance(data, Images) and not on_disk and fits(data.images, device)
    row, on_cpu, ahead = None, True, 2
    if num_workers == "auto" or device.type == "cuda":
        with restored():
            row = data[0]
        on_cpu = all(part.is_cpu for part in tensors(row))
    if num_workers == "auto":
        # a batch of Images is one copy, and workers would add a second; a fork cannot use CUDA
        num_workers = 0
        if on_cpu and not isinstance(data, Images):
            row_bytes = sum(getattr(part, "nbytes", 0) for part in tree_leaves(row))
            num_workers, ahead = _workers(batch_size * row_bytes, device)
    return LoaderSettings(
        num_workers=num_workers,
        prefetch_factor=ahead if num_workers else None,
        # torch refuses to pin rows that are on a GPU already
        pin_memory=device.type == "cuda" and on_cpu,
        timeout_s=timeout_s,
        resident=resident,
    )


def fits(images: Tensor, device: torch.device) -> bool:
    """Whether ``images`` may be kept on ``device``: already there, or small vs. its free memory."""
    if images.device.type == device.type:
        return True
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):  # the device does not report free memory
        return False
    free: int = module.mem_get_info(device)[0]
    return images.nbytes <= FREE_SHARE * free


def free_memory() -> int:
    """Bytes this process may still allocate, in the machine or its control group.

    The page cache counts as free: MemAvailable of proc(5), and memory.max minus anon and shmem
    of memory.stat in the kernel's cgroup-v2 document. ``sys.maxsize`` if unknown.
    """
    free = []
    if (kilobytes := _table(_MEMORY).get("MemAvailable:")) is not None:
        free.append(kilobytes * 1024)
    group, limit = _table(_GROUP / "memory.stat"), text_of(_GROUP / "memory.max").strip()
    if limit.isdigit() and "anon" in group:
        free.append(max(0, int(limit) - group["anon"] - group.get("shmem", 0)))
    return min(free, default=sys.maxsize)


def _workers(batch_bytes: int, device: torch.device) -> tuple[int, int]:
    """Number of workers, and batches per worker; one core is reserved for training on the CPU."""
    on_cpu = device.type == "cpu"
    workers = min(MOST_WORKERS[on_cpu], allowed_cpus() - on_cpu)
    batches = _room() // max(1, batch_bytes)
    ahead = min(2 if on_cpu else 4, batches // max(1, workers))
    return min(workers, batches), max(1, ahead)


def _room() -> int:
    """Bytes available for prefetched batches in shared memory, which may be small."""
    room = int(WAITING_SHARE * free_memory())
    return min(room, shutil.disk_usage(_SHARED).free // 2) if _SHARED.is_dir() else room


def _table(path: Path) -> dict[str, int]:
    """The lines ``name number ...`` of a file; empty if it cannot be read."""
    lines = (line.split() for line in text_of(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _check_arguments(
    data: Any, batch_size: int, num_workers: object, resident: object, timeout_s: float
) -> None:
    kind = type(data).__name__
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError(
            f"data is a {kind}, which has no rows to choose from; pass Images or a map-style "
            "dataset, or wrap a DataLoader over it with as_loader."
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; pass 1 or more.")
    if num_workers != "auto" and (not isinstance(num_workers, int) or num_workers < 0):
        raise ValueError(f"num_workers is {num_workers!r}; pass 0 or more, or 'auto'.")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; pass more than 0 seconds.")
    if resident not in (True, False, "auto"):
        raise ValueError(f"resident is {resident!r}; pass True, False or 'auto'.")
    if resident is True and not isinstance(data, Images):
        raise ValueError(
            f"resident is True, but data is a {kind}; only Images can be kept there, so pass "
            "Images or resident='auto'."
        )
    if len(data) == 0:
        raise ValueError("data is empty; pass a dataset with at least one row.")
