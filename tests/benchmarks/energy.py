"""Joules of dense and gated epochs: `python -m tests.benchmarks.energy` writes energy.json.

SimpleCNN on noise in the shape of CIFAR-10, on the accelerator if there is one. Where no counter
can be read it says so in one sentence and writes nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from astkit import models
from astkit.files import write_atomic
from astkit.gating import Gate
from astkit.profiling import EnergyMeter, EnergyReading, Timings, interleaved
from astkit.profiling.energy import STEPS
from astkit.profiling.energy_counters import EnergyCounter
from astkit.profiling.ledger import synchronizer
from astkit.stamp import describe, stamp
from astkit.trainers import DenseStep, GatedStep, Progress, Step, Trainer
from astkit.trainers.learner import choose_device
from tests.benchmarks.measure import BATCH, ENDLESS, RATE, cifar_loader

RESULTS = Path(__file__).with_name("energy.json")
MAX_SPREAD = 0.03
"""Standard deviation over mean of an arm's joules above which it is flagged."""


def compare(
    arms: Mapping[str, Callable[[], object]],
    counter: EnergyCounter,
    pairs: int,
    min_window_s: float,
    synchronize: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Joules a call of every arm, measured once a pair, each pair in another random order.

    An arm is called until its window lasts ``min_window_s``, or 100 steps of the counter if that
    is more; one more pair is run first and not kept. The first arm is the baseline. Where a reading
    is missing there is a reason and no table.
    """
    found: dict[str, list[tuple[EnergyReading, int]]] = {name: [] for name in arms}
    least, wait = max(min_window_s, STEPS * counter.step_s), synchronize or (lambda: None)

    def window(name: str) -> None:
        meter, calls = EnergyMeter(counter=counter, clock=clock), 0
        wait()
        while meter.reading().window_s < least:
            with meter.window():
                arms[name]()
                wait()
            calls += 1
        found[name].append((meter.reading(), calls))

    interleaved({name: lambda n=name: window(n) for name in arms}, rounds=pairs, warmup=1)
    kept = {name: windows[1:] for name, windows in found.items()}
    missing = (reading.reason for windows in kept.values() for reading, _ in windows)
    reason = next(filter(None, missing), None)
    content = {
        "reason": reason,
        "calls": {name: [calls for _, calls in windows] for name, windows in kept.items()},
        "readings": {name: [vars(reading) for reading, _ in kept[name]] for name in kept},
    }
    return content if reason else content | {"table": table(kept)}


def table(kept: Mapping[str, list[tuple[EnergyReading, int]]]) -> list[dict[str, Any]]:
    """One row an arm: median joules a call, their spread, and their ratio to the first arm's."""
    joules = {
        name: tuple((reading.joules or math.nan) / calls for reading, calls in windows)
        for name, windows in kept.items()
    }
    baseline, rows = next(iter(joules)), []
    for name, values in joules.items():
        ratio = Timings(joules, baseline).ratio(name, baseline)
        spread = float(np.std(values, ddof=1) / np.mean(values))
        rows.append(
            {
                "arm": name,
                "joules": float(np.median(values)),
                "spread": spread,
                "steady": spread <= MAX_SPREAD,
                "of_baseline": ratio.median,
                "of_baseline_low": ratio.low,
                "of_baseline_high": ratio.high,
                "pairs": ratio.n,
            }
        )
    return rows


def epochs_of(step: Step, rows: int, device: torch.device) -> Callable[[], None]:
    """A function that trains one more epoch each time it is called."""
    loader = cifar_loader(rows)
    trainer = Trainer(
        models.build("simple_cnn", loader.data.shape, loader.data.num_classes),
        loader,
        budget=ENDLESS,
        step=step,
        observers=[Progress(bar=False, stream=io.StringIO())],
        device=device,
    )
    batches = (record for record in trainer.steps() if record.phase == "train")

    def epoch() -> None:
        assert len(list(islice(batches, len(loader)))) == len(loader)

    return epoch


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the joules of dense and gated epochs and write the results in one piece."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--device", default="auto", help="the accelerator by default, else the CPU")
    parser.add_argument("--rows", type=int, default=50_000, help="images in an epoch")
    parser.add_argument("--pairs", type=int, default=5, help="windows of each arm")
    parser.add_argument("--min-window", type=float, default=10.0, help="seconds a window lasts")
    options = parser.parse_args(arguments)
    device = choose_device(options.device)
    meter = EnergyMeter(device)
    if meter.counter is None:
        print(meter.reading())
        return
    environment = stamp()
    print(describe(environment))
    gate = Gate(RATE, "loss_and_contrast", "log_integral")
    result = compare(
        {
            "dense": epochs_of(DenseStep(), options.rows, device),
            "gated": epochs_of(GatedStep(gate), options.rows, device),
        },
        meter.counter,
        options.pairs,
        options.min_window,
        synchronizer(device),
    )
    for row in result.get("table", ()):
        print(row)
    content = {
        "stamp": environment,
        "device": str(device),
        "model": "simple_cnn",
        "rows": options.rows,
        "batch_size": BATCH,
        "rate": RATE,
        **result,
    }
    write_atomic(options.out, json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
