"""Does the lattice learn? `python -m benchmarks.lattice_learning` writes JSON.

Trains on the frozen documentation pairs, three seeds of each arm, and sets beside them the
baselines, the bypass (the same mapper and collector without flows, the same training) and the
original's rules as a negative control. `--ablation` also reverts the differences to the original,
one at a time. `--arms` measures some of them anew and keeps the others that the file holds. There
is no test part: sizes and loss weights were chosen on the validation part with seed 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from astkit import rng
from astkit.files import read_json, write_json
from astkit.stamp import describe, stamp
from astkit.systems.lattice.model import ENERGY, MOVE, EnergyFlowLattice, LatticeConfig
from astkit.systems.lattice.tasks import LatticeTask, baselines, docs_task
from astkit.systems.lattice.training import CONFIG, LatticeTrainer
from benchmarks import bench

RESULTS = bench.RESULTS / "lattice_learning.json"
SEEDS = [0, 1, 2]
LATTICE = LatticeConfig(
    width=12, height=12, depth=6, hidden=32, mapper_width=2048, spawn_threshold=1.0
)
ALONE = {"contrast": 0.0, "text": 0.0, "temperature": 0.05, "fade": False}  # the cosine
WEIGHTS = {**ALONE, "contrast": 0.1, "temperature": 0.1, "fade": True}
SHARP = {**ALONE, "contrast": 1.0, "temperature": 0.1}
LARGE = {"width": 28, "height": 28, "depth": 3}
TRAINING = {name: getattr(CONFIG, name) for name in ("weight_decay", "clip_norm", "schedule")}
METRICS = ("val_mrr", "val_cosine", "val_top1", "val_top5")
ORIGINAL: dict[str, Any] = {"energy_rule": "original", "input_scale": 1.0, "theta_e": 0.01}


@dataclass(frozen=True)
class Arm:
    """One configuration: changes to the lattice's settings and to its training."""

    name: str
    lattice: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=lambda: WEIGHTS)
    steps: int = 300
    lr: float = CONFIG.lr
    task: str = "docs"
    large: tuple[slice, ...] = ()  # rows of the carrier's heads that start as large as the others


ARMS = (
    Arm("lattice"),
    Arm("bypass", {"lattice": False}),
    Arm("negative control", ORIGINAL, large=(MOVE, ENERGY)),
    Arm("large lattice, contrast", LARGE, SHARP, steps=200, lr=5e-4),
    Arm("large bypass, contrast", {**LARGE, "lattice": False}, SHARP, steps=200, lr=5e-4),
    Arm("lattice, spawning", {"spawn_threshold": 0.5}),
    Arm("lattice, depth 12", {"depth": 12}),
    Arm("lattice, 600 steps", steps=600),
    Arm("bypass, 600 steps", {"lattice": False}, steps=600),
    Arm("lattice, cosine alone", weights=ALONE),
    Arm("lattice, identity", task="identity"),
    Arm("lattice, rotation", task="rotation"),
)
ABLATION = (
    # a small start of energies is one of changes to them, which that rule does not have
    Arm("energy rule of the original", {"energy_rule": "original"}, large=(ENERGY,)),
    Arm("unscaled input", {"input_scale": 1.0}),
    Arm("large first displacements", large=(MOVE,)),
    Arm("large first changes of energy", large=(ENERGY,)),
    Arm("theta_e = 0.01", {"theta_e": 0.01}),
)


class Fading(LatticeTrainer):
    """The contrast's weight decreases linearly to 0 in training, and is whole in validation."""

    def train_batch(self, batch: Any, weight: Any) -> Any:
        """Train with the weight at this point of the budget."""
        whole, self.loss.contrast = self.loss.contrast, self.loss.contrast * (1 - self.progress)
        try:
            return super().train_batch(batch, weight)
        finally:
            self.loss.contrast = whole


