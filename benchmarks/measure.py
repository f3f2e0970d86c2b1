"""The kit's speed as ratios: `python -m benchmarks.measure` writes results.json.

Each figure is one function of its number of rounds and returns a plain dict. All arms of a figure
run in one process, interleaved, on the CPU; a ratio is taken within a round, so what slows a whole
round cancels. Where no worker takes part, CPU seconds are counted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from astkit import CachedLoss, models, rng
from astkit.datasets import Images, Loader, load
from astkit.gating import Gate, RunInfo
from astkit.profiling import interleaved
from astkit.trainers import SampleBySampleTrainer, Trainer
from benchmarks import bench
from benchmarks.bench import BATCH, ENDLESS, Figure, advance

RESULTS = bench.HERE / "results.json"
RATE = 0.10
STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # CIFAR-10's channels, units 0..1


def synthetic(rows: int, shape: tuple[int, int, int] = (3, 32, 32)) -> Images:
    """Random noise in CIFAR-10's shape; the cost does not depend on the values."""
    random = rng.generator(0, "synthetic")
    pixels = torch.randint(256, (rows, *shape), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (rows,), generator=random)
    return Images(pixels, labels, tuple("0123456789"), "synthetic")


def original_gate() -> Gate:
    """As the original's: 10 % of the rows, by loss and contrast."""
    return Gate(RATE, "loss_and_contrast", "log_integral")


def sample_by_sample(
    update: Literal["per_batch", "per_sample"], at_least: float | None, rounds: int
) -> Figure:
    """The sample-by-sample loop over the batched gate.

    ``update``: an optimizer step per batch, as the gate takes, or per active row, as the original.
    """
    digits, _ = load("digits")
    loader = Loader(digits, BATCH, normalize=digits.channel_stats(), drop_last=True)
    steps = len(loader)
    trainers = {update: partial(SampleBySampleTrainer, update=update), "batched": Trainer}
    built = {
        name: make(
            models.build("digits_cnn", digits.shape, digits.num_classes),
            loader,
            policy=original_gate(),
            budget=ENDLESS,
            device="cpu",
        )
        for name, make in trainers.items()
    }
    arms = {name: partial(advance, trainer.steps(), steps) for name, trainer in built.items()}
    return bench.ratio(
        f"sample by sample ({update}) / batched",
        interleaved(arms, rounds=rounds, warmup=1, clock=time.process_time),
        update,
        "batched",
        f"CPU seconds for the same {steps} batches of {BATCH} digits, digits_cnn, the same gate"
        f" (rate {RATE}, loss_and_contrast, log_integral)",
        at_least=at_least,
        trained={name: trainer.ledger.samples.trained for name, trainer in built.items()},
    )


def plan_a_million(rounds: int) -> Figure:
    """Seconds to plan an epoch over a million samples by their last losses."""
    policy, rows = CachedLoss(), torch.randperm(1_000_000)
    policy.losses = torch.rand(1_000_000)
    epochs = iter(range(10**9))

    def plan() -> None:
        policy.plan(RunInfo(1_000_000, rows, next(epochs), 0, 0.5))

    times = interleaved({"plan": plan}, rounds=rounds, warmup=1, clock=time.process_time)
    return bench.figure(
        "seconds to plan over 1,000,000 samples",
        times.seconds["plan"],
        "cached_loss: a draw of 30 % without replacement by weight, which sorts",
        at_most=0.3,
        seconds={"plan": times.median("plan")},
    )


class Photographs(Dataset[tuple[Tensor, int]]):
    """Items as ``torchvision.datasets.CIFAR10`` makes them: array to PIL image to transforms."""

    def __init__(self, data: Images) -> None:
        self.data = data.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = data.labels.tolist()
        crop = transforms.RandomCrop(32, padding=4)
        last = transforms.ToTensor(), transforms.Normalize(*STATS)
        self.transform = transforms.Compose([crop, transforms.RandomHorizontalFlip(), *last])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def loading(rounds: int) -> Figure:
    """Device-resident data against a DataLoader at its best, both feeding an empty loop."""
    rows, most_workers = 5_000, 3
    options = {"augment": ("crop", "flip"), "normalize": STATS, "resident": True}
    resident = Loader(synthetic(rows), BATCH, **options)
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
    best = min(workers, key=times.median)
    return bench.ratio(
        "DataLoader over torchvision transforms / device-resident data",
        times,
        best,
        "resident",
        f"seconds to feed {rows} images of 3x32x32 in batches of {BATCH} to an empty loop, with"
        " random crop, flip and normalisation; the DataLoader keeps its workers, has run a pass"
        f" before, and is taken at the best of 0 to {most_workers} workers",
        at_least=3.0,
        best=best,
    )


FIGURES: dict[str, tuple[Callable[[int], Figure], int]] = {
    "per_batch": (partial(sample_by_sample, "per_batch", None), 61),
    "per_sample": (partial(sample_by_sample, "per_sample", 5.0), 31),
    "plan_a_million": (plan_a_million, 21),
    "loading": (loading, 21),
}
"""Each figure with its rounds."""


def main() -> None:
    """Measure every figure and write the results in one piece."""
    asked = bench.options(main.__doc__, RESULTS, rounds=int)
    found = (measure(asked.rounds or rounds) for measure, rounds in FIGURES.values())
    bench.record(asked.out, found)


if __name__ == "__main__":
    main()
