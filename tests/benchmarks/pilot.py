"""The pilot's predictions and the cost of `compare`: `python -m tests.benchmarks.pilot`.

Predictions: seconds of a pass of each policy over those of dense training, predicted by a pilot
and measured on real runs, alternately in one process on one CPU thread. Cost: seconds of a whole
comparison over those of its trainings alone, with the same evaluations. What is measured are CPU
seconds, which other processes disturb less; the pilot itself uses elapsed ones. Writes pilot.json.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from astkit.comparison.arm import POINTS, control_of
from astkit.comparison.task import Arm, Task
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit import Budget, compare, rng
from astkit.comparison import pilot
from astkit.comparison.arguments import DENSE, checked_policies, checked_task
from astkit.datasets import Loader
from astkit.files import read_json, write_atomic
from astkit.gating.policy import overrides
from astkit.models import SimpleCNN
from astkit.profiling import interleaved
from astkit.tasks import task as known
from astkit.trainers import DenseStep, GatedStep, Trainer
from tests.benchmarks.measure import Figure, figure, line, one_thread, record, synthetic

RESULTS = Path(__file__).with_name("pilot.json")
PARTS = ("predictions", "cost")
ROUNDS = 5
NEAR, COST = 0.2, 1.03
ENDLESS = Budget(epochs=1e9)
POLICIES = [
    {"name": "random", "rate": 0.3},
    "cached_loss",
    {"name": "gate", "target_rate": 0.25},
    {"name": "gate", "target_rate": 0.6},
    {"name": "proxy_topk", "rate": 0.5},
]
PASSES = {"digits": 5, "CIFAR-10-sized images": 1, "transformer": 1}
STEPS = 2000  # of the comparison that a pilot precedes
WORDS, LENGTH, WIDTH = 500, 32, 64


class Transformer(nn.Module):
    """Two encoder layers over word embeddings; the mean over words is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[rows, 10]`` for tokens ``[rows, LENGTH]``."""
        return self.last(self.encoder(self.words(tokens)).mean(1))


def texts(rows: int) -> TensorDataset:
    """Random tokens and labels."""
    drawn = rng.generator(rows, "texts")
    tokens = torch.randint(WORDS, (rows, LENGTH), generator=drawn)
    return TensorDataset(tokens, torch.randint(10, (rows,), generator=drawn))


def tasks() -> dict[str, dict[str, Any]]:
    """Arguments of `compare`."""
    sizes = {"train": 768, "validation": 64, "test": 64}
    return {
        "digits": known("digits"),
        "CIFAR-10-sized images": {
            "make_model": SimpleCNN,
            **{part: Loader(synthetic(rows), 64) for part, rows in sizes.items()},
        },
        "transformer": {
            "make_model": Transformer,
            **{part: texts(rows) for part, rows in sizes.items()},
        },
    }


def task_of(arguments: dict[str, Any]) -> Task:
    """The task that `compare` makes of them, on the CPU."""
    usual = {"criterion": nn.CrossEntropyLoss(reduction="none"), "metrics": ()}
    return checked_task({**usual, **arguments, "device": "cpu"})


def passes(task: Task, arm: Arm, count: int) -> Callable[[], None]:
    """A function that trains for ``count`` passes over the offered rows."""
    policy = arm.fresh()
    chooses = policy is not None and overrides(policy, "choose")
    step = GatedStep(policy) if chooses and policy is not None else DenseStep()
    work = task.trainer(policy, arm.seed, ENDLESS, step=step)
    steps = work.steps()

    def run() -> None:
        until = work.position.epoch + count
        while work.position.epoch < until:
            next(steps)

    return run


def predictions(name: str, arguments: dict[str, Any], rounds: int) -> Iterator[Figure]:
    """Measured over predicted relative seconds of each policy."""
    task, policies, count = task_of(arguments), checked_policies(POLICIES), PASSES[name]
    found: list[pilot.Pilot] = []
    arms: dict[str, Callable[[], object]] = {
        DENSE: passes(task, Arm(DENSE, None, 0), count),
        **{label: passes(task, Arm(label, spec, 0), count) for label, spec in policies.items()},
        "pilot": lambda: found.append(pilot.measure(task, policies, 0, STEPS)),
    }
    timed = interleaved(arms, rounds=rounds, warmup=1, clock=time.process_time)
    for label in policies:
        expected = [each.of(label) for each in found[1:]]
        predicted = [each.seconds for each in expected if each is not None]
        pairs = zip(timed.seconds[label], timed.seconds[DENSE], predicted, strict=True)
        values = [own / dense / share for own, dense, share in pairs]
        ratio = timed.ratio(label, DENSE)
        yield figure(
            f"{name}, {label}: measured / predicted relative seconds",
            values,
            "at most",
            1 + NEAR,
            "CPU seconds of passes over the offered rows relative to dense: 0.8 to 1.2 is right",
            measured=ratio.median,
            measured_interval=[ratio.low, ratio.high],
            predicted=sorted(predicted)[len(predicted) // 2],
            break_even=[each.break_even for each in expected if each is not None],
            within=abs(sorted(values)[len(values) // 2] - 1) <= NEAR,
        )


def bare(task: Task, policies: dict[str, Any], budget: Budget, seeds: range) -> None:
    """The trainings and evaluations of a comparison, without what it keeps."""
    for seed in seeds:
        dense = _trained(task, Arm(DENSE, None, seed), budget)
        same = Budget(flops=dense.ledger.flops.total)
        controls: dict[str, Arm] = {}
        for label, spec in policies.items():
            work = _trained(task, Arm(label, spec, seed), same)
            spent = work.ledger.flops.forward + work.ledger.flops.backward
            rate = spent / work.ledger.flops_dense
            if control := control_of({"rate": rate, "seed": seed}, spec):
                controls[control.label] = control
        for control in controls.values():
            _trained(task, control, same)


def _trained(task: Task, arm: Arm, budget: Budget) -> Trainer:
    policy, held, reached = arm.fresh(), task.held("validation"), 0
    chooses = policy is not None and overrides(policy, "choose")
    step = GatedStep(policy) if chooses and policy is not None else DenseStep()
    work = task.trainer(policy, arm.seed, budget, step=step)
    for each in work.steps():
        part = int(each.metrics["progress"] * POINTS)
        if part > reached:
            reached = part
            work.evaluate(held)
    work.evaluate(task.held("test"))
    return work


def cost(name: str, arguments: dict[str, Any], epochs: float, rounds: int) -> Iterator[Figure]:
    """A whole comparison over its trainings alone."""
    given = [{"name": "gate", "target_rate": 0.25}]
    arguments, budget, seeds = {**arguments, "batch_size": 32}, Budget(epochs=epochs), range(5)
    task, policies = task_of(arguments), checked_policies(given)

    def whole() -> None:
        folder = tempfile.mkdtemp()
        try:
            with redirect_stdout(io.StringIO()):
                compare(
                    **arguments,
                    policies=given,
                    budget=budget,
                    seeds=seeds,
                    out=folder,
                    all_policies=True,
                    device="cpu",
                )
        finally:
            shutil.rmtree(folder)

    arms = {"compare": whole, "bare": lambda: bare(task, policies, budget, seeds)}
    cpu = time.process_time
    timed = interleaved(arms, rounds=rounds, warmup=1, baseline="bare", clock=cpu)
    ratio = zip(timed.seconds["compare"], timed.seconds["bare"], strict=True)
    yield figure(
        f"{name}: compare / its trainings alone, CPU seconds",
        [own / other for own, other in ratio],
        "at most",
        COST,
        f"5 seeds of 3 arms, {epochs:g} epochs of dense training each, pilot and files included",
        seconds=timed.median("compare"),
        seconds_bare=timed.median("bare"),
    )


def measured(part: str, rounds: int, epochs: float) -> Iterator[Figure]:
    """The figures of a part, "predictions" or "cost"."""
    if part == "cost":
        yield from cost("transformer", tasks()["transformer"], epochs, rounds)
        return
    for name, arguments in tasks().items():
        yield from predictions(name, arguments, rounds)


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts, and write each with its stamp; other parts in the file are kept."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--epochs", type=float, default=5.0, help="of dense runs in a comparison")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    for part in options.parts:
        with one_thread(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part.json"
            record(path, measured(part, options.rounds, options.epochs), line)
            parts = {**read_json(options.out), part: read_json(path)}
        write_atomic(options.out, json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    main()
