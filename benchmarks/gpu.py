"""Measurements that need a GPU: `python -m benchmarks.gpu --out FILE` writes one JSON.

What does a step cost with batches of several sizes, dense and gated, plain and with the fast
settings, beside a raw loop; how many joules does a gate save; does training make the host wait; and
what does the original's loop cost. The file is written after each part, the most telling first; a
part that fails is recorded with its error, and none begins after `LIMIT_S` less its own estimate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from astkit import models
from astkit.datasets import Images, Loader
from astkit.files import write_json
from astkit.gating import Gate
from astkit.profiling import EnergyMeter, interleaved
from astkit.profiling.ledger import synchronizer
from astkit.stamp import describe, stamp
from astkit.trainers import SampleBySampleTrainer, TrainConfig, Trainer
from benchmarks import bench, speed
from benchmarks.bench import BATCH, ENDLESS, advance
from benchmarks.gain import resnet
from benchmarks.measure import STATS, original_gate, synthetic

Part = dict[str, Any]
WARMUP, STEPS, ROUNDS, RATE = 20, 40, 21, 0.25
STRETCHES, STRETCH_S = 5, 3.0  # the meter asks for 2.5 s each, and 10 s together
ROWS = 50_000  # of an epoch, as CIFAR-10 has
EPOCH = ROWS // BATCH
RATIOS = (
    ("dense", "raw"),
    ("dense", "dense, fast"),
    ("gate", "dense"),
    ("gate, fast", "dense, fast"),
)
POLICIES = {"dense": None, "top_k": {"name": "gate", "rate": RATE, "controller": "top_k"}}
HALF: dict[str, Any] = {"precision": "bf16", "channels_last": True}
FAST = {**HALF, "graphs": True}
COMPILED = {**HALF, "compile": True}
GATE_RATE, WINDOWS, WINDOW_S = 0.1, 15, 0.3
FIRST, TIMED, PROFILED = 12, 4, 5  # steps before the windows
LIMIT_S = 540.0
DEVICE = torch.device("cuda")


@cache
def noise(rows: int) -> Images:
    """Images of noise, made once."""
    return synthetic(rows)


def network(name: str) -> nn.Module:
    """A network for images of 3x32x32."""
    if name == "resnet9":
        return resnet(3, 10)
    return models.build(name, (3, 32, 32), 10)


def training(
    policy: Any,
    batches: int,
    name: str = "simple_cnn",
    make: Callable[..., Any] = Trainer,
    size: int = BATCH,
    **settings: Any,
) -> Any:
    """A trainer of a network on noise that lies on the GPU; it reports once in 1,000 batches."""
    loader = Loader(noise(batches * size), size, normalize=STATS, resident=True)
    config = TrainConfig(report_every=1000, **settings)
    return make(network(name), loader, policy=policy, budget=ENDLESS, config=config, device=DEVICE)


def raw(name: str, size: int) -> Iterator[None]:
    """A plain training loop on the same data."""
    data = noise(ROWS // size * size)
    images, labels = data.images.to(DEVICE), data.labels.to(DEVICE)
    mean, std = (torch.tensor(each, device=DEVICE).view(3, 1, 1) for each in STATS)
    model = network(name).to(DEVICE)
    parameters = list(model.parameters())
    adamw = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    while True:
        for rows in torch.randperm(len(labels)).to(DEVICE).split(size):
            x, y = (images[rows].float() / 255 - mean) / std, labels[rows]
            adamw.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            adamw.step()
            yield


def top_k() -> Gate:
    """The gate of the tables: its largest tenth by loss, without a wait."""
    return Gate(GATE_RATE, controller="top_k")


def trainers(name: str, size: int) -> dict[str, Trainer]:
    """A trainer for each way of training."""
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "dense": (None, {}),
        "dense, fast": (None, FAST),
        "gate": (top_k(), {}),
        "gate, fast": (top_k(), FAST),
    }
    return {
        way: training(policy, ROWS // size, name, size=size, **settings)
        for way, (policy, settings) in ways.items()
    }


def kernel_seconds(steps: Iterator[Any]) -> float:
    """Seconds a step in which the GPU computes, by torch's profiler."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        advance(steps, PROFILED)
        torch.cuda.synchronize()
    events = profiler.key_averages()
    return sum(event.self_device_time_total for event in events) / 1e6 / PROFILED


