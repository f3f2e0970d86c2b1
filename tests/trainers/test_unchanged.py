"""Weights, selections and costs of 200 steps equal the committed numbers, also when interrupted.

``python -m tests.trainers.test_unchanged`` writes unchanged.json anew; configurations whose names
end in ``_ddp`` are run by two processes. The numbers are those of version 0.2, but for "auto",
which asks other questions since.
"""

import hashlib
import json
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit import Budget, Policy, TrainConfig, Trainer, Visit
from astkit.gating import as_policy
from astkit.gating.scores import entropy
from tests.gating.policies.cells import GradNormIS
from tests.trainers.worlds import in_world


def weighted(outputs: Tensor, targets: Tensor, inputs: Tensor) -> Tensor:
    """0.7 times the loss and 0.3 times the entropy, each as a multiple of its mean."""
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    terms = torch.stack([losses, entropy(outputs, targets, inputs)], dim=1)
    return (terms / terms.mean(0)) @ terms.new_tensor([0.7, 0.3])


FILE = Path(__file__).with_name("unchanged.json")
STEPS = 200
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "dense": {"dropout": 0.2},
    "dense_accumulated": {"config": {"accumulation_steps": 3, "clip_norm": 0.5, "micro_batch": 20}},
    "dense_ddp": {},
    "gate": {"policy": {"name": "gate", "rate": 0.25}},
    "gate_ddp": {"policy": {"name": "gate", "rate": 0.25}},
    "gate_top_k": {"policy": {"name": "gate", "controller": "top_k", "score": weighted}},
    "infobatch": {"policy": "infobatch"},
    "auto": {"policy": "auto"},
    "class_balanced": {"policy": "class_balanced"},
    "gradnorm_is": {"policy": GradNormIS(seed=3)},
}


def recorded(policy: Policy, visits: dict[bool, list[Tensor]]) -> Policy:
    """``policy``, whose rows trained on (``True``) and only scored are kept in ``visits``."""

    class ShapeGraph(type(policy)):
        def observe(self, visit: Visit) -> None:
            if self is policy:  # a copy only describes the run
                visits[visit.trained].append(visit.index)
            super().observe(visit)

    policy.__class__ = ShapeGraph
    return policy


def digest(rows: Tensor) -> str:
    return hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:16]


def data() -> tuple[TensorDataset, TensorDataset]:
    """640 digits to train on and 160 to validate, float64; the training classes are uneven."""
    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x / 16), torch.tensor(y)
    rare = (labels < 3) & (torch.arange(len(labels)) % 3 > 0)
    kept = (~rare).nonzero().squeeze(1)
    train, held = kept[:640], torch.arange(1600, 1760)
    return TensorDataset(inputs[train], labels[train]), TensorDataset(inputs[held], labels[held])


def run(name: str, folder: str | Path | None = None, stop: int | None = None) -> dict[str, Any]:
    """The numbers of one configuration; with ``folder`` and ``stop`` it is interrupted once."""
    torch.set_num_threads(1)
    settings = CONFIGURATIONS[name]
    visits: dict[bool, list[Tensor]] = {kind: [torch.empty(0).long()] for kind in (True, False)}

    def built(resume: bool) -> Trainer:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            dropout = nn.Dropout(settings.get("dropout", 0.0))
            model: nn.Module = nn.Sequential(
                nn.Linear(64, 32), nn.Tanh(), dropout, nn.Linear(32, 10)
            ).double()
        if name.endswith("_ddp"):
            model = nn.parallel.DistributedDataParallel(model)
        policy = as_policy(deepcopy(settings.get("policy")), seed=3) or Policy()
        train, validation = data()
        return Trainer(
            model,
            train,
            validation,
            policy=recorded(policy, visits),
            budget=Budget(steps=STEPS),
            batch_size=32,
            config=TrainConfig(seed=3, **settings.get("config", {})),
            checkpoints=None if folder is None else Path(folder) / "checkpoints",
            resume=resume,
        )

    trainer = built(False)
    if stop is not None:
        for step in trainer.steps():
            if step.phase == "train" and step.step == stop:
                break
        trainer = built(True)
    trainer.run()
    values = [parameter.detach().double() for parameter in trainer.model.parameters()]
    ledger, trained = trainer.ledger, torch.cat(visits[True])
    return {
        "weights": [[float(value.sum()), float(value.norm())] for value in values],
        "samples": {key: value for key, value in asdict(ledger.samples).items() if value},
        "flops": {key: value for key, value in asdict(ledger.flops).items() if value},
        "flops_dense": ledger.flops_dense,
        "rows": len(trained),
        "trained": digest(trained),
        "scored": digest(torch.cat(visits[False]).bincount()),
    }


def in_processes(name: str) -> dict[str, Any]:
    """The numbers of one configuration, of process 0 where its name asks for two."""
    return in_world(2 if name.endswith("_ddp") else 1, run, name)[0]


EXPECTED = json.loads(FILE.read_text())
TWO = [name for name in CONFIGURATIONS if name.endswith("_ddp")]


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        if key == "weights":
            for now, then in zip(found[key], value, strict=True):
                assert now == pytest.approx(then, rel=1e-9, abs=1e-9)
        else:
            assert found[key] == value, key


@pytest.mark.parametrize("name", TWO)
def test_two_processes_do_what_they_did(name: str) -> None:
    assert_equal(in_processes(name), EXPECTED[name])


@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name not in TWO])
def test_an_interrupted_run_is_that_of_the_committed_numbers(name: str, tmp_path: Path) -> None:
    """Which are those of runs that nobody interrupted."""
    assert_equal(run(name, tmp_path, stop=77), EXPECTED[name])


if __name__ == "__main__":
    every = {name: in_processes(name) for name in CONFIGURATIONS}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in every.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
