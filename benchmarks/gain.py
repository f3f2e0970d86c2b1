"""What choosing gains under stated conditions, against fair controls and an oracle.

``python -m benchmarks.gain --processes 2`` trains the runs of `plan` that have no entry in
notebooks/results/06_gain.json, in this order, and resumes those that were interrupted. New entries
are kept in out/gain, which git ignores, so that they do not change the checkout that they stamp;
`benchmarks.shares` moves them.
``--only TEXT`` those whose name holds TEXT, ``--forecasts`` what `aim` foretells for each of them,
``--abstentions`` whether `aim` trains on everything where training data and target are alike,
``--search`` the trials of learning rates, which are kept elsewhere, ``--short`` shorter runs on
texts, ``--runs`` others than those of the plan, by their names, as
"cifar10 | clean | 8 | cached_loss:rate=0.3 | 0". Seeds 0 to 4 were not looked at before; searches
use seeds from 100.

All methods of a condition spend the FLOPs of dense training, scoring and helper models included.
The learning rate is the one of `RATES` with which dense training has the best test results in a
search with seeds 100 and 101 (`SETTINGS`), so that the choice favours dense training if anything.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset

import astkit
from astkit import Budget, Metric, Policy, RunInfo, Selection, TrainConfig, Trainer, rng
from astkit.aim.decisions import Z
from astkit.aim.forecast import forecast_of
from astkit.aim.policy import Aim
from astkit.comparison.plan import Method, Task
from astkit.comparison.training import train_method
from astkit.datasets import Images, Loader, load, open_mapped, write_mapped
from astkit.datasets.batch import Batch
from astkit.datasets.conditions import Condition
from astkit.files import write_atomic
from astkit.gating.losses import cross_entropy_rows
from astkit.stamp import stamp
from benchmarks.builders import GPT
from benchmarks.conditions import condition

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "notebooks" / "results" / "06_gain.json"
ROWS = RESULTS.with_name("06_gain_rows.npz")
FORECASTS = RESULTS.with_name("06_forecasts.json")
ABSTENTIONS = RESULTS.with_name("06_abstentions.json")
SHARED = Path(os.environ.get("ASTKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))
CACHE = ROOT / "out" / "gain"
SEEDS, DRAWS = range(5), range(200, 220)
RATES = (3e-3, 1e-2, 3e-2)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RESNET = "cifar10_resnet"  # the images of cifar10 with a larger network, for a GPU
WIDTHS = {"cifar10": (32, 64, 128, 128), "fashion_mnist": (16, 32, 64), "digits": (8, 16)}
AUGMENT = {
    "cifar10": ("crop", "flip"),
    RESNET: ("crop", "flip"),
    "fashion_mnist": ("flip",),
    "digits": (),
}
METHODS = (
    "dense",
    "dense+target",
    "oracle",
    "aim",
    "auto",
    "class_balanced",
    "infobatch",
    "random@infobatch",
)
DRIFTS = [
    f"drift:kind={kind},data={data}"
    for kind in ("law", "columns", "inputs")
    for data in ("table", "series")
]
ON_TARGET = [
    *(("table", name, 20.0) for name in DRIFTS),
    *(("text", f"irrelevant_text:share={share}", 0.8) for share in (0.2, 0.05, 0.5, 1.0)),
    *(("fashion_mnist", name, 8.0) for name in ("other_domain", "web", "long_tail")),
]
"""Data, condition and epochs where `aim` was tried with the validation rows as rows to train on."""
SETTINGS = {"cifar10": 2.4e-2, RESNET: 3e-3, "fashion_mnist": 1e-2, "text": 3e-3, "table": 1e-2}
"""Learning rate by data, from the search; the smaller of two that are alike. `RESNET`: one seed."""


@dataclass(frozen=True)
class Run:
    """One training. ``condition``: name and options, as "drift:kind=law,data=table"."""

    data: str
    condition: str
    epochs: float
    policy: str
    seed: int
    lr: float | None = None  # in a search

    @property
    def name(self) -> str:
        """Names its entry."""
        parts = [self.data, self.condition, f"{self.epochs:g}", self.policy, str(self.seed)]
        return " | ".join(parts + ([] if self.lr is None else [f"lr {self.lr:g}"]))


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of "name:option=value,option=value"."""
    name, _, rest = text.partition(":")
    pairs = (part.partition("=") for part in filter(None, rest.split(",")))
    options = {}
    for option, _, value in pairs:
        try:
            options[option] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[option] = value
    return name, options


def named(name: str) -> Run:
    """The run that has this name."""
    data, condition, epochs, policy, seed, *rate = name.split(" | ")
    lr = float(rate[0].removeprefix("lr ")) if rate else None
    return Run(data, condition, float(epochs), policy, int(seed), lr)