def steps_of(name: str, size: int) -> Part:
    """Seconds of a step of each arm, in windows of `WINDOW_S` that take turns."""
    trained = trainers(name, size)
    arms: dict[str, Iterator[Any]] = {"raw": raw(name, size)}
    for way, trainer in trained.items():
        arms[way] = (each for each in trainer.steps() if each.phase == "train")
    windows, counts = {}, {}
    for way, steps in arms.items():
        advance(steps, FIRST)
        torch.cuda.synchronize()
        start = time.perf_counter()
        advance(steps, TIMED)
        torch.cuda.synchronize()
        taken = (time.perf_counter() - start) / TIMED
        counts[way] = max(1, round(WINDOW_S / taken))
        windows[way] = partial(advance, steps, counts[way])
    times = interleaved(windows, rounds=WINDOWS, warmup=1, synchronize=synchronizer(DEVICE))
    seconds = {way: [s / counts[way] for s in times.seconds[way]] for way in windows}
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    busy = {way: kernel_seconds(arms[way]) / medians[way] for way in ("dense", "gate")}
    ratios = {}
    for above, below in RATIOS:
        pairs = zip(seconds[above], seconds[below], strict=True)
        ratios[f"{above} / {below}"] = bench.figure(
            f"{name}, {size}: {above} / {below}", [a / b for a, b in pairs], "seconds of a step"
        )
    work = {way: trainer.optimisation for way, trainer in trained.items() if "fast" in way}
    replayed = {way: each.replayed / each.steps for way, each in work.items()}
    reasons = {way: each.graphs and each.graphs.reason for way, each in work.items()}
    return {
        "seconds": medians,
        "ratios": ratios,
        "busy": busy,
        "replayed": replayed,
        "reasons": reasons,
    }


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
    """Seconds of a step over those of raw loops, see `benchmarks.speed`."""
    device = torch.device("cuda")
    return {
        "figures": [f for name in speed.NETWORKS for f in speed.compared(name, rounds, {}, device)]
    }


def half_and_compiled(rounds: int = ROUNDS) -> Part:
    """Seconds of `STEPS` steps in fp32 over those with `COMPILED`, and the compiled losses."""
    arms: dict[str, Callable[[], None]] = {}
    trainers = {}
    for name, policy in POLICIES.items():
        for kind, settings in (("fp32", {}), ("bf16, compiled", COMPILED)):
            trainer = trainers[f"{name}, {kind}"] = training(policy, STEPS, **settings)
            records = (each for each in trainer.steps() if each.phase == "train")
            arms[f"{name}, {kind}"] = partial(advance, records, STEPS)
    times = interleaved(arms, rounds=rounds, synchronize=synchronizer(torch.device("cuda")))
    ratios = {
        name: vars(times.ratio(f"{name}, fp32", f"{name}, bf16, compiled")) for name in POLICIES
    }
    losses = {name: trainer.history.steps[-1]["loss"] for name, trainer in trainers.items()}
    return {"fp32_over_fast": ratios, "table": times.table(), "losses": losses}


def joules(name: str, size: int = BATCH, fast: bool = False) -> Part:
    """Joules of a batch, read from the counter of the board, in stretches that take turns.

    At `BATCH` rows the gate is the original's, else the one of `steps_of`.
    """
    meter, settings = EnergyMeter("cuda"), FAST if fast else {}
    gate = original_gate() if size == BATCH else top_k()
    runs = {
        way: training(policy, ROWS // size, name, size=size, **settings).steps()
        for way, policy in (("dense", None), ("gate", gate))
    }
    steps = dict.fromkeys(runs, 0)
    for way in list(runs) * STRETCHES:
        advance(runs[way], FIRST)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with meter.window(way):
            while time.perf_counter() - start < STRETCH_S:
                advance(runs[way], 10)
                torch.cuda.synchronize()  # else steps would queue beyond the window
                steps[way] += 10
    readings = {way: meter.reading(way) for way in runs}
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
    asked = bench.options(main.__doc__, None, arguments, rounds=ROUNDS, parts=[*PARTS])
    if not torch.cuda.is_available():
        raise SystemExit("not run: torch sees no CUDA GPU")
    command = f"python -m benchmarks.gpu --rounds {asked.rounds}"
    content: Part = {"command": command, "stamp": stamp(), "parts": {}}
    print(describe(content["stamp"]))
    start = time.perf_counter()
    for name in asked.parts:
        part, estimate = PARTS[name]
        if time.perf_counter() - start + estimate > LIMIT_S:
            print(f"{name}: not begun, since it could pass {LIMIT_S:g} s", flush=True)
            continue
        with_rounds = partial(part, asked.rounds) if part in WITH_ROUNDS else part
        found = content["parts"][name] = attempt(with_rounds)
        print(f"{name}: {found.get('error', 'done')} ({found['part_seconds']:.1f} s)", flush=True)
        write_json(asked.out, content)
        torch.cuda.empty_cache()


SIZES = (
    ("simplified_vit", 512),
    ("resnet9", 512),
    ("simple_cnn", BATCH),
    ("simplified_vit", 2048),
    ("simplified_vit", BATCH),
    ("resnet9", 2048),
    ("resnet9", BATCH),
    ("digits_cnn", BATCH),
)
PARTS: dict[str, tuple[Callable[..., Part], float]] = {
    **{f"steps, {name}, {size}": (partial(steps_of, name, size), 40.0) for name, size in SIZES[:2]},
    **{
        f"joules, {name}, 512": (partial(joules, name, 512, fast=True), 40.0)
        for name in ("simplified_vit", "resnet9")
    },
    **{f"steps, {name}, {size}": (partial(steps_of, name, size), 40.0) for name, size in SIZES[2:]},
    "waits": (waits, 10.0),
    "overhead": (overhead, 40.0),
    "half_and_compiled": (half_and_compiled, 60.0),
    "by_sample": (by_sample, 40.0),
    "joules, simple_cnn": (partial(joules, "simple_cnn"), 40.0),
    "joules, simplified_vit": (partial(joules, "simplified_vit"), 40.0),
}
"""Each part with the seconds that it may take; the first ones are the most telling."""
WITH_ROUNDS = (overhead, half_and_compiled, by_sample)


if __name__ == "__main__":
    main()
