"""The Python of README and docs runs as it stands, on small data; every link leads somewhere."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import Budget, Gate, Trainer

ROOT = Path(__file__).resolve().parents[1]
FILES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "data" / "README.md"]
PAGES = {path: path.read_text("utf-8") for path in FILES}


def blocks(text: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


BLOCKS = [
    (path.name, block)
    for path, text in PAGES.items()
    for block in blocks(text)
    if path.name != "README.md"
    if "astkit.integrations" not in block  # see tests/integrations
    if "cifar10" not in block  # needs a download
]
LONG = ("await ", "AutomatonTrainer(", "init_process_group(", "**task(")
"""Blocks that only a front end can run, or that train for minutes: their imports are tried."""


def surroundings() -> dict[str, Any]:
    """What a reader of a block has already: a model, data, loaders and an optimizer."""
    x, y = torch.randn(256, 1, 8, 8), torch.randint(0, 10, (256,))
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    names: dict[str, Any] = dict.fromkeys(
        ("train", "validation", "loader", "train_loader", "val_loader"), loader
    )
    return {
        **names,
        "data": data,
        "model": model,
        "trainer": Trainer(model, loader, policy=Gate(0.5), epochs=1),
        "budget": Budget(epochs=1),
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "make_model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        "Gate": Gate,
        "Trainer": Trainer,
    }


@pytest.mark.parametrize(("page", "source"), BLOCKS)
def test_a_block_runs(
    page: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for package in re.findall(r"^(?:from|import) (datasets|webdataset)\b", source, re.MULTILINE):
        pytest.importorskip(package, reason=f"{package} is not installed")
    tree = compile(source, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if any(mark in source for mark in LONG):
        tree.body = [line for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)]
    monkeypatch.chdir(tmp_path)
    names = surroundings()
    if "compare(" in source:
        names |= dict.fromkeys(("train", "validation", "test"), names["data"])
    exec(compile(tree, page, "exec"), names)
    if "report" in names:
        assert "auto" in capsys.readouterr().out
    if "HighLoss" in names:
        trainer = Trainer(
            names["model"], names["data"], policy=names["HighLoss"](), epochs=3, batch_size=64
        )
        trainer.run()
        assert trainer.ledger.samples.trained == 3 * 128


def test_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = "\n".join(blocks(PAGES[ROOT / "README.md"]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert re.match(r"forecast: \+\d", lines[0])
    assert re.match(r"aim: [+-]\d.*, 3 seeds, same FLOPs", lines[-1])


def test_readme_is_short_and_its_tables_fit_the_column() -> None:
    lines = PAGES[ROOT / "README.md"].splitlines()
    assert len(lines) <= 110
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    shown = [re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", cell).strip() for cell in cells]
    assert max(map(len, shown)) <= 60


def test_every_link_leads_somewhere() -> None:
    for path, text in PAGES.items():
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not link.startswith("http"):
                assert (path.parent / link).exists(), f"{path.name}: {link}"
