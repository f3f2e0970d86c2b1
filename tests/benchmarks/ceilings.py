"""How near each policy comes to its ceiling: `python -m tests.benchmarks.ceilings`.

SimpleCNN on 3x32x32 images on one CPU thread, fp32. An arm is an epoch of a real `Trainer`; the
parts, loading a batch, its forward pass and a training step on the rows kept of it, are plain torch
(the loader apart) and arms of the same rounds. The ceiling is the speed-up over dense training if a
policy cost nothing beside these parts. CPU seconds, which other processes disturb less than elapsed
ones. Writes ceilings.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit import models
from astkit.datasets import Images, Loader
from astkit.gating import Gate, Policy, as_policy
from astkit.gating.policies.el2n_static import StaticEL2N
from astkit.gating.policies.gradnorm_is import GradNormIS
from astkit.gating.policies.proxy_topk import ProxyTopK
from astkit.gating.policies.rho import Rho
from astkit.gating.policy import overrides
from astkit.profiling import interleaved
from astkit.trainers import TrainConfig, Trainer
from tests.benchmarks.measure import (
    BATCH,
    ENDLESS,
    STATS,
    Figure,
    figure,
    line,
    one_thread,
    record,
    synthetic,
)

RESULTS = Path(__file__).with_name("ceilings.json")
ROUNDS, BATCHES, BOUND = 7, 10, 0.9
KEPT = (0.5, 0.25, 0.1)
CONFIG = TrainConfig(lr=1e-12, weight_decay=0.0, metrics_every=100)  # weights that stay: equal work


class ScoredEL2N(StaticEL2N):
    """With scores at hand: training the helper models is no part of an epoch."""

    def prepare(self, make_model: Callable[[], nn.Module], data: Any) -> None:
        self.scores = torch.arange(data.samples, dtype=torch.float32)


class HeldRho(Rho):
    """With losses of the helper models at hand."""

    def prepare(self, make_model: Callable[[], nn.Module], data: Any) -> None:
        self.held = torch.zeros(data.samples)


class AlwaysImportance(GradNormIS):
    """With its variance test passed from the first batch on."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate, momentum=1 - 1e-9)
        self.tau = 1e9


def policies(kept: float) -> dict[str, Policy]:
    """The policies that keep about ``kept`` of the rows."""
    named: dict[str, dict[str, Any]] = {
        "random": {"rate": kept},
        "cached_loss": {"rate": kept},
        "learned": {"rate": kept},
        "class_balanced": {"rate": kept},
        "rcap": {"rate": kept},
        "infobatch": {"r": 1 - kept, "delta": 1.0},
        "repb": {"r": 1 - kept},
        "kakurenbo": {"hidden": 1 - kept, "confidence": 0.0},
        "proxy_topk": {"rate": kept},
        "selective_backprop": {"rate": kept, "start": 0.0, "end": 1.0, "interrupt": 0},
    }
    made = {name: as_policy({"name": name, **options}) for name, options in named.items()}
    return {
        **{name: policy for name, policy in made.items() if policy is not None},
        "gate": Gate(kept, "loss", "top_k"),
        "el2n_static": ScoredEL2N(kept),
        "gradnorm_is": AlwaysImportance(kept),
        "rho": HeldRho(kept),
    }


def fixed() -> dict[str, Policy]:
    """The policies whose rate only the data decide."""
    made = {name: as_policy({"name": name}) for name in ("seta", "bls", "auto")}
    return {name: policy for name, policy in made.items() if policy is not None}


def data() -> Images:
    """Noise, labelled by the first weights, so that most rows are classified as labelled."""
    images = synthetic(BATCHES * BATCH)
    model = models.build("simple_cnn", images.shape, images.num_classes).eval()
    with torch.no_grad():
        labels = [model(part).argmax(1) for part in normalized(images).split(BATCH)]
    return Images(images.images, torch.cat(labels), images.classes, images.name)


def normalized(images: Images) -> Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in STATS)
    return (images.images / 255 - mean) / std


class Epochs:
    """Trains one more epoch at each call, and notes the rows that it trained on and scored."""

    def __init__(self, images: Images, policy: Policy | None) -> None:
        model = models.build("simple_cnn", images.shape, images.num_classes)
        loader = Loader(images, BATCH, augment=("crop", "flip"), normalize=STATS, resident=True)
        self.trainer = Trainer(
            model, loader, policy=policy, budget=ENDLESS, config=CONFIG, device="cpu"
        )
        self.records, self.policy = self.trainer.steps(), policy
        self.notes: list[tuple[int, int]] = []

    def __call__(self) -> None:
        counts = self.trainer.ledger.samples
        before, epoch = (counts.trained, counts.scored), self.trainer.position.epoch
        while self.trainer.position.epoch == epoch:
            next(self.records)
        self.notes.append((counts.trained - before[0], counts.scored - before[1]))


