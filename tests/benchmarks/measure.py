"""The kit's speed as ratios: `python -m tests.benchmarks.measure` writes results.json.

Each figure is one function of its number of rounds and returns a plain dict. All arms of a figure
run in one process, interleaved, on the CPU; a ratio is taken within a round, so what slows a whole
round cancels. Where no worker takes part, CPU seconds are counted. ``test_ratios.py`` holds the
same figures to the same bounds with fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from astkit import models, rng
from astkit.datasets import Images, Loader, load
from astkit.files import write_atomic
from astkit.gating import CachedLoss, Gate, RunInfo
from astkit.profiling import Timings, bootstrap_interval, interleaved
from astkit.stamp import describe, stamp
from astkit.trainers import Budget, SampleBySampleTrainer, Trainer

Figure = dict[str, Any]

RESULTS = Path(__file__).with_name("results.json")
BATCH = 128
RATE = 0.10
ENDLESS = Budget(epochs=1e9)
STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # CIFAR-10's channels, units 0..1


def figure(
    name: str,
    values: Sequence[float],
    sense: Literal["at most", "at least"],
    bound: float | None,
    meaning: str,
    **context: Any,
) -> Figure:
    """Median of one value a round, its 95 % bootstrap interval, and whether it keeps ``bound``."""
    median = float(np.median(values))
    low, high = bootstrap_interval(values)
    kept = None if bound is None else median <= bound if sense == "at most" else median >= bound
    return {
        "name": name,
        "median": median,
        "low": low,
        "high": high,
        "n": len(values),
        "bound": bound,
        "sense": sense,
        "kept": kept,
        "meaning": meaning,
        **context,
    }


def line(result: Figure) -> str:
    """A figure in one line."""
    bound = f"{result['sense']} {result['bound']:g}: " if result["bound"] is not None else ""
    verdict = {True: "kept", False: "MISSED", None: "no bound"}[result["kept"]]
    spread = f"[{result['low']:.4g}, {result['high']:.4g}], n = {result['n']}"
    return f"{result['name']}: {result['median']:.4g} {spread} ({bound}{verdict})"


def record(
    out: Path, results: Iterable[Figure], line: Callable[[Figure], str], **more: Any
) -> None:
    """Write ``results`` to ``out`` in one piece, with the stamp from before the first; prints them.

    The load is that of the last 1, 5, 15 minutes: well below "cpus" on a quiet machine.
    """
    environment, load_before = stamp(), os.getloadavg()
    print(describe(environment))
    figures = []
    for result in results:
        figures.append(result)
        print(line(result), flush=True)
    content = {"stamp": environment, "load_before": load_before, **more, "figures": figures}
    write_atomic(out, json.dumps(content, indent=1, allow_nan=False) + "\n")


@contextmanager
def one_thread() -> Iterator[None]:
    """Restores torch's number of CPU threads at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synthetic(rows: int, shape: tuple[int, int, int] = (3, 32, 32)) -> Images:
    """Random noise in CIFAR-10's shape; the cost does not depend on the values."""
    random = rng.generator(0, "synthetic")
    pixels = torch.randint(256, (rows, *shape), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (rows,), generator=random)
    return Images(pixels, labels, tuple("0123456789"), "synthetic")


def sample_by_sample(
    update: Literal["per_batch", "per_sample"], bound: float | None, rounds: int
) -> Figure:
    """The sample-by-sample loop over the batched gate.

    ``update``: an optimizer step per batch, as the gate takes, or per active row, as the original.
    """
    digits, _ = load("digits")
    loader = Loader(digits, BATCH, normalize=digits.channel_stats(), drop_last=True)
    steps = len(loader)
    trainers = {
        update: partial(SampleBySampleTrainer, update=update),
        "batched": Trainer,
    }
    built = {
        name: make(
            models.build("digits_cnn", digits.shape, digits.num_classes),
            loader,
            policy=Gate(RATE, "loss_and_contrast", "log_integral"),
            budget=ENDLESS,
            device="cpu",
        )
        for name, make in trainers.items()
    }
    arms = {name: partial(advance, trainer.steps(), steps) for name, trainer in built.items()}
    times = interleaved(arms, rounds=rounds, warmup=1, clock=time.process_time)
    seconds = _arrays(times)
    return figure(
        f"sample by sample ({update}) / batched",
        (seconds[update] / seconds["batched"]).tolist(),
        "at least",
        bound,
        f"CPU seconds for the same {steps} batches of {BATCH} digits, digits_cnn, the same gate"
        f" (rate {RATE}, loss_and_contrast, log_integral)",
        trained={name: trainer.ledger.samples.trained for name, trainer in built.items()},
        **_medians(times),
    )


