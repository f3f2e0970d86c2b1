"""Measurements that need a GPU: `python -m tests.benchmarks.gpu --out FILE` writes one JSON.

Does training make the host wait, what does a step cost over a raw loop, what do bf16 and
torch.compile gain, how many joules does a gate save, and what does the original's loop cost. A part
that fails is recorded with its error, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from astkit import models
from astkit.datasets import Loader
from astkit.files import write_json
from astkit.profiling import EnergyMeter, interleaved
from astkit.profiling.ledger import synchronizer
from astkit.stamp import describe, stamp
from astkit.trainers import SampleBySampleTrainer, TrainConfig, Trainer
from tests.benchmarks import bench, speed
from tests.benchmarks.bench import BATCH, ENDLESS, advance
from tests.benchmarks.measure import STATS, original_gate, synthetic

Part = dict[str, Any]
WARMUP, STEPS, ROUNDS, RATE = 20, 40, 21, 0.25
STRETCHES, STRETCH_S = 4, 2.6  # the meter asks for 2.5 s each, and 10 s together
EPOCH = 50_000 // BATCH  # batches of CIFAR-10
POLICIES = {"dense": None, "top_k": {"name": "gate", "target_rate": RATE, "controller": "top_k"}}
FAST: dict[str, Any] = {"precision": "bf16", "channels_last": True, "compile": True}


def training(
    policy: Any,
    batches: int,
    name: str = "simple_cnn",
    make: Callable[..., Any] = Trainer,
    **settings: Any,
) -> Any:
    """A trainer of a network on noise that lies on the GPU; it reports once in 1,000 batches."""
    data = synthetic(batches * BATCH)
    loader = Loader(data, BATCH, normalize=STATS, resident=True)
    config = TrainConfig(report_every=1000, **settings)
    model = models.build(name, data.shape, data.num_classes)
    return make(model, loader, policy=policy, budget=ENDLESS, config=config, device="cuda")


@contextmanager
def synchronising_raises() -> Iterator[None]:
    """Turn each wait of the host for the GPU into a ``RuntimeError``."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits() -> Part:
    """Whether `STEPS` steps of an epoch pass without a wait, after `WARMUP` steps."""
    found = {}
    for name, policy in POLICIES.items():
        records = training(policy, WARMUP + STEPS + 1).steps()
        advance(records, WARMUP)
        with synchronising_raises():
            advance(records, STEPS)
        found[name] = {"steps": STEPS, "waits": 0}
    return found


def overhead(rounds: int = ROUNDS) -> Part:
    """Seconds of a step over those of raw loops, see `tests.benchmarks.speed`."""
    device = torch.device("cuda")
    return {
        "figures": [f for name in speed.NETWORKS for f in speed.compared(name, rounds, {}, device)]
    }


def half_and_compiled(rounds: int = ROUNDS) -> Part:
    """Seconds of `STEPS` steps in fp32 over those with `FAST`, and the compiled losses."""
    arms: dict[str, Callable[[], None]] = {}
    trainers = {}
    for name, policy in POLICIES.items():
        for kind, settings in (("fp32", {}), ("bf16, compiled", FAST)):
            trainer = trainers[f"{name}, {kind}"] = training(policy, STEPS, **settings)
            records = (each for each in trainer.steps() if each.phase == "train")
            arms[f"{name}, {kind}"] = partial(advance, records, STEPS)
    times = interleaved(arms, rounds=rounds, synchronize=synchronizer(torch.device("cuda")))
    ratios = {
        name: vars(times.ratio(f"{name}, fp32", f"{name}, bf16, compiled")) for name in POLICIES
    }
    losses = {name: trainer.history.steps[-1]["loss"] for name, trainer in trainers.items()}
    return {"fp32_over_fast": ratios, "table": times.table(), "losses": losses}


def joules(name: str) -> Part:
    """Joules of a batch, read from the counter of the board, in stretches that take turns."""
    meter = EnergyMeter("cuda")
    ways = {"dense": None, "gate": original_gate()}
    runs = {way: training(policy, EPOCH, name).steps() for way, policy in ways.items()}
    steps = dict.fromkeys(ways, 0)
    for way in list(ways) * STRETCHES:
        advance(runs[way], WARMUP)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with meter.window(way):
            while time.perf_counter() - start < STRETCH_S:
                advance(runs[way], 10)
                steps[way] += 10
            torch.cuda.synchronize()
    readings = {way: meter.reading(way) for way in ways}
    batch = {}
    for way, reading in readings.items():
        if reading.joules is None:
            raise LookupError(str(reading))
        batch[way] = reading.joules / steps[way]
    saved = 1 - batch["gate"] / batch["dense"]
    found = {way: vars(reading) for way, reading in readings.items()}
    return {"readings": found, "steps": steps, "joules_a_batch": batch, "saved": saved}


def by_sample(rounds: int = ROUNDS) -> Part:
    """Seconds of a batch sample by sample, with an update a sample, over those of the gate: ViT."""
    arms = {}
    loop = partial(SampleBySampleTrainer, update="per_sample")
    makes: dict[str, Callable[..., Any]] = {"sample by sample": loop, "batched": Trainer}
    for way, make in makes.items():
        records = training(original_gate(), EPOCH, "simplified_vit", make).steps()
        advance(records, WARMUP)  # until the rate is the gate's
        arms[way] = partial(advance, records, 1)
    times = interleaved(arms, rounds=rounds, synchronize=synchronizer(torch.device("cuda")))
    ratio = vars(times.ratio("sample by sample", "batched"))
    return {"ratio": ratio, "seconds": {way: times.median(way) for way in arms}, "epoch": EPOCH}


def attempt(part: Callable[[], Part]) -> Part:
    """What ``part`` returns with the seconds it took, or its error."""
    start = time.perf_counter()
    try:
        found = part()
    except Exception as error:  # the other parts must still run
        found = {"error": f"{type(error).__name__}: {error}"}
    return {**found, "part_seconds": time.perf_counter() - start}


def main(arguments: list[str] | None = None) -> None:
    """Measure every part and write the results after each of them."""
    asked = bench.options(main.__doc__, None, arguments, rounds=ROUNDS)
    if not torch.cuda.is_available():
        raise SystemExit("not run: torch sees no CUDA GPU")
    command = f"python -m tests.benchmarks.gpu --rounds {asked.rounds}"
    content: Part = {"command": command, "stamp": stamp(), "parts": {}}
    print(describe(content["stamp"]))
    parts: dict[str, Callable[[], Part]] = {
        "waits": waits,
        "overhead": partial(overhead, asked.rounds),
        "half_and_compiled": partial(half_and_compiled, asked.rounds),
        "by_sample": partial(by_sample, asked.rounds),
        "joules, simple_cnn": partial(joules, "simple_cnn"),
        "joules, simplified_vit": partial(joules, "simplified_vit"),
    }
    for name, part in parts.items():
        found = content["parts"][name] = attempt(part)
        print(f"{name}: {found.get('error', 'done')} ({found['part_seconds']:.1f} s)", flush=True)
        write_json(asked.out, content)


if __name__ == "__main__":
    main()
