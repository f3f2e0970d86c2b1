"""Tasks of benches: their data, their models, and plain torch loops that reach their figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import astkit
from astkit import Trainer, rng
from astkit.datasets import as_loader
from astkit.datasets.batch import call
from astkit.datasets.facts import class_labels
from benchmarks import builders
from benchmarks.tasks import RESULTS

CLASSES = {"series": 4, "sound": 6, "text": 3}
NAMES = ("series", "sound", "text", "language")
TASKS = {name: builders.task(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_task_trains_its_model_on_disjoint_parts(name: str) -> None:
    made = TASKS[name]
    tensors = [made[part].tensors[0].flatten(1) for part in ("train", "validation", "test")]
    rows = torch.cat(tensors).numpy()
    assert len(np.unique(rows, axis=0)) >= 0.99 * len(rows)  # short paragraphs may be equal
    labels = class_labels(made["train"])
    assert (None if labels is None else len(labels.unique())) == CLASSES.get(name)
    assert sum(p.numel() for p in made["make_model"]().parameters()) < 600_000
    settings = {key: made[key] for key in ("config", "criterion", "metrics") if key in made}
    work = Trainer(
        made["make_model"](),
        made["train"],
        budget=astkit.Budget(steps=2),
        batch_size=made["batch_size"],
        device="cpu",
        **settings,
    )
    work.run()
    assert work.ledger.uncounted == set()
    assert work.ledger.flops.total > 0
    batch = next(as_loader(made["test"], shuffle=False).batches(0)).take(slice(0, 16))
    with torch.no_grad():
        outputs = call(work.model, batch.x, batch.y)
    assert outputs.isfinite().all()


def test_the_language_model_is_causal_and_its_labels_are_the_next_characters() -> None:
    made = TASKS["language"]
    tokens, labels = made["train"].tensors
    assert tokens.shape[1] == builders.LENGTH
    assert tokens[:, 1:].equal(labels[:, :-1])
    model = made["make_model"]().eval()
    other = tokens[:4].clone()
    other[:, 40:] = 1
    with torch.no_grad():
        before, after = model(tokens[:4]), model(other)
    assert before[:, :40].allclose(after[:, :40], atol=1e-5)
    assert not before[:, 40:].allclose(after[:, 40:], atol=1e-5)


def test_padding_does_not_change_the_class_of_a_text() -> None:
    made = TASKS["text"]
    model = made["make_model"]().eval()
    row = next(row for row in made["train"] if 5 < row["mask"].sum() < builders.WORDS - 5)
    tokens, mask = row["tokens"][None], row["mask"][None]
    assert row["mask"].equal(row["tokens"] > 0)
    filled = torch.where(mask, tokens, 7)
    with torch.no_grad():
        assert model(tokens, mask).allclose(model(filled, mask), atol=1e-6)
        assert not model(tokens, mask).allclose(model(filled, filled > 0), atol=1e-6)


def test_series_have_the_period_of_their_class() -> None:
    x, y = (torch.cat([TASKS["series"][p].tensors[i] for p in ("train", "test")]) for i in (0, 1))
    power = torch.fft.rfft(x.squeeze(1)).abs().square()
    for label, period in enumerate(builders.PERIODS):
        peak = power[y == label].mean(0).argmax().item()
        assert peak == pytest.approx(builders.STEPS / period, abs=2)


def test_sounds_are_what_their_names_say() -> None:
    waves, kind = builders.sounds()
    power = builders.spectrograms(waves[:600]).exp().squeeze(1)
    kinds = {name: power[kind[:600] == place] for place, name in enumerate(builders.KINDS)}
    bins = torch.arange(power.shape[1], dtype=torch.float32)[:, None]

    def centre(found: Tensor, part: slice) -> Tensor:
        band = found[:, :, part].mean(2, keepdim=True).square()
        return (band * bins).sum((1, 2)) / band.sum((1, 2))

    for name, sign in (("rising", 1), ("falling", -1), ("tone", 0)):
        moved = centre(kinds[name], slice(-8, None)) - centre(kinds[name], slice(0, 8))
        assert moved.mean().sign().item() == sign or (sign == 0 and abs(moved.mean()) < 1), name
    peak = {name: (found.amax(1) / found.mean(1)).mean().item() for name, found in kinds.items()}
    assert peak["tone"] > peak["noise band"]


def test_equal_words_have_equal_numbers() -> None:
    words = builders.hash_words(["a b a", "B"])
    assert words.shape == (2, builders.WORDS)
    assert words[0, 0] == words[0, 2] != words[0, 1] == words[1, 0]
    assert (words > 0).sum(1).tolist() == [3, 1]


def plain(name: str, seed: int) -> float:
    """The metric on the test data after training in a loop of torch alone."""
    made = TASKS[name]
    with rng.isolated("cpu", seed):
        model, config, size = made["make_model"](), made["config"], made["batch_size"]
        loader = DataLoader(made["train"], size, shuffle=True)
        epochs = int(made["budget"].epochs)
        steps = epochs * len(loader)
        optimizer = torch.optim.AdamW(model.parameters(), config.lr, weight_decay=0.01)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for batch in (batch for _ in range(epochs) for batch in loader):
            outputs, y = outputs_of(model, batch)
            loss = F.cross_entropy(outputs.flatten(0, -2), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            decay.step()
    model.eval()
    with torch.no_grad():
        found = [outputs_of(model, batch) for batch in DataLoader(made["test"], 200)]
    outputs, y = (torch.cat(parts) for parts in zip(*found, strict=True))
    if name == "language":
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten()).item()
    return (outputs.argmax(1) == y).double().mean().item()


def outputs_of(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, Mapping):
        return model(batch[0]), batch[1]
    return model(**{k: v for k, v in batch.items() if k != "labels"}), batch["labels"]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loop_reaches_the_figure_of_dense_training(name: str) -> None:
    entries = json.loads(RESULTS.read_text())[name]["entries"]
    dense = [entry["value"] for entry in entries if entry["policy"] == "dense"]
    found = [plain(name, seed) for seed in range(3)]
    spread = math.hypot(stdev(dense), stdev(found))
    assert abs(mean(found) - mean(dense)) < 3 * spread * math.sqrt(1 / len(dense) + 1 / len(found))
