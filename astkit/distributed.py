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
    # on a device whose tensors the process group can exchange
    on_cpu = "cpu:" in dist.get_backend_config()
    device = None if on_cpu else torch.accelerator.current_accelerator()
    tensor = torch.tensor(values, dtype=torch.float64, device=device or "cpu")
    dist.all_reduce(tensor)
    return tensor.tolist()


def gather(value: Any) -> list[Any]:
    """What each process passes, in the order of the processes; tensors have to be on the CPU."""
    gathered = [value] * world()
    if world() > 1:
        dist.all_gather_object(gathered, value)
    return gathered


def pooled(values: Tensor) -> Tensor:
    """The values ``[n]`` of all processes, in the order of the processes."""
    return values if world() == 1 else torch.cat(gather(values.cpu().clone()))


def agree(*texts: str) -> None:
    """Raise ``ValueError`` in all processes if one has other ``texts`` than process 0."""
    gathered = gather(texts)
    for number, other in enumerate(gathered):
        if other != gathered[0]:
            raise ValueError(
                f"process {number} has other settings than process 0, or resumes another"
                " checkpoint: pass the same in all processes, and one shared folder"
            )


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a DistributedDataParallel, or ``model`` itself."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    assert isinstance(inner, nn.Module)
    return inner


def check_model(model: nn.Module) -> None:
    """Raise ``ValueError`` if several processes would train ``model`` without averaging gradients.

    Nothing is wrapped here, since bucket sizes and unused parameters are the user's.
    """
    if world() > 1 and unwrapped(model) is model:
        raise ValueError(
            f"{world()} processes train a {type(model).__name__}, but nothing averages its"
            " gradients: pass DistributedDataParallel(model); a model with fully_shard is trained"
            " in a loop of your own, with policy.sampler"
        )


def same_buffers(model: nn.Module) -> None:
    """Copy the buffers of process 0, such as BatchNorm statistics, to the other processes."""
    if world() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
