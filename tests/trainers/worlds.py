"""Runs a function in several processes that form a gloo group, and what they train on there."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SECONDS = 60.0  # before the processes of a test are ended

# one server imports torch and the kit, and forks the processes of all tests
_context = multiprocessing.get_context("forkserver")
_PRELOADED = ("tests.trainers.worlds", "astkit.trainers.trainer", "torch.distributed.fsdp")
# DistributedDataParallel imports torch._dynamo, which takes seconds
_context.set_forkserver_preload([*_PRELOADED, "torch._dynamo"])


class Ended(Exception):  # noqa: N818 - not an error of this module
    """What the processes answered, if one of them failed: results, errors or ``None`` by rank."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("\n".join(str(each) for each in answers))
        self.answers = answers


def in_world(
    world: int, work: Callable[..., Any], *args: Any, timeout: float = SECONDS
) -> list[Any]:
    """The results of ``work(*args)`` in ``world`` processes, by rank.

    Raises `Ended` where one raises, is killed, or takes longer than ``timeout`` seconds.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [_context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        _context.Process(target=_run, args=(send, rank, world, port, timeout, work, args))
        for rank, (_, send) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, send in pipes:
        send.close()
    until = time.monotonic() + timeout
    answers = []
    for process, (receive, _) in zip(processes, pipes, strict=True):
        answer = None
        try:
            if receive.poll(max(0.0, until - time.monotonic())):
                answer = pickle.loads(receive.recv_bytes())
        except (EOFError, ConnectionError):  # killed
            pass
        answers.append(answer)
        process.join(2.0)
        if process.is_alive():
            process.kill()
    if any(answer is None or isinstance(answer, str) for answer in answers):
        raise Ended(answers)
    return [answer[0] for answer in answers]


def _run(
    send: Any,
    rank: int,
    world: int,
    port: int,
    timeout: float,
    work: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        if world > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://127.0.0.1:{port}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout),
            )
        # not send: torch would share the memory of tensors, which ends with this process
        send.send_bytes(pickle.dumps((work(*args),)))
        if world > 1:
            dist.destroy_process_group()
    except BaseException as error:
        sentence = f"{type(error).__name__}: {error}"
        send.send_bytes(pickle.dumps(f"{sentence}\n{traceback.format_exc()}"))


def numbers(rows: int = 96, dtype: torch.dtype = torch.float64, seed: int = 0) -> TensorDataset:
    """Ten classes of points in 8 dimensions, with noise."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 8, generator=random, dtype=dtype)
    y = (x @ torch.randn(8, 10, generator=random, dtype=dtype)).argmax(1)
    return TensorDataset(x, y)


def network(dtype: torch.dtype = torch.float64, wrapped: bool = True, seed: int = 0) -> nn.Module:
    """A small network without batch statistics, wrapped where there are several processes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)).to(dtype)
    if wrapped and dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    return model


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
