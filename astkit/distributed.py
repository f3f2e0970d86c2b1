"""Several processes under ``torch.distributed``: shares of rows, and the collectives of selection.

Gradients are averaged by torch's DistributedDataParallel. This module adds what selection
exchanges. Without a process group, and in one of a single process, its functions return their
arguments and communicate nothing. Every process must call them equally often, in one order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world() -> int:
    """Number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def key() -> tuple[int, ...]:
    """Part of the key of random numbers that differ between the processes, such as dropout."""
    return (rank(),) if rank() else ()


def share(rows: int) -> slice:
    """The rows of a global batch that this process takes: consecutive, as equally many as possible.

    Of fewer rows than processes, some processes take none.
    """
    return slice(rows * rank() // world(), rows * (rank() + 1) // world())


def shared_evenly(rows: int) -> int:
    """How many of ``rows`` are trained on: of those left over, each process would need one."""
    return rows // world() * world()


def total(*values: float) -> list[float]:
    """Sums over the processes, in float64; the same bits in every process."""
    if world() == 1:
        return [float(value) for value in values]
    tensor = torch.tensor(values, dtype=torch.float64, device=_device())
    dist.all_reduce(tensor)
    return tensor.tolist()


def gather(*columns: Tensor) -> list[list[Tensor]]:
    """The 1-D ``columns`` of each process, in the order of the processes, on the CPU.

    Lengths may differ between columns and processes, dtypes may not. Integers travel as integers.
    """
    if world() == 1:
        return [[column.cpu() for column in columns]]
    lengths = torch.tensor([len(column) for column in columns])
    lengths = torch.stack(_all(lengths)).cpu()
    gathered: list[list[Tensor]] = [[] for _ in range(world())]
    for number, column in enumerate(columns):
        size = int(lengths[:, number].max())
        if size:
            parts = _all(torch.cat([column.cpu(), column.new_zeros(size - len(column)).cpu()]))
        else:
            parts = [column.cpu()] * world()
        for mine, part, length in zip(gathered, parts, lengths[:, number].tolist(), strict=True):
            mine.append(part[:length].cpu())
    return gathered


def pooled(values: Tensor) -> Tensor:
    """The values ``[n]`` of all processes, in the order of the processes; see `gather`."""
    return values if world() == 1 else torch.cat([part for (part,) in gather(values)])


def gathered(value: Any) -> list[Any]:
    """The ``value`` of each process, anything that can be pickled, in their order."""
    every = [value] * world()
    if world() > 1:
        dist.all_gather_object(every, value)
    return every


def agree(*texts: str) -> None:
    """Raise ``ValueError`` in all processes if one has other ``texts`` than process 0."""
    every = gathered(texts)
    for number, other in enumerate(every):
        if other != every[0]:
            unlike = "other settings than process 0, or resumes another checkpoint"
            raise ValueError(f"process {number} has {unlike}: pass the same, and one shared folder")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a DistributedDataParallel, or ``model`` itself."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def same_buffers(model: nn.Module) -> None:
    """Copy the buffers of process 0, such as BatchNorm statistics, to the other processes."""
    if world() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def _all(values: Tensor) -> list[Tensor]:
    values = values.to(_device()).contiguous()
    parts = [torch.empty_like(values) for _ in range(world())]
    dist.all_gather(parts, values)
    return parts


def _device() -> torch.device:
    """A device whose tensors the process group can exchange."""
    if "cpu:" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")