class Parts:
    """What no policy can do without, as arms: loading, forward passes, training steps."""

    def __init__(self, images: Images, proxy: nn.Module) -> None:
        self.loader = Loader(images, BATCH, augment=("crop", "flip"), normalize=STATS)
        self.x, self.y = normalized(images)[:BATCH], images.labels[:BATCH]
        self.model = models.build("simple_cnn", images.shape, images.num_classes)
        self.proxy = proxy
        self.epoch = 0

    def arms(self) -> dict[str, Callable[[], None]]:
        sizes = [BATCH, *(round(kept * BATCH) for kept in KEPT)]
        return {
            "load": self.load,
            "forward": lambda: self.forward(self.model),
            "proxy forward": lambda: self.forward(self.proxy),
            **{f"train {rows}": self.training(self.model, rows) for rows in sizes},
            **{f"proxy train {rows}": self.training(self.proxy, rows) for rows in sizes[1:]},
        }

    def load(self) -> None:
        self.epoch += 1
        for _ in self.loader.batches(self.epoch):
            pass

    def forward(self, model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            model(self.x)
        model.train()

    def training(self, model: nn.Module, rows: int) -> Callable[[], None]:
        x, y, parameters = self.x[:rows].clone(), self.y[:rows].clone(), list(model.parameters())
        adamw = torch.optim.AdamW(parameters, lr=CONFIG.lr, weight_decay=0.0, fused=True)

        def step() -> None:
            adamw.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(parameters, CONFIG.clip_norm or 0.0)
            adamw.step()

        return step


def least(epochs: Epochs, note: tuple[int, int], parts: dict[str, float], kept: float) -> float:
    """Seconds of the parts of an epoch; ``parts`` holds the seconds of each."""
    trained, scored = note
    load, policy, rows = parts["load"] / BATCHES, epochs.policy, round(kept * BATCH)
    if policy is None or not overrides(policy, "choose"):
        full = trained / BATCH * (load + parts[f"train {BATCH}"])
        return full + scored / BATCH * (load + parts["forward"])
    if isinstance(policy, ProxyTopK):
        helper = BATCHES * parts["proxy forward"]
        helper += BATCHES / policy.every * parts[f"proxy train {rows}"]
    else:
        helper = BATCHES * parts["forward"]
    return helper + BATCHES * (load + parts[f"train {rows}"])


def measured(rounds: int) -> Iterator[Figure]:
    """The speed-up of each policy as a share of its ceiling."""
    images = data()
    named = chain(
        (("dense", 1.0, None),),
        ((name, kept, each) for kept in KEPT for name, each in policies(kept).items()),
        ((name, 1.0, each) for name, each in fixed().items()),
    )
    runs = {
        (name if name == "dense" or name in fixed() else f"{name}, kept {kept:g}"): (
            Epochs(images, policy),
            kept,
        )
        for name, kept, policy in named
    }
    for run, _ in runs.values():
        run()  # trains helper models, and every row has a loss from here on
    proxies = (run.policy for run, _ in runs.values() if isinstance(run.policy, ProxyTopK))
    proxy = next(proxies)._model
    assert proxy is not None
    parts = Parts(images, proxy).arms()
    epochs = {name: run for name, (run, _) in runs.items()}
    arms = {**parts, **epochs}
    times = interleaved(arms, rounds=rounds, warmup=1, clock=time.process_time)
    dense, dense_kept = runs["dense"]
    for name, (run, kept) in runs.items():
        shares, ceilings, notes = [], [], run.notes[-rounds:]
        for at, note in enumerate(notes):
            now = {part: times.seconds[part][at] for part in parts}
            base = least(dense, dense.notes[-rounds:][at], now, dense_kept)
            ceilings.append(base / least(run, note, now, kept))
            speed = times.seconds["dense"][at] / times.seconds[name][at]
            shares.append(speed / ceilings[-1])
        rows = BATCHES * BATCH * len(notes)
        if name != "dense":
            yield figure(
                f"{name}: speed-up / its ceiling",
                shares,
                "at least",
                BOUND,
                f"epochs of {BATCHES} batches of {BATCH}, SimpleCNN, 3x32x32, fp32",
                ceiling=float(torch.tensor(ceilings).median()),
                trained=sum(note[0] for note in notes) / rows,
                scored=sum(note[1] for note in notes) / rows,
                seconds=times.median(name),
            )


def main(arguments: list[str] | None = None) -> None:
    """Measure all arms and write the results in one piece."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    with one_thread():
        record(options.out, measured(options.rounds), line)


if __name__ == "__main__":
    main()
