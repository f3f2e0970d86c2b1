"""Joules of dense and gated epochs: `python -m tests.benchmarks.energy` writes energy.json.

SimpleCNN on noise in the shape of CIFAR-10, on the accelerator if there is one. Where no counter
can be read it says so in one sentence and writes nothing.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch

from astkit import models
from astkit.files import write_atomic
from astkit.gating import Gate
from astkit.profiling import EnergyMeter, compare_energy
from astkit.profiling.ledger import synchronizer
from astkit.stamp import describe, stamp
from astkit.trainers import DenseStep, GatedStep, Progress, Step, Trainer
from astkit.trainers.learner import choose_device
from tests.benchmarks.measure import BATCH, ENDLESS, RATE, cifar_loader

RESULTS = Path(__file__).with_name("energy.json")


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
    result = compare_energy(
        {
            "dense": epochs_of(DenseStep(), options.rows, device),
            "gated": epochs_of(GatedStep(gate), options.rows, device),
        },
        counter=meter.counter,
        pairs=options.pairs,
        min_window_s=options.min_window,
        synchronize=synchronizer(device),
    )
    meter.close()
    print(result)
    content = {
        "stamp": environment,
        "device": str(device),
        "model": "simple_cnn",
        "rows": options.rows,
        "batch_size": BATCH,
        "rate": RATE,
        **json.loads(result.to_json()),
    }
    write_atomic(options.out, json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