def plan() -> list[Run]:
    """All runs, the most telling first."""
    few = ("dense", "dense+target", "oracle", "aim")
    without_classes = tuple(name for name in METHODS if name != "class_balanced")
    drifts = [("table", name, 20.0, without_classes) for name in DRIFTS]
    noise = (*METHODS, "elr")
    blocks: list[tuple[str, str, float, tuple[str, ...]]] = [
        ("text", "irrelevant_text:share=0.2", 0.8, METHODS[:5]),
        *drifts,
        ("fashion_mnist", "other_domain", 8, METHODS),
        ("fashion_mnist", "web", 8, METHODS),
        ("fashion_mnist", "open_set", 8, METHODS),
        ("fashion_mnist", "long_tail", 8, METHODS),
        ("fashion_mnist", "clean", 8, METHODS),
        ("fashion_mnist", "wrong_labels", 8, noise),
        ("cifar10", "other_domain", 8, few),
        ("cifar10", "web", 8, (*few, "class_balanced", "auto")),
        ("cifar10", "open_set", 8, few),
        ("cifar10", "long_tail", 8, (*few, "class_balanced", "auto")),
        ("cifar10", "human_labels:kind=worse", 8, ("dense", "oracle", "auto", "aim", "elr")),
        ("cifar10", "wrong_labels", 8, ("dense", "dense+target", "oracle", "auto", "aim", "elr")),
        ("cifar10", "clean", 8, ("dense", "auto", "aim")),
        ("cifar10", "wrong_labels:target=0", 8, ("dense", "oracle", "auto", "elr")),
        ("cifar10", "human_labels:kind=random1", 8, ("dense", "oracle", "auto", "aim", "elr")),
        ("text", "irrelevant_text:share=0.05", 0.8, METHODS[:5]),
        ("text", "irrelevant_text:share=0.5", 0.8, METHODS[:5]),
        ("text", "irrelevant_text:share=1.0", 0.8, METHODS[:5]),
        ("cifar10", "duplicates", 8, ("dense", "oracle", "auto", "aim")),
        ("cifar10", "small", 40, ("dense", "auto", "aim")),
        ("cifar10", "other_domain", 24, ("dense", "oracle", "aim")),
        ("cifar10", "human_labels:kind=worse", 24, ("dense", "oracle", "auto", "elr")),
        ("cifar10", "clean", 24, ("dense", "auto", "aim")),
        *((data, name, epochs, ("aim+target",)) for data, name, epochs in ON_TARGET),
        (RESNET, "other_domain", 40, few),
        (RESNET, "web", 40, (*few, "class_balanced", "auto")),
        ("cifar10", "other_domain", 8, METHODS),
        ("cifar10", "web", 8, METHODS),
        ("cifar10", "open_set", 8, METHODS),
        ("cifar10", "long_tail", 8, METHODS),
        ("cifar10", "human_labels:kind=worse", 8, noise),
    ]
    runs = [
        Run(data, name, epochs, policy, seed)
        for data, name, epochs, policies in blocks
        for seed in (SEEDS[:3] if data == RESNET else SEEDS)
        for policy in policies
    ]
    return list(dict.fromkeys(runs))


def search() -> list[Run]:
    """Dense training at each learning rate, on data without a fault."""
    clean = {
        "cifar10": ("clean", 8.0),
        RESNET: ("clean", 40.0),
        "fashion_mnist": ("clean", 8.0),
        "text": ("irrelevant_text:share=1.0", 0.8),
        "table": ("drift:kind=inputs,data=table", 20.0),
    }
    return [
        Run(data, name, epochs, "dense", seed, lr)
        for data, (name, epochs) in clean.items()
        for seed in (100, 101)
        for lr in RATES
    ]


def short() -> list[Run]:
    """Runs of a part of dense training's FLOPs, of which one may reach what dense training has."""
    budgets = {"0.2": (0.384, 0.52), "0.05": (0.128, 0.16, 0.256)}
    return [
        Run("text", f"irrelevant_text:share={share}", epochs, policy, seed)
        for share, parts in budgets.items()
        for policy in ("aim", "oracle")
        for seed in SEEDS
        for epochs in parts
    ]


def alike() -> list[Run]:
    """Runs whose training data are like the target, one for each draw of them."""
    data = [
        ("text", "irrelevant_text:share=1.0", 0.8),
        ("fashion_mnist", "clean", 8.0),
        ("fashion_mnist", "small", 40.0),
        ("cifar10", "clean", 8.0),
    ]
    return [Run(*each, "aim", draw) for each in data for draw in DRAWS]


