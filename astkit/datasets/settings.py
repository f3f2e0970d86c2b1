"""How a data set is best loaded here: decided from cores, memory, device and the size of a row."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from astkit.datasets.images import Images
from astkit.datasets.mapped import MappedImages
from astkit.rng import isolated
from astkit.system import allowed_cpus

FREE_SHARE = 0.25  # of the device's free memory that a resident data set may take
WAITING_SHARE = 0.1  # of the free memory that fetched batches may take while they wait
MOST_WORKERS = {True: 4, False: 8}  # True: the device is the CPU and computes on the same cores
TIMEOUT_S = 300.0

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_SHARED = Path("/dev/shm")

Auto = Literal["auto"]


@dataclass(frozen=True)
class LoaderSettings:
    """How rows are fetched.

    ``num_workers``: processes that fetch, kept from pass to pass, because starting them takes time;
    ``prefetch_factor``: batches that each keeps ready, ``None`` without workers; ``pin_memory``:
    page-locked batches, which are copied to a GPU while it computes; ``timeout_s``: seconds to wait
    for a batch of the workers; ``resident``: all images stay on the device; ``why``: a sentence for
    ``num_workers`` and one for ``resident``.
    """

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    timeout_s: float
    resident: bool
    why: Mapping[str, str]


def loader_settings(
    data: Images | Dataset[Any],
    batch_size: int,
    device: torch.device | str = "cpu",
    *,
    num_workers: int | Auto = "auto",
    resident: bool | Auto = "auto",
    timeout_s: float = TIMEOUT_S,
) -> LoaderSettings:
    """The settings for batches of ``batch_size`` rows of ``data`` on ``device``.

    A number or a bool instead of ``"auto"`` is taken as it is. To choose workers for a data set
    other than ``Images``, one row is fetched to learn its size; random generators are put back.
    Raises ``ValueError`` for impossible arguments.
    """
    _check_arguments(data, batch_size, num_workers, resident, timeout_s)
    device = torch.device(device)
    stays, why = _resident(data, device, resident)
    if num_workers == "auto":
        workers, ahead, reason = _workers(data, batch_size, device, stays)
    else:
        workers, ahead, reason = num_workers, 2, f"{num_workers} were asked for."
    return LoaderSettings(
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        pin_memory=device.type == "cuda",
        timeout_s=timeout_s,
        resident=stays,
        why={"resident": why, "num_workers": reason},
    )


def fits(images: Tensor, device: torch.device) -> bool:
    """Whether ``images`` may stay on ``device``: already there, or small beside its free memory."""
    if images.device.type == device.type:
        return True
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):  # such a device does not say what is free
        return False
    free: int = module.mem_get_info(device)[0]
    return images.numel() * images.element_size() <= FREE_SHARE * free


def free_memory() -> int | None:
    """Bytes this process may still take, of the machine or of its control group; None if unknown.

    The page cache counts as free: MemAvailable of proc(5), and memory.max less the anon and shmem
    of memory.stat in the kernel's cgroup-v2 document.
    """
    free = []
    machine = _table(_MEMORY).get("MemAvailable:")
    if machine is not None:
        free.append(machine * 1024)
    group, limit = _table(_GROUP / "memory.stat"), _read(_GROUP / "memory.max").strip()
    if limit.isdigit() and "anon" in group:
        free.append(max(0, int(limit) - group["anon"] - group.get("shmem", 0)))
    return min(free, default=None)


def _resident(data: object, device: torch.device, wanted: bool | Auto) -> tuple[bool, str]:
    if not isinstance(data, Images):
        return False, f"A {type(data).__name__} computes its rows; only Images can stay."
    if wanted != "auto":
        return wanted, f"resident={wanted} was asked for."
    if isinstance(data, MappedImages) and device.type == "cpu":
        return False, "The images are on disk and are read batch by batch."
    if fits(data.images, device):
        return True, f"The images are on {str(device)!r} or take little of its free memory."
    return False, f"The images take more than {FREE_SHARE:.0%} of the free memory of {device}."


def _workers(
    data: Images | Dataset[Any], batch_size: int, device: torch.device, resident: bool
) -> tuple[int, int, str]:
    """Workers, batches that each keeps ready, and why."""
    if resident:
        return 0, 0, "The images stay on the device, so nothing is fetched."
    if isinstance(data, Images):
        return 0, 0, "A batch of Images is one copy; a worker would only add a second one."
    on_cpu = device.type == "cpu"
    available = allowed_cpus()
    workers, ahead = min(MOST_WORKERS[on_cpu], available - on_cpu), 2 if on_cpu else 4
    reason = f"{available} cores{', one of them kept for training' if on_cpu else ''}."
    room, size = _room(), batch_size * _row_bytes(data)
    while room is not None and workers and workers * ahead * size > room:
        ahead, workers = (ahead - 1, workers) if ahead > 1 else (1, workers - 1)
        reason = f"Waiting batches of {size} bytes may take {room} bytes of memory."
    return workers, ahead, reason


def _room() -> int | None:
    """Bytes that waiting batches may take; they lie in shared memory, which may be small."""
    free = free_memory()
    room = [] if free is None else [int(WAITING_SHARE * free)]
    if _SHARED.is_dir():
        room.append(shutil.disk_usage(_SHARED).free // 2)
    return min(room, default=None)


def _row_bytes(data: Dataset[Any]) -> int:
    states = random.getstate(), np.random.get_state()
    try:
        with isolated("cpu"):
            item = data[0]
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    parts = item if isinstance(item, tuple | list) else [item]
    return sum(getattr(part, "nbytes", 0) for part in parts)


def _table(path: Path) -> dict[str, int]:
    """The lines ``name number ...`` of a file; nothing where it cannot be read."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _check_arguments(
    data: object, batch_size: int, num_workers: object, resident: object, timeout_s: float
) -> None:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError(
            f"data is a {type(data).__name__}, which has no rows to choose from; pass Images or a "
            "map-style dataset, or wrap a DataLoader over it with as_loader."
        )
    if len(data) == 0:
        raise ValueError("data is empty; pass a data set with at least one row.")
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
            f"resident is True, but data is a {type(data).__name__}; only Images can stay on the "
            "device, so pass Images or resident='auto'."
        )
