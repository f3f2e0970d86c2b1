"""The kit's speed as ratios: `python -m tests.benchmarks.measure` writes results.json.

Each figure is one function of its number of rounds and returns a plain dict. All arms of a figure
run in one process, interleaved, on the CPU; a ratio is taken within a round, so what slows a whole
round cancels. ``test_ratios.py`` holds the same figures to the same bounds with fewer rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
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
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from astkit import models, rng
from astkit.datasets import Batch, Images, Loader, load
from astkit.files import write_atomic
from astkit.gating import Gate, Policy, RandomSubset, RunInfo, Selection, Visit
from astkit.profiling import Ledger, Timings, bootstrap_interval, count_flops, interleaved
from astkit.stamp import describe, stamp
from astkit.trainers import (
    GatedStep,
    Learner,
    Progress,
    SampleStep,
    Step,
    TrainConfig,
    Trainer,
)
from tests.benchmarks.switches import ENDLESS, STATS, synthetic

Figure = dict[str, Any]

RESULTS = Path(__file__).with_name("results.json")
BATCH = 128
RATE = 0.10


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


def cifar_loader(rows: int, batch_size: int = BATCH) -> Loader:
    """Device-resident batches with the usual augmentation."""
    augment = ("crop", "flip")
    return Loader(synthetic(rows), batch_size, augment=augment, normalize=STATS, resident=True)


def digits_loader() -> Loader:
    """The embedded digits in full batches."""
    digits, _ = load("digits")
    return Loader(digits, BATCH, normalize=digits.channel_stats(), drop_last=True)


class Run:
    """A real `Trainer` that each call drives ``steps`` training steps further."""

    def __init__(
        self,
        model: str,
        loader: Loader,
        steps: int,
        step: Step | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.trainer = Trainer(
            models.build(model, loader.data.shape, loader.data.num_classes),
            loader,
            budget=ENDLESS,
            step=step,
            policy=policy,
            observers=[Progress(bar=False, stream=io.StringIO())],
            device="cpu",
        )
        self.steps = steps
        self.records = self.trainer.steps()
        self.notes: list[dict[str, float]] = []

    def __call__(self) -> None:
        before = self._spent()
        assert len(list(islice(self.records, self.steps))) == self.steps
        self.notes.append({name: now - before[name] for name, now in self._spent().items()})

    def spent(self, name: str, rounds: int) -> np.ndarray:
        """What each of the last ``rounds`` calls spent of ``name``; the warm-up is left out."""
        return np.array([note[name] for note in self.notes[-rounds:]])

    def _spent(self) -> dict[str, float]:
        ledger = self.trainer.ledger
        own = sum(ledger.phases.get(name, 0.0) for name in ("gate", "plan", "log"))
        return {
            "trained": ledger.samples.trained,
            "training": ledger.seconds["training"],
            "bookkeeping": own,
        }


def random_before_loading(rounds: int) -> Figure:
    """Random selection before loading against dense, per trained sample."""
    loader, steps = cifar_loader(20 * BATCH), 4
    dense = Run("simple_cnn", loader, steps)
    random = Run("simple_cnn", loader, steps, policy=RandomSubset(RATE))
    short = Run("simple_cnn", cifar_loader(8 * steps, batch_size=8), steps)
    times = interleaved({"dense": dense, "random": random, "short": short}, rounds=rounds, warmup=1)
    seconds = _arrays(times)
    per_sample = {
        name: seconds[name] / run.spent("trained", rounds)
        for name, run in (("dense", dense), ("random", random))
    }
    ratio = per_sample["random"] / per_sample["dense"]
    # 5,000 rows of 50,000: 39 full batches and one of 8 rows, where dense has full ones
    whole = 5_000 / BATCH
    cifar = ratio * (39 + seconds["short"] / seconds["dense"]) / whole
    return figure(
        "random before loading / dense, per trained sample",
        cifar.tolist(),
        "at most",
        1.2,
        "wall seconds per trained sample, SimpleCNN on CIFAR-10-sized noise with crop and flip,"
        f" rate {RATE}. Measured on {loader.num_samples} rows, where a pass is 20 full batches of"
        f" dense and 2 of random, {steps} batches a round; then charged for CIFAR-10's last batch:"
        " its 5,000 rows make 39 full batches and one of 8, whose cost is measured in each round",
        full_batches_only=float(np.median(ratio)),
        last_batch_of_8_costs_of_a_full_one=float(np.median(seconds["short"] / seconds["dense"])),
        **_medians(times),
    )


def sample_by_sample(
    update: Literal["per_batch", "per_sample"], bound: float | None, rounds: int
) -> Figure:
    """The sample-by-sample loop over the batched gate.

    ``update``: an optimizer step per batch, as the gate takes, or per active row, as the original.
    """
    loader = digits_loader()
    steps = len(loader)

    def gate() -> Gate:
        return Gate(RATE, "loss_and_contrast", "log_integral")

    arms = {
        update: Run("digits_cnn", loader, steps, SampleStep(gate(), update)),
        "batched": Run("digits_cnn", loader, steps, GatedStep(gate())),
    }
    times = interleaved(arms, rounds=rounds, warmup=1)
    seconds = _arrays(times)
    return figure(
        f"sample by sample ({update}) / batched",
        (seconds[update] / seconds["batched"]).tolist(),
        "at least",
        bound,
        f"wall seconds for the same {steps} batches of {BATCH} digits, digits_cnn, the same gate"
        f" (rate {RATE}, loss_and_contrast, log_integral)",
        trained={name: int(run.spent("trained", rounds).sum()) for name, run in arms.items()},
        **_medians(times),
    )


def gated_step(rounds: int) -> Figure:
    """The batched gate's step against the two things it cannot do without."""
    rows = round(RATE * BATCH)
    # max pooling branches on its values: only arms with the same weights do the same work
    data, config = synthetic(BATCH), TrainConfig(lr=1e-12, weight_decay=0.0)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in STATS)
    x, y = (data.images / 255 - mean) / std, data.labels
    batch = Batch(torch.arange(BATCH), x, y)

    gate = Gate(rows / BATCH, "loss_and_contrast", "top_k")
    learner, step, ledger = Learner(_simple_cnn(), config), GatedStep(gate), Ledger()
    cost = count_flops(learner.model, x, y, learner.criterion)

    def gated() -> None:
        with ledger.clock("training"):
            trained = len(step(learner, batch, None, ledger).rows)
            ledger.note(cost, scored=BATCH, trained=trained, skipped=BATCH - trained)
        assert trained == rows

    model, few_x, few_y = _simple_cnn(), x[:rows].clone(), y[:rows].clone()
    parameters = list(model.parameters())
    adamw = torch.optim.AdamW(
        parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
    )

    def forward() -> None:
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()

    def train() -> None:
        adamw.zero_grad(set_to_none=True)
        F.cross_entropy(model(few_x), few_y).backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm or 0.0)
        adamw.step()

    times = interleaved({"gated step": gated, "forward": forward, "train": train}, rounds=rounds)
    seconds = _arrays(times)
    return figure(
        "gated step / (forward of the batch + training step on the active rows)",
        (seconds["gated step"] / (seconds["forward"] + seconds["train"])).tolist(),
        "at most",
        1.15,
        f"SimpleCNN, {BATCH} rows of 3x32x32, {rows} of them active in every step (top_k at"
        f" {rows}/{BATCH}, loss_and_contrast), gate and ledger included; the parts are plain"
        " torch, timed as arms of their own in the same rounds",
        **_medians(times),
    )


