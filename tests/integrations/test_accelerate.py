"""A loop with Accelerate trains with a policy as the kit's own loop does, and resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from astkit import Gate, Policy, indexed
from tests.integrations.loops import (
    BATCH,
    LR,
    PAIRS,
    POLICIES,
    assert_same,
    make_model,
    own_loop,
    rows_of,
)

pytestmark = pytest.mark.full
EPOCHS = 4


class Run:
    """Accelerate's usual loop, which saves its state after ``save_at`` steps."""

    def __init__(self, policy: Policy, prepared: bool = True) -> None:
        accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
        from astkit.integrations.accelerate import register

        self.accelerator, self.policy = accelerate.Accelerator(cpu=True), policy
        model, plan = make_model(), not isinstance(policy, Gate)
        optimizer = torch.optim.SGD(model.parameters(), LR)
        data = indexed(PAIRS) if plan else PAIRS
        sampler = policy.sampler(PAIRS, epochs=EPOCHS) if plan else None
        loader = DataLoader(data, BATCH, sampler=sampler)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.loader = self.accelerator.prepare(loader) if prepared else loader
        register(self.accelerator, policy, self.loader)
        self.rows: list[list[int]] = []

    def train(self, epochs: int, save_at: int = -1, folder: Any = None) -> Any:
        ends: list[int] = []
        for _ in range(epochs):
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.accelerator.backward(self.loss(batch))
                self.optimizer.step()
                if len(self.rows) == save_at:
                    self.accelerator.save_state(folder)
            ends.append(len(self.rows))
        self.left = epochs - sum(end <= save_at for end in ends)
        return self.model

    def loss(self, batch: Any) -> Any:
        if isinstance(self.policy, Gate):
            x, y = batch
            chosen = self.policy(self.model, x, y)
            return chosen.mean(rows_of(self.model(x[chosen.index]), y[chosen.index]))
        index, (x, y) = batch
        self.rows.append(index.tolist())
        return self.policy.mean(rows_of(self.model(x), y), index)


def test_a_gate() -> None:
    model = Run(Gate(0.5)).train(EPOCHS)
    assert_same(model, own_loop(Gate(0.5), DataLoader(PAIRS, BATCH), epochs=EPOCHS))


@pytest.mark.parametrize("step", [1, 12, 13, 20])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("prepared", [True, False])
def test_a_resumed_run_equals_the_uninterrupted_one(
    name: str, step: int, prepared: bool, tmp_path: Path
) -> None:
    whole, later = (Run(POLICIES[name](), prepared) for _ in range(2))
    expected = whole.train(EPOCHS, step, tmp_path)
    later.accelerator.load_state(tmp_path)
    assert_same(later.train(whole.left), expected, atol=0)
    assert later.rows == whole.rows[step:]
