"""Three scripts of at most 20 lines, as somebody would write them: images, a table, texts."""

from __future__ import annotations

import random
import runpy

import pytest
from PIL import Image

IMAGES = """
import astkit
from astkit.datasets import split
from astkit.models import SimpleCNN

parts = split("folders", "pictures", size=8)
report = astkit.compare(
    lambda: SimpleCNN(parts.train.shape, parts.train.num_classes),
    parts.train, parts.validation, parts.test,
    policies=["infobatch", astkit.Gate(0.25)],
    budget=astkit.Budget(epochs=2), seeds=range(2), batch_size=16, check_baseline=False,
)
print(report.verdict)
"""

TABLE = """
import astkit, pandas, torch
from torch import nn
from torch.utils.data import TensorDataset

table = torch.tensor(pandas.read_csv("houses.csv").to_numpy("float32"))
parts = [TensorDataset(rows[:, :-1], rows[:, -1]) for rows in table.split([80, 20, 20])]

def squared_error(outputs, targets):
    return (outputs.squeeze(1) - targets) ** 2

report = astkit.compare(
    lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), *parts,
    criterion=squared_error, policies=["infobatch", astkit.Gate(0.25)],
    budget=astkit.Budget(epochs=2), seeds=range(2), batch_size=16, check_baseline=False,
)
print(report.verdict)
"""

TEXTS = """
import astkit, json, torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

def pad(rows):
    tokens = pad_sequence([torch.tensor(tokens) for tokens, _ in rows], batch_first=True)
    return {"tokens": tokens, "labels": torch.tensor([label for _, label in rows])}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 2)
    def forward(self, tokens):
        return self.last(self.words(tokens).mean(1))
rows = json.load(open("texts.json"))
parts = [DataLoader(part, 16, collate_fn=pad) for part in (rows[:80], rows[80:100], rows[100:])]
options = {"seeds": range(2), "budget": astkit.Budget(epochs=2), "check_baseline": False}
report = astkit.compare(Model, *parts, policies=["infobatch", astkit.Gate(0.25)], **options)
print(report.verdict)
"""


@pytest.fixture
def material(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = random.Random(0)
    for label, level in (("cat", 60), ("dog", 180)):
        folder = tmp_path / "pictures" / label
        folder.mkdir(parents=True)
        for i in range(40):
            size = (6 + i % 5, 7 + i % 3)
            Image.new("RGB", size, (level, numbers.randrange(256), 0)).save(folder / f"{i}.png")
    rows = [[numbers.random() for _ in range(3)] for _ in range(120)]
    lines = ["a,b,c,price", *(",".join(map(str, [*row, sum(row)])) for row in rows)]
    (tmp_path / "houses.csv").write_text("\n".join(lines))
    texts = [
        [[1 + numbers.randrange(29) for _ in range(1 + i % 7)] + [1 + i % 2], i % 2]
        for i in range(120)
    ]
    (tmp_path / "texts.json").write_text(str(texts))
    return tmp_path


def test_a_script_of_20_lines_prints_a_verdict(material, capsys):
    for name, script in (("images", IMAGES), ("table", TABLE), ("texts", TEXTS)):
        assert len(script.strip().splitlines()) <= 20
        (material / f"{name}.py").write_text(script)
        found = runpy.run_path(str(material / f"{name}.py"))
        printed = capsys.readouterr().out.splitlines()[-2:]
        for line, policy in zip(printed, ("infobatch", "gate(0.25)"), strict=True):
            assert line.startswith(f"{policy}: ")
            assert "2 seeds" in line
        assert found["report"].metric == ("loss" if name == "table" else "accuracy")