# --- data and models -------------------------------------------------------------------------


@cache
def images(name: str) -> tuple[Images, Images]:
    """Training and test part, decoded once."""
    if name == "digits":
        whole = load("digits")[0]
        return whole.subset(torch.arange(1400)), whole.subset(torch.arange(1400, 1797))
    if name == "fashion_mnist":
        train, test = load(name)
        assert test is not None
        return train, test
    folders = [CACHE / f"{name}-{part}" for part in ("train", "test")]
    if not all(folder.exists() for folder in folders):
        for folder, part in zip(folders, load(name, SHARED / "cifar10-jpeg"), strict=True):
            if not folder.exists() and part is not None:
                write_mapped(folder, part, part.classes)
    train, test = map(open_mapped, folders)
    return train, test


def made(run: Run) -> Condition:
    """The condition of a run."""
    name, options = parsed(run.condition)
    if name == "human_labels":
        options["path"] = SHARED / "cifar10n" / "train_labels.npz"
    if name == "irrelevant_text" and (SHARED / "tinyshakespeare.txt").exists():
        options["path"] = SHARED / "tinyshakespeare.txt"
    train, test = images(run.data.removesuffix("_resnet")) if run.data in AUGMENT else (None, None)
    here = condition(name, train, test, run.seed, **options)
    return here if here.validation is not None else held_out(here, run.seed)


def held_out(here: Condition, seed: int) -> Condition:
    """``here`` with a tenth of its training rows as validation, with the labels that they have."""
    assert here.rows is not None
    assert here.true_labels is not None
    assert here.relevant is None
    order = rng.permutation(len(here.train), seed, "held out")
    size = len(order) // 10
    held, kept = order[:size].sort().values, order[size:].sort().values
    rows, true = here.rows[kept], here.true_labels[kept]
    parts = {"train": here.train.subset(kept), "validation": here.train.subset(held)}
    return replace(here, **parts, rows=rows, true_labels=true)


def network(widths: tuple[int, ...], channels: int, classes: int) -> nn.Module:
    """Convolutions 3x3 with BatchNorm, with poolings between them, then the mean over pixels."""
    layers: list[nn.Module] = []
    for place, width in enumerate(widths):
        layers += [nn.MaxPool2d(2)] if place else []
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def convolution(channels: int, width: int) -> nn.Sequential:
    layers = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Two convolutions whose outputs are added to their inputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(convolution(width, width), convolution(width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = inputs + self.layers(inputs)
        return outputs


def resnet(channels: int, classes: int) -> nn.Module:
    """ResNet-9 of Page, "How to train your ResNet" (2018), at half of its widths."""
    return nn.Sequential(
        convolution(channels, 32),
        *(convolution(32, 64), nn.MaxPool2d(2), Residual(64)),
        *(convolution(64, 128), nn.MaxPool2d(2)),
        *(convolution(128, 256), nn.MaxPool2d(2), Residual(256)),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(256, classes)),
    )


def perceptron(inputs: int) -> nn.Module:
    """Two hidden layers, for rows of a table, or series as one row."""
    hidden = [nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 1))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(1)


