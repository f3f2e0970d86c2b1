"""Compares the policies at equal cost: `python -m tests.benchmarks.policies`; see `policies_plan`.

Every run of a condition may spend the FLOPs of dense training at ``--epochs``, scoring and helper
models included, with a schedule that ends where they are spent. Test data are scored once, at the
end, with the last weights. Each run is a process of its own with one thread; the same command
continues what was interrupted, and trains random controls once the rate of their policy is known.
``--table`` writes docs/policies.md. Results come from a clean commit. ::

    python -m tests.benchmarks.policies --condition clean wrong_labels:share=0.4 --tuned \\
        --policies dense cached_loss:rate=0.3 random@cached_loss:rate=0.3 --seeds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from astkit import rng, system
from astkit.comparison.training import Record
from astkit.datasets import Loader, stratified
from astkit.datasets.conditions import Condition, condition
from astkit.files import write_atomic
from astkit.gating import Policy, as_policy, cross_entropy_rows
from astkit.names import REGISTRIES
from astkit.profiling import count_flops
from astkit.stamp import stamp
from astkit.trainers import Budget, Checkpoints, Observer, TrainConfig, Trainer
from tests.benchmarks import policies_plan as plans
from tests.benchmarks.bench import ROOT
from tests.benchmarks.gain import AUGMENT, WIDTHS, images, network, read, train_all
from tests.benchmarks.policies_plan import Entry, Run, parsed
from tests.benchmarks.policies_table import page

PAGE = ROOT / "docs" / "policies.md"
EPOCHS = {"small": 40.0}  # of other conditions: 8
STAMPED = ("commit", "dirty", "source", "torch", "cpu", "threads", "time")
SETTINGS = {"cifar10": (3e-3, 128), "digits": (3e-3, 64)}
"""Learning rate and batch size without ``--tuned``; digits try the runner out."""


def planned(options: argparse.Namespace) -> list[Run]:
    """The runs that the options ask for, seed by seed, so that policies take turns."""
    runs = [
        Run(
            condition,
            policy,
            seed,
            options.epochs or EPOCHS.get(parsed(condition)[0], 8.0),
            *SETTINGS[options.data],
            fraction=options.fraction,
            data=options.data,
        )
        for condition, seed, policy in product(options.condition, options.seeds, options.policies)
    ]
    return list(map(plans.tuned, runs)) if options.tuned else runs


def train(run: Run, out: Path, cache: Path) -> Entry:
    """The entry of ``run``, trained in this process.

    Raises ``ValueError`` for a random control whose policy has no entry in ``out``.
    """
    torch.set_num_threads(1)
    rate = plans.rate_for(run, read(out)) if run.controlled else None
    if run.controlled and rate is None:
        raise ValueError(f"the rate of {run.controlled} is not known: train it first")
    # without it, a sixth of the seconds goes to page faults
    with system.tuned(keep_memory=True), patch.dict(REGISTRIES["condition"], plans.ALIASES):
        return execute(run, cache, rate)


def execute(
    run: Run,
    cache: Path,
    rate: float | None = None,
    observers: tuple[Observer, ...] = (),
    pause: float = 30.0,
) -> Entry:
    """Train to the end of the budget, then score the last weights once; returns the entry.

    Checkpoints lie in ``cache``; a run that was interrupted resumes from there. ``rate``: of a
    random control; ``pause``: seconds between two checkpoints, at least.

    Raises ``ValueError`` where a policy's helper models alone cost more than the budget.
    """
    environment = stamp()
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
    first = next(loader.batches(0))
    a_row = count_flops(model, first.x, first.y, cross_entropy_rows).training(1)
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
            precision="fp32" if run.data == "digits" else "bf16",
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
        "wrong_share": wrong_share(record, made),
        "stamp": {name: environment[name] for name in STAMPED},
    }
    shutil.rmtree(folder, ignore_errors=True)
    return entry


def policy_of(run: Run, rate: float | None) -> Policy | None:
    """The policy, ``None`` for dense training; a random control has ``rate``."""
    if run.controlled:
        return as_policy({"name": "random", "rate": rate}, run.seed)
    name, options = parsed(run.policy)
    if name in plans.WITHOUT_POLICY:
        return None
    return as_policy({"name": name, **options}, run.seed)


def wrong_share(record: Record, made: Condition) -> list[float]:
    """Share of wrong labels among the rows trained on, by eighths of the budget."""
    times = record.trained.double()
    wrong = times @ made.wrong.double() / times.sum(1).clamp_min(1)
    return [round(share, 4) for share in wrong.tolist()]


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights in inverse proportion to the size of each class, with mean 1 over the rows."""
    counts = labels.bincount(minlength=classes)
    return len(labels) / ((counts > 0).sum() * counts.clamp_min(1))


def weighted(weights: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each row, times the weight of its class."""
    return F.cross_entropy(outputs.float(), y, weights, reduction="none")


def class_scores(recalls: Tensor, train_labels: Tensor) -> dict[str, float]:
    """Accuracies by the recalls of the classes on the test set, ``[C]``.

    ``balanced``: their mean; ``natural``: the mean weighted by the shares of the classes among the
    true labels of the training data, ``[N]``; ``worst``: the lowest one.
    """
    recalls = recalls.double()
    shares = train_labels.bincount(minlength=len(recalls)).double() / len(train_labels)
    return {
        "balanced": float(recalls.mean()),
        "natural": float((recalls * shares).sum()),
        "worst": float(recalls.min()),
    }


def main(arguments: list[str] | None = None) -> None:
    """Train the runs without an entry, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--condition", nargs="+", default=["clean"], help="as name:option=value")
    parser.add_argument("--policies", nargs="+", default=["dense"], help="as name:option=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=float, help="of dense training; 8, on small data 40")
    parser.add_argument("--fraction", type=float, default=1.0, help="of dense's FLOPs to spend")
    parser.add_argument("--data", choices=SETTINGS, default="cifar10")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--tuned", action="store_true", help="with the settings of the table")
    parser.add_argument("--table", action="store_true", help="write docs/policies.md, run nothing")
    options = parser.parse_args(arguments)
    if options.table:
        write_atomic(PAGE, page(read(plans.RESULTS)))
        return
    job = partial(train, out=plans.RESULTS, cache=ROOT / "out" / "policies")
    train_all(planned(options), plans.RESULTS, options.jobs, job)


if __name__ == "__main__":
    main()