def advance(records: Iterator[Any], steps: int) -> None:
    """Take ``steps`` records of a run."""
    assert len(list(islice(records, steps))) == steps


def plan_a_million(rounds: int) -> Figure:
    """Seconds to plan an epoch over a million samples by their last losses."""
    policy, rows = CachedLoss(), torch.randperm(1_000_000)
    policy.losses = torch.rand(1_000_000)
    epochs = iter(range(10**9))

    def plan() -> None:
        policy.plan(RunInfo(1_000_000, rows, next(epochs), 0, 0.5))

    times = interleaved({"plan": plan}, rounds=rounds, warmup=1, clock=time.process_time)
    return figure(
        "seconds to plan over 1,000,000 samples",
        times.seconds["plan"],
        "at most",
        0.3,
        "cached_loss: a draw of 30 % without replacement by weight, which sorts",
        **_medians(times),
    )


class Photographs(Dataset[tuple[Tensor, int]]):
    """Items as ``torchvision.datasets.CIFAR10`` makes them: array to PIL image to transforms."""

    def __init__(self, data: Images) -> None:
        self.data = data.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = data.labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(*STATS),
            ]
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def loading(rounds: int) -> Figure:
    """Device-resident data against a DataLoader at its best, both feeding an empty loop."""
    rows, most_workers = 5_000, 3
    resident = Loader(
        synthetic(rows), BATCH, augment=("crop", "flip"), normalize=STATS, resident=True
    )
    photographs = Photographs(resident.data)
    passes = iter(range(10**9))

    def feed() -> None:
        assert sum(len(batch.y) for batch in resident.batches(next(passes))) == rows

    def feeder(workers: int) -> Callable[[], None]:
        options = {"num_workers": workers, "persistent_workers": workers > 0}
        loader = DataLoader(photographs, BATCH, shuffle=True, **options)

        def feed() -> None:
            assert sum(len(y) for _, y in loader) == rows

        return feed

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more than CPUs: may win
        workers = {f"DataLoader, {n} workers": feeder(n) for n in range(most_workers + 1)}
        times = interleaved({"resident": feed, **workers}, rounds=rounds, warmup=1)
    seconds = _arrays(times)
    best = min(workers, key=times.median)
    return figure(
        "DataLoader over torchvision transforms / device-resident data",
        (seconds[best] / seconds["resident"]).tolist(),
        "at least",
        3.0,
        f"seconds to feed {rows} images of 3x32x32 in batches of {BATCH} to an empty loop, with"
        " random crop, flip and normalisation; the DataLoader keeps its workers, has run a pass"
        f" before, and is taken at the best of 0 to {most_workers} workers",
        best=best,
        **_medians(times),
    )


FIGURES: dict[str, tuple[Callable[[int], Figure], int, int]] = {
    "per_batch": (partial(sample_by_sample, "per_batch", None), 9, 61),
    "per_sample": (partial(sample_by_sample, "per_sample", 5.0), 5, 31),
    "plan_a_million": (plan_a_million, 5, 21),
    "loading": (loading, 4, 21),
}
"""Each figure with its rounds in a test, and for the numbers that are quoted."""


def _arrays(times: Timings) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in times.seconds.items()}


def _medians(times: Timings) -> Figure:
    return {"seconds": {name: times.median(name) for name in times.seconds}}


def main() -> None:
    """Measure every figure with full rounds and write the results in one piece."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, help="rounds of every figure, to try things out")
    parser.add_argument("--threads", type=int, help="CPU threads; torch's own choice by default")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rounds = options.rounds
    record(options.out, (measure(rounds or full) for measure, _, full in FIGURES.values()), line)


if __name__ == "__main__":
    main()