def measured(arm: Arm, task: LatticeTask, seed: int) -> dict[str, Any]:
    """Metrics after the last step, and what it took."""
    config = replace(LATTICE, **arm.lattice, seed=seed, dim=task.dim)
    model = EnergyFlowLattice(config)
    for head in arm.large:
        enlarge(model, head)
    settings = replace(CONFIG, lr=arm.lr, seed=seed)
    options = {"steps": arm.steps, "config": settings, "device": "cpu"}
    kind = Fading if arm.weights["fade"] else LatticeTrainer
    weights = {name: value for name, value in arm.weights.items() if name != "fade"}
    trainer = kind(model, task, **options, **weights)
    last = trainer.run().epochs[-1]
    metrics = {name: last[name] for name in METRICS}
    seconds = trainer.ledger.seconds["training"]
    return {"seed": seed, "steps": trainer.step, **metrics, "seconds": seconds}


def identity(task: LatticeTask) -> LatticeTask:
    """The easiest task on ``task``'s sources: the target is the source."""
    train, held = (replace(part, y=part.x) for part in (task.train, task.validation))
    return LatticeTask("identity", train, held)


def rotated(task: LatticeTask, seed: int = 0) -> LatticeTask:
    """The next task on ``task``'s sources: the target is ``Q x`` with a fixed orthogonal ``Q``.

    ``Q`` is drawn from the Haar measure (Mezzadri, Notices of the AMS 54(5), 2007).
    """
    draws = torch.randn(task.dim, task.dim, generator=rng.generator(seed, "rotation"))
    q, r = torch.linalg.qr(draws)
    rotation = (q * r.diagonal().sign()).T
    train, held = (replace(part, y=part.x @ rotation) for part in (task.train, task.validation))
    return LatticeTask("rotation", train, held)


def settings_of(arm: Arm) -> str:
    """What an arm's numbers depend on, to tell whether they were measured as it stands now."""
    settings = {**vars(LATTICE), **arm.lattice, **ALONE, **arm.weights, **TRAINING}
    own = {"steps": arm.steps, "lr": arm.lr, "task": arm.task, "large": arm.large}
    return ", ".join(f"{name}={value!r}" for name, value in sorted({**settings, **own}.items()))


def enlarge(model: EnergyFlowLattice, head: slice) -> None:
    """Undo the small start of a head of the carrier: draw it as the other heads were."""
    heads = model.carrier.heads
    bound = heads.in_features**-0.5  # torch's own for a linear layer
    shape = heads.weight[head].shape
    drawn = torch.rand(shape, generator=rng.generator(model.config.seed, "large", head.start))
    with torch.no_grad():
        heads.weight[head] = bound * (2 * drawn - 1)


def line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """An arm in one line, seed by seed."""
    parts = (f"{metric} {[round(row[metric], 3) for row in rows]}" for metric in METRICS)
    return f"{name}: {', '.join(parts)}"


def main(arguments: list[str] | None = None) -> None:
    """Measure the arms one by one, or those given by name; the file is written after each.

    ``--ablation``: also the single differences to the original; ``--steps`` and ``--pairs``: other
    numbers than the arms' own, to try it out.
    """
    asked = bench.options(
        main.__doc__,
        RESULTS,
        arguments,
        ablation=False,
        arms=[arm.name for arm in (*ARMS, *ABLATION)],
        seeds=SEEDS,
        steps=int,
        pairs=int,
    )
    print(describe(stamp()))
    docs = docs_task(asked.pairs)
    tasks = {"docs": docs, "identity": identity(docs), "rotation": rotated(docs)}
    some = len(asked.arms) < len(ARMS) + len(ABLATION)
    content = {"arms": {}, **(read_json(asked.out) if some else {})}
    content["pairs"] = {"train": len(docs.train), "validation": len(docs.validation)}
    content["baselines"] = baselines(docs)
    for arm in (*ARMS, *(ABLATION if asked.ablation or some else ())):
        if arm.name not in asked.arms:
            continue
        arm = replace(arm, steps=asked.steps or arm.steps)
        environment, load_before = stamp(), os.getloadavg()
        rows = [measured(arm, tasks[arm.task], seed) for seed in asked.seeds]
        print(line(arm.name, rows), flush=True)
        content["arms"][arm.name] = {
            "settings": settings_of(arm),
            "stamp": environment,
            # processes that wanted a core over 1, 5, 15 minutes: seconds mean little above "cpus"
            "load_before": load_before,
            "rows": rows,
        }
        write_json(asked.out, content)


if __name__ == "__main__":
    main()
