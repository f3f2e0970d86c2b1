"""The README's Python runs as it stands, on small data."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import Budget, Trainer

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
LONG = ("await ", "logic_trainer(")
"""Blocks that only a front end can run, or that train for minutes: their imports are tried."""


def surroundings() -> dict[str, Any]:
    """What a reader of a block has already: a model, data, loaders and an optimizer."""
    x, y = torch.randn(256, 1, 8, 8), torch.randint(0, 10, (256,))
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    names = dict.fromkeys(("train", "validation", "loader", "train_loader", "val_loader"), loader)
    return {
        **names,
        "data": data,
        "model": model,
        "budget": Budget(epochs=1),
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "Trainer": Trainer,
    }


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    source = BLOCKS[number]
    tree = compile(
        source, f"README block {number}", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    if any(mark in source for mark in LONG):
        tree.body = [line for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)]
    monkeypatch.chdir(tmp_path)
    names = surroundings()
    if number and "Gate" in "".join(BLOCKS[:number]):
        from astkit import Gate

        names["Gate"] = Gate
    exec(compile(tree, f"README block {number}", "exec"), names)
    if "HighLoss" in names:
        trainer = Trainer(
            names["model"], names["data"], policy=names["HighLoss"](), epochs=3, batch_size=64
        )
        trainer.run()
        assert trainer.ledger.samples.trained == 3 * 128
