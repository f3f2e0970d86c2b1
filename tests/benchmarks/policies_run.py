"""One training of a comparison of policies: data, network, budget, and what is recorded.

`python -m tests.benchmarks.policies` runs it.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from astkit import rng
from astkit.comparison.training import Record
from astkit.datasets import Loader, stratified
from astkit.datasets.conditions import Condition, condition
from astkit.gating import Policy, as_policy, cross_entropy_rows
from astkit.profiling import count_flops
from astkit.stamp import stamp
from astkit.trainers import Budget, Checkpoints, Observer, TrainConfig, Trainer
from tests.benchmarks.gain import AUGMENT, WIDTHS, images, network
from tests.benchmarks.policies_plan import WITHOUT_POLICY, Run, parsed

STAMPED = ("commit", "dirty", "source", "torch", "cpu", "threads", "time")


class Data(NamedTuple):
    """How a data set is trained on; ``lr`` and ``batch_size`` apply without ``--tuned``."""

    lr: float = 3e-3
    batch_size: int = 128
    precision: str = "bf16"


DATA = {
    "cifar10": Data(),
    "digits": Data(batch_size=64, precision="fp32"),  # tries the runner out
}


def audit(record: Record, made: Condition, classes: int) -> dict[str, Any]:
    """Shares of wrong labels and of each true class among the rows trained on, by eighths."""
    assert made.true_labels is not None
    times = record.trained.double()
    rows = times.sum(1, keepdim=True).clamp_min(1)
    of_class = times @ F.one_hot(made.true_labels, classes).double() / rows
    wrong = times @ made.wrong.double() / rows[:, 0]
    return {
        "wrong_share": [round(share, 4) for share in wrong.tolist()],
        "class_share": [[round(share, 4) for share in part] for part in of_class.tolist()],
    }


def execute(
    run: Run,
    cache: Path,
    rate: float | None = None,
    observers: tuple[Observer, ...] = (),
    pause: float = 30.0,
) -> dict[str, Any]:
    """Train to the end of the budget, then score the last weights once; returns the entry.

    Checkpoints lie in ``cache``; a run that was interrupted resumes from there. ``rate``: of a
    random control; ``pause``: seconds between two checkpoints, at least.

    Raises ``ValueError`` where a policy's helper models alone cost more than the budget.
    """
    environment, data = stamp(), DATA[run.data]
    train, test = images(run.data)
    name, options = parsed(run.condition)
    made = condition(name, train, test, run.seed, target=0, **options)
    assert made.rows is not None
    assert made.true_labels is not None
    normalize = train.channel_stats()
    validation = None
    if name == "long_tail":  # balanced; policies may use its class shares, nothing else is read
        few, _ = stratified(train.labels, 100 / len(train), 0, "validation")
        validation = Loader(train.subset(few), 100, shuffle=False, normalize=normalize)
    criterion = cross_entropy_rows
    if run.policy == "class_weights":
        criterion = partial(weighted, class_weights(made.labels, train.num_classes))
    with rng.isolated("cpu", run.seed, "model"):
        model = network(WIDTHS[run.data], train.shape[0], train.num_classes)
    options = {"augment": AUGMENT[run.data], "seed": run.seed, "normalize": normalize}
    loader = Loader(made.train, run.batch_size, **options)
    a_row = dense_flops(model, loader)
    flops = run.fraction * run.epochs * len(made.rows) * a_row
    folder = cache / hashlib.sha256(run.name.encode()).hexdigest()[:16]
    record = Record(len(made.train), lambda: trainer.progress, torch.device("cpu"))
    trainer = Trainer(
        model,
        loader,
        validation,
        policy=policy_of(run, rate),
        budget=Budget(flops=flops),
        criterion=criterion,
        config=TrainConfig(
            lr=run.lr,
            precision=data.precision,
            channels_last=True,
            threads=1,
            report_every=100,
            seed=run.seed,
        ),
        device="cpu",
        observers=[record, *observers],
        checkpoints=Checkpoints(folder, every=6, pause=pause),
        resume=True,
    )
    trainer.run()
    ledger, counts = trainer.ledger, trainer.ledger.samples
    if ledger.flops.total > flops + 2 * run.batch_size * a_row:  # a step may score besides
        raise ValueError(
            f"{run.policy!r} has cost {ledger.flops.total / flops:.2f} times the budget, since its"
            " helper models are trained before it is checked: give more epochs"
        )
    right = trainer.measure(Loader(test, 500, shuffle=False, normalize=normalize)).rows["accuracy"]
    hits = test.labels.bincount(right, minlength=train.num_classes)
    recalls = hits / test.labels.bincount(minlength=train.num_classes)
    entry = {
        **asdict(run),
        "value": float(right.double().mean()),
        "accuracy": float(right.double().mean()),
        **class_scores(recalls, made.true_labels),
        "test_rows": len(test),
        "train_rows": len(made.rows),
        "budget_flops": flops,
        "flops": ledger.flops.total,
        "seconds": ledger.seconds["training"],
        "trained": counts.trained,
        "scored": counts.scored,
        "rate": min(1.0, (ledger.flops.forward + ledger.flops.backward) / ledger.flops_dense),
        "steps": trainer.step,
        **audit(record, made, train.num_classes),
        "stamp": {name: environment[name] for name in STAMPED},
    }
    shutil.rmtree(folder, ignore_errors=True)
    return entry


def policy_of(run: Run, rate: float | None) -> Policy | None:
    """The policy, ``None`` for dense training; a random control has ``rate``."""
    if run.controlled:
        return as_policy({"name": "random", "rate": rate}, run.seed)
    name, options = parsed(run.policy)
    if name in WITHOUT_POLICY:
        return None
    return as_policy({"name": name, **options}, run.seed)


def dense_flops(model: nn.Module, loader: Loader) -> float:
    """FLOPs of a forward and a backward pass of one row."""
    batch = next(loader.batches(0))
    return count_flops(model, batch.x, batch.y, cross_entropy_rows).training(1)


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights in inverse proportion to the size of each class, with mean 1 over the rows."""
    counts = labels.bincount(minlength=classes)
    return len(labels) / ((counts > 0).sum() * counts.clamp_min(1))


def weighted(weights: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each row, times the weight of its class."""
    return F.cross_entropy(outputs.float(), y, weights, reduction="none")


def class_scores(recalls: Tensor, train_labels: Tensor) -> dict[str, float]:
    """Accuracies on a balanced test set and on one with the training data's distribution.

    Args:
        recalls: per-class recall on the test set, ``[C]``.
        train_labels: int64 ``[N]``, the true labels of the training data.

    Returns ``balanced``, the mean over classes; ``natural``, the mean weighted by the classes'
    shares of the training data; ``worst``, the lowest recall of a class.
    """
    recalls = recalls.double()
    shares = train_labels.bincount(minlength=len(recalls)).double() / len(train_labels)
    return {
        "balanced": float(recalls.mean()),
        "natural": float((recalls * shares).sum()),
        "worst": float(recalls.min()),
    }