def bookkeeping(model: str, bound: float | None, rounds: int) -> Figure:
    """Share of gate, controller and logging in training."""
    small = model == "digits_cnn"
    loader, steps = (digits_loader(), 14) if small else (cifar_loader(5 * BATCH), 5)
    step = GatedStep(Gate(RATE, "loss_and_contrast", "log_integral"))
    gated = Run(model, loader, steps, step)
    times = interleaved({"gated": gated}, rounds=rounds, warmup=1)
    share = gated.spent("bookkeeping", rounds) / gated.spent("training", rounds)
    return figure(
        f"gate, controller and logging / training, {model}",
        share.tolist(),
        "at most",
        bound,
        "seconds in the ledger's phases 'gate', 'plan' and 'log' over its training seconds,"
        f" batch {BATCH}, rate {RATE}, log_integral, one value for {steps} steps",
        **_medians(times),
    )


class LastLoss(Policy):
    """A share of the rows, drawn without replacement in proportion to the root of its last loss."""

    needs_index = True
    state = ("losses",)
    losses: Tensor | None = None

    def __init__(self, rate: float = 0.3, seed: int = 0) -> None:
        self.rate, self.seed = rate, seed

    def plan(self, run: RunInfo) -> Selection:
        if self.losses is None:
            self.losses = torch.full((run.samples,), 10.0)
        # the smallest of exponential times at these rates: Efraimidis and Spirakis, 2006
        draws = rng.uniform(torch.arange(run.samples), self.seed, "draw", run.epoch)
        times = -draws.clamp_min(1e-9).log() / self.losses.clamp_min(1e-6).sqrt()
        index = times.topk(round(self.rate * run.samples), largest=False).indices
        return Selection(index[rng.permutation(len(index), self.seed, "order", run.epoch)])

    def observe(self, visit: Visit) -> None:
        assert self.losses is not None
        self.losses[visit.index] = visit.losses