def bits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean bits of the characters of each sequence, ``[rows]``."""
    losses: Tensor = cross_entropy_rows(outputs, targets)[0]
    return losses.mean(1) / np.log(2)


# --- methods that only a bench has -----------------------------------------------------------


class Oracle(Policy):
    """Draws rows with known weights, as many as dense training: systematic, reshuffled."""

    def __init__(self, weights: Tensor | None = None, seed: int = 0) -> None:
        self.weights, self.seed = weights, seed

    def plan(self, run: RunInfo) -> Selection | None:
        if self.weights is None:
            return None
        random = rng.generator(run.seed, "oracle", run.epoch)
        order = torch.randperm(run.samples, generator=random)
        ends = (self.weights[order] / self.weights.sum()).cumsum(0) * run.samples
        start = torch.rand(1, generator=random, dtype=torch.float64)
        places = torch.searchsorted(ends, torch.arange(run.samples) + start)
        drawn = order[places.clamp_max(run.samples - 1)]
        return Selection(drawn[torch.randperm(len(drawn), generator=random)])


ASKED: list[bool] = []


class AimAsking(Aim):
    """`Aim`, which tells whether the model was asked."""

    def _ask_the_model(self, run: RunInfo) -> None:
        before = (self.flops, self.drawn_by)
        super()._ask_the_model(run)
        ASKED.append((self.flops, self.drawn_by) != before and self.flops > before[0])


class AimEarly(Aim):
    """`Aim` that asks before the first step alone."""

    def _draw_by_forecast(self, run: RunInfo) -> None:
        super()._draw_by_forecast(run)
        self.stage = 2


class EarlyLearning(Trainer):
    """Adds the early-learning regularisation of Liu et al. (NeurIPS 2020): 3 log(1 - <p, t>).

    t is a moving average (0.7) of the probabilities p of the sample.
    """

    memory: Tensor | None = None

    def train_batch(self, batch: Batch, weight: Tensor | None) -> Any:
        assert batch.index is not None
        self.rows = batch.index
        return super().train_batch(batch, weight)

    def regularised(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs.float(), targets, reduction="none")
        if not (self.model.training and torch.is_grad_enabled()) or not hasattr(self, "rows"):
            return losses
        shares = outputs.float().softmax(1).clamp(1e-4, 1 - 1e-4)
        if self.memory is None:
            self.memory = shares.new_zeros(self.train_data.num_samples or 0, shares.shape[1])
        if len(self.rows) == len(shares):
            fixed = shares.detach() / shares.detach().sum(1, keepdim=True)
            self.memory[self.rows] = 0.7 * self.memory[self.rows] + 0.3 * fixed
        inner = (shares * self.memory[self.rows[: len(shares)]]).sum(1)
        return losses + 3 * (1 - inner).clamp_min(1e-4).log()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": self.memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory = state["memory"]
        super().load_state_dict(state)


class Elr(Task):
    """A task trained by `EarlyLearning`."""

    trainer_class = EarlyLearning

    def trainer(self, *args: Any, **options: Any) -> Trainer:
        trainer = super().trainer(*args, **options)
        assert isinstance(trainer, EarlyLearning)
        trainer.optimisation.criterion = trainer.regularised
        return trainer


# --- a run -----------------------------------------------------------------------------------


def task_of(spec: Run, here: Condition) -> Task:
    """Data, model and settings of a run."""
    train = here.train
    if spec.policy == "dense+target" and here.validation is not None:
        train = shuffled_together(here.train, here.validation)
    if spec.policy == "aim+target":
        train = astkit.joined(here.train, here.validation)
    lr = spec.lr or SETTINGS[spec.data]
    config = TrainConfig(lr=lr, threads=1)
    kind = Elr if spec.policy == "elr" else Task
    if spec.data in AUGMENT:
        net = resnet if spec.data == RESNET else partial(network, WIDTHS[spec.data])
        shape, normalize = here.train.shape, here.train.channel_stats()
        loader = partial(Loader, normalize=normalize)
        quiet = partial(loader, batch_size=500, shuffle=False)
        return kind(
            partial(net, shape[0], here.outputs),
            loader(train, 512 if spec.data == RESNET else 64, augment=AUGMENT[spec.data]),
            quiet(here.validation),
            quiet(here.test),
            config=replace(config, precision="bf16", channels_last=True),
            device=DEVICE,
        )
    if spec.data == "text":
        return Task(
            partial(GPT, here.outputs),
            train,
            here.validation,
            here.test,
            metrics=(Metric("bits a character", bits, higher_is_better=False),),
            config=config,
            batch_size=32,
            device=DEVICE,
        )
    inputs = here.train.tensors[0].shape[1:].numel()
    return Task(
        partial(perceptron, inputs),
        train,
        here.validation,
        here.test,
        criterion=squared_error,
        metrics=(Metric("squared error", squared_error, higher_is_better=False),),
        config=config,
        batch_size=64,
        device=DEVICE,
    )


def shuffled_together(train: Any, more: Any) -> Any:
    """Training and validation rows alike; of `joined` data, dense training sees the first only."""
    if isinstance(train, Images):
        both = (torch.cat([train.images, more.images]), torch.cat([train.labels, more.labels]))
        return Images(*both, train.classes, train.name)
    return ConcatDataset([train, more])


def method_of(spec: Run, here: Condition, entries: dict[str, Any]) -> Method:
    """The method of a run."""
    if spec.policy == "oracle":
        return Method("oracle", Oracle(here.oracle))
    if spec.policy in ("aim_asking", "aim_early"):
        return Method(spec.policy, AimAsking() if spec.policy == "aim_asking" else AimEarly())
    name, at, other = spec.policy.partition("@")
    if at:
        rate = entries[replace(spec, policy=other).name]["rate"]
        return Method(spec.policy, {"name": name, "rate": rate})
    if spec.policy in ("dense", "dense+target", "elr"):
        return Method(spec.policy, None)
    name, options = parsed(spec.policy.removesuffix("+target"))
    return Method(spec.policy, {"name": name, **options})


def execute(spec: Run) -> dict[str, Any]:
    """Train one run to its end; returns its entry. Per-row test results lie in `CACHE`."""
    torch.set_num_threads(1)
    here, entries = made(spec), read(RESULTS)
    task = task_of(spec, here)
    plain = task_of(replace(spec, policy="dense"), here).trainer(None, spec.seed, Budget(epochs=1))
    batch = plain.batches.peek()
    steps = spec.epochs * len(here.train) / batch.rows
    budget = Budget(flops=steps * plain.cost(batch).training(batch.rows))
    folder = CACHE / "runs" / spec.name.replace("/", "_")
    ASKED.clear()
    entry = train_method(task, method_of(spec, here, entries), spec.seed, budget, folder)
    kept = ("seconds", "flops", "trained", "scored", "rate", "steps", "value")
    stamped = {name: stamp()[name] for name in ("commit", "dirty", "torch", "cpu", "devices")}
    found = {name: entry[name] for name in kept} | {"asked": list(ASKED)}
    metric = {"metric": entry.get("metric"), "higher": entry.get("higher")}
    return {**asdict(spec), **found, **metric, "budget": budget.flops, "stamp": stamped}


def foretell(spec: Run) -> dict[str, Any]:
    """What `aim` foretells before training."""
    torch.set_num_threads(1)
    here = made(spec)
    found = forecast_of(here.train, here.validation)
    chosen = [line for line in found.lines if line["chosen"]]
    line = chosen[0] if chosen else {"gain": 0.0, "low": 0.0, "unit": ""}
    gain, error = line["gain"], (line["gain"] - line["low"]) / Z
    told = {"gain": gain, "error": error, "unit": line["unit"], "sentence": found.sentence}
    return {**told, "value": gain, "stamp": {"commit": stamp()["commit"]}}


def abstains(spec: Run) -> dict[str, Any]:
    """Whether `aim` trains on all rows, in a run that ends after its last test: "value" 1 or 0."""
    torch.set_num_threads(1)
    policy, start = Aim(), time.process_time()
    budget = Budget(epochs=spec.epochs)
    for _ in task_of(spec, made(spec)).trainer(policy, spec.seed, budget).steps():
        if policy.stage == 2:
            break
    seconds = time.process_time() - start
    whole = policy.drawn_by is None
    return {"value": float(whole), "seconds": seconds, "stamp": {"commit": stamp()["commit"]}}


def read(path: Path) -> dict[str, Any]:
    """Entries by name: those committed as ``path``, and those trained since."""
    both = [each for each in (path, CACHE / path.name) if each.exists()]
    return {name: entry for each in both for name, entry in json.loads(each.read_text()).items()}


def dumped(entries: dict[str, Any]) -> str:
    return json.dumps(entries, indent=0) + "\n"


def train_all(runs: list[Run], path: Path, processes: int, job: Callable[[Run], Any]) -> None:
    """Train the ``runs`` without an entry; each is written when it ends."""
    done = read(path)
    missing = [each for each in runs if each.name not in done]
    print(f"{len(missing)} of {len(runs)} runs to train", flush=True)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        missing.sort(key=lambda each: "@" in each.policy)  # those that read a rate come last
        waiting = {pool.submit(job, each): each for each in missing}
        for future in as_completed(waiting):
            each = waiting[future]
            try:
                entry = future.result()
            except Exception as error:
                print(f"{each.name}: {type(error).__name__}: {error}", flush=True)
                continue
            write_atomic(CACHE / path.name, dumped({**read(path), each.name: entry}))
            print(f"{each.name}: {entry['value']:.4f}, {entry['seconds']:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT")
    kinds = parser.add_mutually_exclusive_group()
    listed: dict[str, Callable[[], list[Run]]]
    listed = {"search": search, "forecasts": plan, "abstentions": alike, "short": short}
    for name in listed:
        kinds.add_argument(f"--{name}", action="store_const", const=name, dest="kind")
    kinds.add_argument("--runs", nargs="+", metavar="NAME")
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    every = [named(each) for each in options.runs or ()] or listed.get(options.kind, plan)()
    runs = [each for each in every if any(text in each.name for text in options.only)]
    if any(each.data.startswith("cifar10") for each in runs):
        images("cifar10")
    path, job = RESULTS, execute
    if options.kind == "search":
        path = CACHE / "search.json"
    elif options.kind == "abstentions":
        path, job = ABSTENTIONS, abstains
    elif options.kind == "forecasts":
        path, job = FORECASTS, foretell
        runs = [each for each in runs if each.policy == "aim"]
    train_all(runs, path, options.processes, job)


if __name__ == "__main__":
    main()
