"""Numbers that a change of structure must not change: weights, selections and costs of 200 steps.

``python -m tests.trainers.unchanged`` writes unchanged.json anew; two processes are started for the
configurations whose names end in ``_ddp``. The numbers are those of version 0.2, but for "auto",
which asks other questions since.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit import Budget, Policy, TrainConfig, Trainer, Visit
from astkit.gating import as_policy

FILE = Path(__file__).with_suffix(".json")
STEPS = 200
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "dense": {"dropout": 0.2},
    "dense_accumulated": {"config": {"accumulation_steps": 3, "clip_norm": 0.5, "micro_batch": 20}},
    "dense_ddp": {},
    "gate": {"policy": {"name": "gate", "target_rate": 0.25}},
    "gate_ddp": {"policy": {"name": "gate", "target_rate": 0.25}},
    "gate_top_k": {
        "policy": {"name": "gate", "controller": "top_k", "score": "0.7*loss + 0.3*entropy"}
    },
    "infobatch": {"policy": "infobatch"},
    "kakurenbo": {"policy": "kakurenbo", "config": {"lr": 1e-2}},
    "auto": {"policy": "auto"},
    "class_balanced": {"policy": "class_balanced"},
    "gradnorm_is": {"policy": "gradnorm_is"},
    "repb": {"policy": "repb"},
    "proxy_topk": {"policy": "proxy_topk"},
    "rho": {"policy": {"name": "rho", "rate": 0.25}},
}


class Record:
    """Rows as a policy observes them: those that were trained on, in order, and those scored."""

    def __init__(self) -> None:
        self.trained: list[Tensor] = []
        self.scored: list[Tensor] = []

    def of(self, policy: Policy) -> Policy:
        """``policy``, whose visits are recorded too."""
        record = self

        class Recorded(type(policy)):
            def observe(self, visit: Visit) -> None:
                if self is policy:  # a copy only describes the run
                    (record.trained if visit.trained else record.scored).append(visit.index)
                super().observe(visit)

        policy.__class__ = Recorded
        return policy

    def numbers(self) -> dict[str, Any]:
        trained = torch.cat(self.trained) if self.trained else torch.empty(0, dtype=torch.int64)
        scored = torch.cat(self.scored) if self.scored else torch.empty(0, dtype=torch.int64)
        return {
            "rows": len(trained),
            "trained": hashlib.sha256(trained.numpy().tobytes()).hexdigest()[:16],
            "scored": hashlib.sha256(scored.bincount().numpy().tobytes()).hexdigest()[:16],
        }


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
    record = Record()

    def built(resume: bool) -> Trainer:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            dropout = nn.Dropout(settings.get("dropout", 0.0))
            model: nn.Module = nn.Sequential(
                nn.Linear(64, 32), nn.Tanh(), dropout, nn.Linear(32, 10)
            ).double()
        if name.endswith("_ddp"):
            model = nn.parallel.DistributedDataParallel(model)
        policy = as_policy(settings.get("policy"), seed=3) or Policy()
        train, validation = data()
        return Trainer(
            model,
            train,
            validation,
            policy=record.of(policy),
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
    weights = [[float(value.sum()), float(value.norm())] for value in values]
    ledger = trainer.ledger
    flops = {key: value for key, value in asdict(ledger.flops).items() if value}
    samples = {key: value for key, value in asdict(ledger.samples).items() if value}
    numbers = {"weights": weights, "samples": samples, "flops": flops}
    return {**numbers, "flops_dense": ledger.flops_dense, **record.numbers()}


def run_in_two(name: str) -> dict[str, Any]:
    """The numbers of process 0 of two."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launcher += [
            "--nproc_per_node=2",
            "--no-python",
            sys.executable,
            "-m",
            "tests.trainers.unchanged",
        ]
        command = [*launcher, name, str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        return json.loads(out.read_text())


def main() -> None:
    if len(sys.argv) > 1:
        name, out = sys.argv[1:]
        torch.distributed.init_process_group("gloo")
        found = run(name)
        if torch.distributed.get_rank() == 0:
            Path(out).write_text(json.dumps(found))
        torch.distributed.destroy_process_group()
        return
    every = {
        name: run_in_two(name) if name.endswith("_ddp") else run(name) for name in CONFIGURATIONS
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in every.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
