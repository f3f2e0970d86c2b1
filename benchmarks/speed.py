"""What a training step costs over a raw torch loop: `python -m benchmarks.speed`.

All ways of training do the same work on the digits: batches of 128, cross-entropy, gradients
clipped to norm 1, fused AdamW. The raw loops are the least code that does so. Each call takes
`STEPS` steps, and calls take turns; a ratio is taken within a round. On the CPU these are CPU
seconds of one thread, which other processes disturb less than elapsed ones. With ``--peers``, which
needs the environment of ``make peers``, other libraries take turns too. Writes speed.json.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit import rng
from astkit.datasets import Images, Loader, load
from astkit.gating import Gate, Policy
from astkit.models import DigitsCNN
from astkit.profiling import interleaved
from astkit.profiling.ledger import synchronizer
from astkit.trainers import TrainConfig, Trainer
from benchmarks import bench
from benchmarks.bench import BATCH, ENDLESS, Figure, advance

RESULTS = bench.HERE / "speed.json"
ROUNDS, STEPS, RATE = 21, 28, 0.25
BOUNDS = {"digits_cnn": 1.08, "small": 1.25}  # a dense step over a raw one
LR = 1e-3
Step = Callable[[], object]


def small() -> nn.Module:
    """A network with about a third of the FLOPs of digits_cnn."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"digits_cnn": DigitsCNN, "small": small}


def network(name: str, device: torch.device) -> nn.Module:
    """A network with the same weights at each call."""
    with rng.isolated("cpu", 0, "model"):
        return NETWORKS[name]().to(device)


class Raw:
    """A plain loop; with ``rate`` it scores the batch and trains on the rows of largest loss."""

    def __init__(self, name: str, digits: Images, device: torch.device, rate: float = 1.0) -> None:
        self.images, self.labels = digits.images.to(device), digits.labels.to(device)
        mean, std = digits.channel_stats()
        self.mean, self.std = mean[0], std[0]
        self.model, self.rows = network(name, device), round(rate * BATCH)
        self.parameters = list(self.model.parameters())
        self.adamw = torch.optim.AdamW(self.parameters, lr=LR, fused=True)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised batches, shuffled in each epoch."""
        for _ in repeat(None):
            order = torch.randperm(len(self.labels)).to(self.labels.device)
            for rows in order.split(BATCH):
                images = self.images.index_select(0, rows).float().div_(255)
                yield images.sub_(self.mean).div_(self.std), self.labels.index_select(0, rows)

    def steps(self) -> Iterator[None]:
        """Train a step at a time."""
        for x, y in self.batches():
            if self.rows < BATCH:
                with torch.no_grad():
                    losses = F.cross_entropy(self.model(x), y, reduction="none")
                few = losses.topk(min(self.rows, len(y))).indices
                x, y = x.index_select(0, few), y.index_select(0, few)
            self.adamw.zero_grad(set_to_none=True)
            F.cross_entropy(self.model(x), y).backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.adamw.step()
            yield


def kit(
    name: str, digits: Images, device: torch.device, policy: Policy | None = None, **settings: Any
) -> Iterator[object]:
    """The records of a `Trainer`."""
    loader = Loader(digits, BATCH, normalize=digits.channel_stats(), resident=True)
    config = TrainConfig(lr=LR, **settings)
    options = {"policy": policy, "budget": ENDLESS, "config": config, "device": device}
    trainer = Trainer(network(name, device), loader, **options)
    return (each for each in trainer.steps() if each.phase == "train")


def ways(name: str, device: torch.device) -> dict[str, Step]:
    """Ways of training, each a function that takes `STEPS` steps."""
    digits = load("digits")[0]
    runs = {
        "raw": Raw(name, digits, device).steps(),
        "raw gate": Raw(name, digits, device, RATE).steps(),
        "dense": kit(name, digits, device),
        "gate": kit(name, digits, device, Gate(RATE, controller="top_k")),
        "gate, log_integral": kit(name, digits, device, Gate(RATE)),
    }
    return {way: partial(advance, steps, STEPS) for way, steps in runs.items()}


RATIOS = (
    ("dense", "raw"),
    ("gate", "raw gate"),
    ("gate", "raw"),
    ("gate, log_integral", "raw gate"),
    ("gate, log_integral", "raw"),
)


def compared(
    name: str, rounds: int, peers: dict[str, Step], device: torch.device | None = None
) -> Iterator[Figure]:
    """Seconds of each way of training over those of a raw loop."""
    device = device or torch.device("cpu")
    every = {**ways(name, device), **peers}
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times = interleaved(every, rounds=rounds, clock=clock, synchronize=synchronizer(device))
    for way, raw in (*RATIOS, *((peer, "raw") for peer in peers)):
        yield bench.ratio(
            f"{name}: {way} / {raw}",
            times,
            way,
            raw,
            f"seconds of {STEPS} steps of {BATCH} digits, {device.type}",
            at_most=BOUNDS[name] if way == "dense" and device.type == "cpu" else None,
            seconds={each: times.median(each) / STEPS for each in (way, raw)},
        )


def main(arguments: list[str] | None = None) -> None:
    """Measure both networks on one CPU thread and write the results in one piece."""
    asked = bench.options(
        main.__doc__, RESULTS, arguments, rounds=ROUNDS, networks=[*NETWORKS], peers=False
    )
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.speed", *words])
    found: dict[str, dict[str, Step]] = {name: {} for name in asked.networks}
    versions = {}
    with bench.one_thread():
        if asked.peers:
            from benchmarks import peers

            os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the threads of the peers
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            versions = peers.versions()
            found = {
                name: peers.ways(partial(network, name, torch.device("cpu"))) for name in found
            }
        results = (each for name in found for each in compared(name, asked.rounds, found[name]))
        bench.record(asked.out, results, command=command, peers=versions)


if __name__ == "__main__":
    main()