def planning(rounds: int) -> Figure:
    """Share of plans, observed losses and logging in training on rows chosen before loading."""
    loader, steps = cifar_loader(50_000), 4
    policy = LastLoss()
    run = Run("simple_cnn", loader, steps, policy=policy)
    times = interleaved({"last loss": run}, rounds=rounds, warmup=1)
    batches = round(policy.rate * loader.num_samples / BATCH)
    plan = run.trainer.ledger.phases["plan"] / batches  # one an epoch, charged to its batches
    share = (run.spent("bookkeeping", rounds) / steps + plan) / (
        run.spent("training", rounds) / steps + plan
    )
    return figure(
        "plan, observed losses and logging / training, simple_cnn",
        share.tolist(),
        "at most",
        0.01,
        "seconds in the ledger's phases 'plan', 'gate' and 'log' over its training seconds;"
        f" SimpleCNN, 50,000 images of 3x32x32, batch {BATCH}, 30 % of them drawn before loading by"
        " the root of their last loss; the plan of an epoch is charged to its batches",
        **_medians(times),
    )


def plan_a_million(rounds: int) -> Figure:
    """Seconds to plan a round over a million samples by their last losses."""
    policy, rows = LastLoss(), torch.randperm(1_000_000)
    policy.losses = torch.rand(1_000_000)
    epochs = iter(range(10**9))

    def plan() -> None:
        policy.plan(RunInfo(1_000_000, rows, next(epochs), 0, 0.5))

    times = interleaved({"plan": plan}, rounds=rounds, warmup=1)
    return figure(
        "seconds to plan over 1,000,000 samples",
        times.seconds["plan"],
        "at most",
        0.3,
        "a draw of 30 % without replacement by weight, which sorts",
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
    resident = cifar_loader(rows)
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
    "random_before_loading": (random_before_loading, 5, 31),
    "per_batch": (partial(sample_by_sample, "per_batch", None), 9, 61),
    "per_sample": (partial(sample_by_sample, "per_sample", 5.0), 5, 31),
    "gated_step": (gated_step, 11, 61),
    "bookkeeping": (partial(bookkeeping, "simple_cnn", 0.03), 5, 41),
    "bookkeeping_digits": (partial(bookkeeping, "digits_cnn", None), 9, 61),
    "planning": (planning, 5, 41),
    "plan_a_million": (plan_a_million, 5, 21),
    "loading": (loading, 4, 21),
}
"""Each figure with its rounds in a test, and for the numbers that are quoted."""


def _simple_cnn() -> torch.nn.Module:
    return models.build("simple_cnn", (3, 32, 32), 10)


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
