"""Runs a function in several processes that form a gloo group, and what they train on there."""

import multiprocessing
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import Budget, Gate, Policy, RunInfo, Selection, TrainConfig, indexed
from astkit import distributed as several
from tests import build
from tests.trainers.states import RecordedTrainer

SECONDS = 240.0  # before the processes of a test are ended

# one server imports torch and the kit, and forks the processes of all tests
_context = multiprocessing.get_context("forkserver")
_PRELOADED = ("tests.trainers.worlds", "astkit.trainers.trainer", "torch.distributed.fsdp")
# DistributedDataParallel imports torch._dynamo, which takes seconds
_context.set_forkserver_preload([*_PRELOADED, "torch._dynamo"])


CRITERION = nn.CrossEntropyLoss(reduction="none")


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
    data = TensorDataset(x, y)
    data.labels = y
    return data


def network(dtype: torch.dtype = torch.float64, wrapped: bool = True, seed: int = 0) -> nn.Module:
    """A small network without batch statistics, wrapped where there are several processes."""
    model: nn.Module = build.network(8, 10, 16, seed=seed, dtype=dtype)
    if wrapped and dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    return model


def joined(parts: Iterable[list[int]]) -> list[int]:
    """The lists in one."""
    return list(chain.from_iterable(parts))


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector, gathered if they are in shards."""
    whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters())
    return torch.cat([parameter.detach().flatten() for parameter in whole])


def built(policy: Any, data: Any = None, wrapped: bool = True, **options: Any) -> RecordedTrainer:
    """A trainer of `network`, with SGD, whose steps are recorded."""
    dtype = options.pop("dtype", torch.float64) if data is None else data.tensors[0].dtype
    config = options.pop("config", TrainConfig())
    options = {"epochs": 2, "batch_size": 24, **options}
    validation = options.pop("validation", None)
    model = options.pop("model", None) or network(dtype, wrapped)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    data = data or numbers(96, dtype)
    options |= {"policy": policy, "optimizer": optimizer, "config": config}
    return RecordedTrainer(model, data, validation, **options)


def seen(result: Any) -> tuple[Any, ...]:
    """Weights, normaliser and threshold of a step."""
    chosen = result.selection or Selection(result.rows)
    return chosen.weight, float(chosen.total), chosen.threshold


def trained(policy: Any, options: dict[str, Any] | None = None) -> dict[str, Any]:
    trainer = built(policy, **(options or {}))
    history = trainer.run()
    return {
        "weights": flat(trainer.model),
        "rows": trainer.rows,
        "seen": [seen(result) for result in trainer.results],
        "ledger": trainer.ledger.state_dict(),
        "policy": trainer.policy.state_dict(),
        "validated": [epoch.get("val_loss") for epoch in history.epochs],
        "spent": trainer.step,
    }


class Asking(Policy):
    """Asks for features of many rows, and of fewer than processes."""

    def plan(self, run: RunInfo) -> None:
        assert run.features is not None
        counts = torch.arange(21), torch.tensor([5])
        self.found = [run.features(rows, of) for rows in counts for of in ("data", "validation")]


def asked() -> list[Tensor]:
    policy = Asking()
    built(policy, validation=numbers(50, seed=1), budget=Budget(steps=1), epochs=None).run()
    return policy.found


def looped(policy: Any, make_model: Callable[[], nn.Module] = network) -> Tensor:
    """Weights from a loop of the user's own: 24 rows a step in all processes together."""
    model, data = make_model(), numbers(97)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    sampler = policy.sampler(data, epochs=3)
    loader = DataLoader(indexed(data), batch_size=24 // several.world(), sampler=sampler)
    for _ in range(3):
        for index, (x, y) in loader:
            outputs = model(x)
            policy.mean(CRITERION(outputs, y), index, outputs, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


def gated(gate: Gate, steps: int) -> list[float]:
    """Thresholds in a loop of the user's own with a gate, without a `Trainer`."""
    model, data = network(), numbers(96)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    thresholds = []
    for step in range(steps):
        mine = torch.arange(step % 4 * 24, step % 4 * 24 + 24)[several.share(24)]
        x, y = data[mine]
        chosen = gate(model, x, y)
        chosen.mean(CRITERION(model(x[chosen.index]), y[chosen.index])).backward()
        optimizer.step()
        optimizer.zero_grad()
        thresholds.append(gate.controller.state_dict()["value"])
    return thresholds
