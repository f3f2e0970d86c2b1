"""Several processes under ``torch.distributed``: shares of rows, and the collectives of selection.

Gradients are averaged by torch's DistributedDataParallel or ``fully_shard``. This module adds what
selection exchanges. Without a process group, and in one of a single process, its functions return
their arguments and communicate nothing. Every process must call them equally often, in one order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree


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

    Of fewer rows than processes, some are taken by several of them, since every process has to take
    part in each step; `repeats` tells which of these do not count. An empty batch remains empty.
    """
    first, last = rows * rank() // world(), rows * (rank() + 1) // world()
    if first == last and rows:
        first = rank() % rows
        last = first + 1
    return slice(first, last)


def repeats(rows: int) -> bool:
    """Whether the `share` of this process repeats rows of another one, so that it has weight 0."""
    return rows * rank() // world() == rows * (rank() + 1) // world()


def total(*values: float) -> list[float]:
    """Sums over the processes, in float64; the same bits in every process."""
    return _reduced(values, dist.ReduceOp.SUM)


def least(*values: float) -> list[float]:
    """Minima over the processes."""
    return _reduced(values, dist.ReduceOp.MIN)


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


def agree(*texts: str) -> None:
    """Raise ``ValueError`` in all processes if one has other ``texts`` than process 0."""
    if world() == 1:
        return
    gathered: list[Any] = [None] * world()
    dist.all_gather_object(gathered, texts)
    for number, other in enumerate(gathered):
        if other != gathered[0]:
            raise ValueError(
                f"process {number} has other settings than process 0, or resumes another"
                " checkpoint: pass the same in all processes, and one shared folder"
            )


def agree_to(check: Callable[[], object]) -> None:
    """Raise in all processes what ``check`` raises in process 0."""
    try:
        check()
        refusal = None
    except ValueError as error:
        refusal = error
    if total(refusal is not None and rank() == 0)[0]:
        raise refusal or ValueError("process 0 refuses to continue: see its error")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a DistributedDataParallel, or ``model`` itself."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    assert isinstance(inner, nn.Module)
    return inner


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to ``model``."""
    return any(_sharded(parameter) for parameter in model.parameters())


def check_model(model: nn.Module) -> None:
    """Raise ``ValueError`` if several processes would train ``model`` without averaging gradients.

    Nothing is wrapped here, since bucket sizes, unused parameters and sharding are the user's.
    """
    if world() > 1 and unwrapped(model) is model and not is_sharded(model):
        raise ValueError(
            f"{world()} processes train a {type(model).__name__}, but nothing averages its"
            " gradients: pass DistributedDataParallel(model), or apply fully_shard(model)"
        )


def same_buffers(model: nn.Module) -> None:
    """Copy the buffers of process 0, such as BatchNorm statistics, to the other processes."""
    if world() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def whole(tree: Any) -> Any:
    """``tree`` with sharded tensors gathered; every process must call it."""
    return pytree.tree_map_only(_sharded, lambda part: part.full_tensor(), tree)


def sharded_like(value: Any, parameter: Tensor) -> Any:
    """``value`` sharded as ``parameter`` is, if it has the same shape; else unchanged."""
    shape = getattr(value, "shape", None)
    if not _sharded(parameter) or _sharded(value) or shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    like: Any = parameter
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _sharded(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # importing it takes seconds
    return module is not None and isinstance(value, module.DTensor)


def _reduced(values: Sequence[float], operation: Any) -> list[float]:
    if world() == 1:
        return [float(value) for value in values]
    tensor = torch.tensor(values, dtype=torch.float64, device=_device())
    dist.all_reduce(tensor, operation)
    return tensor.tolist()


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
