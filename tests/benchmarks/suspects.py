"""How many wrong labels are found, and by how much training: `python -m tests.benchmarks.suspects`.

Digits of which a share has another label, drawn at random, and images of CIFAR-10 with the labels
of careless people (CIFAR-10N, "worse"). The kit ranks the rows by their mean loss over one
training, or over as many as cleanlab takes, which ranks them by the probability of the label given,
as predicted by five networks of which none was trained on the row. The same network and number of
epochs for all. Needs cleanlab, from ``make peers``, and CIFAR-10N beside CIFAR-10. New results are
kept in out/, so that they do not change the checkout that they state; when all are there, writes
suspects.json and the picture of README.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from astkit import models, rng
from astkit.comparison.samples import Samples
from astkit.comparison.statistics import Interval, mean_interval, paired_difference
from astkit.comparison.training import RunRecord
from astkit.datasets import Images, Loader, split
from astkit.datasets.conditions import Condition, condition
from astkit.files import read_json, write_atomic, write_json
from astkit.stamp import stamp
from astkit.trainers import TrainConfig, Trainer
from tests.benchmarks import gain

RESULTS = Path(__file__).with_name("suspects.json")
ROOT = Path(__file__).parents[2]
PICTURE, CACHE = ROOT / "docs" / "static" / "suspects.png", ROOT / "out" / "suspects.json"
SEEDS, FOLDS, SHOWN = range(5), 5, 12
DRAWN, EPOCHS, LR = ("10 %", "30 %"), 15, 3e-3  # of digits
ROWS, EPOCHS_OF_PEOPLE = 10_000, 8
PEOPLE = "labels of people, CIFAR-10"
CLEANLAB = "cleanlab"
TRAININGS = {"astkit": 1, "astkit, four trainings": 4, CLEANLAB: FOLDS - 1}  # in whole ones


def made_of(labels: str, seed: int) -> Condition:
    """Data whose wrong labels are known: digits with a share of them, or those of people."""
    if labels != PEOPLE:
        parts, share = split("digits"), float(labels.removesuffix(" %")) / 100
        return condition("wrong_labels", parts.train, parts.test, seed, target=100, share=share)
    run = gain.Run("cifar10", "human_labels:kind=worse", EPOCHS_OF_PEOPLE, "dense", seed)
    whole = gain.made(run)
    assert whole.true_labels is not None
    rows = rng.permutation(len(whole.train), seed, "suspects")[:ROWS]
    return replace(whole, train=whole.train.subset(rows), true_labels=whole.true_labels[rows])


def trainer_of(data: Images, seed: int, *observers: RunRecord) -> Trainer:
    """Dense training, on images of people's labels as in `gain`."""
    options: dict[str, Any] = {"observers": observers, "device": "cpu"}
    stats = data.channel_stats()
    if data.name == "digits":
        model = models.build("digits_cnn", data.shape, data.num_classes, seed=seed)
        loader, config = Loader(data, 64, normalize=stats, seed=seed), TrainConfig(lr=LR)
        return Trainer(model, loader, epochs=EPOCHS, config=config, **options)
    with rng.isolated("cpu", seed, "model"):
        model = gain.network(gain.WIDTHS["cifar10"], data.shape[0], data.num_classes)
    augment = gain.AUGMENT["cifar10"]
    loader = Loader(data, 64, normalize=stats, augment=augment, seed=seed)
    config = TrainConfig(lr=gain.SETTINGS["cifar10"], precision="bf16", channels_last=True)
    return Trainer(model, loader, epochs=EPOCHS_OF_PEOPLE, config=config, **options)


def by_loss(data: Images, seed: int) -> Samples:
    """What the kit records in one training."""
    record = RunRecord(len(data), lambda: trainer.progress, torch.device("cpu"))
    trainer = trainer_of(data, seed, record)
    trainer.run()
    return Samples(record.trained, record.losses, data, predicted=record.predicted, name="dense")


def by_cleanlab(data: Images, seed: int) -> Tensor:
    """Suspicion of each row, float64 ``[N]``: 1 - cleanlab's quality of its label."""
    from cleanlab.rank import get_label_quality_scores

    probabilities = torch.zeros(len(data), data.num_classes)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for train, held_out in folds.split(np.zeros(len(data)), data.labels):
        trainer = trainer_of(data.subset(torch.from_numpy(train)), seed)
        trainer.run()
        rows = data.subset(torch.from_numpy(held_out))
        batches = Loader(rows, 500, shuffle=False, normalize=data.channel_stats()).batches(0)
        trainer.model.eval()
        with torch.no_grad():
            outputs = torch.cat([trainer.model(batch.x) for batch in batches])
        probabilities[torch.from_numpy(held_out)] = outputs.softmax(1)
    quality = get_label_quality_scores(data.labels.numpy(), probabilities.numpy())
    return torch.from_numpy(1 - quality)


def result(labels: str, seed: int, method: str) -> dict[str, Any]:
    """Average precision of a method, and wrong labels among as many suspects."""
    made = made_of(labels, seed)
    if method == CLEANLAB:
        suspicion = by_cleanlab(made.train, seed)
    else:
        seeds = range(seed, seed + 100 * TRAININGS[method], 100)
        suspicion = sum((by_loss(made.train, each).loss for each in seeds), torch.zeros(()))
    top = suspicion.argsort(descending=True)[: int(made.wrong.sum())]
    return {
        "labels": labels,
        "seed": seed,
        "method": method,
        "average_precision": float(average_precision_score(made.wrong, suspicion)),
        "found": int(made.wrong[top].sum()),
        "wrong": int(made.wrong.sum()),
        "rows": len(made.wrong),
        "commit": stamp()["commit"],
    }


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Means with 95 % intervals over seeds, as text, and the difference to cleanlab, paired."""
    shown = {}
    for labels in dict.fromkeys(row["labels"] for row in rows):
        values = {
            method: {
                row["seed"]: row["average_precision"]
                for row in rows
                if (row["labels"], row["method"]) == (labels, method)
            }
            for method in TRAININGS
        }
        for method, arm in values.items():
            some = [row for row in rows if (row["labels"], row["method"]) == (labels, method)]
            found, wrong = (sum(row[key] for row in some) for key in ("found", "wrong"))
            gap = paired_difference(arm, values[CLEANLAB])
            shown[f"{labels}, {method}"] = {
                "n": str(len(some)),
                "average precision": _amount(mean_interval(arm.values()), ".3f"),
                "wrong labels found": f"{found:,} of {wrong:,}",
                "trainings": str(TRAININGS[method]),
                "minus cleanlab": "" if method == CLEANLAB else _amount(gap, "+.3f"),
            }
    return pd.DataFrame(shown).T.rename_axis("wrong labels")


def draw(seed: int = 0) -> None:
    """The most suspected digits, for README."""
    samples = by_loss(made_of(DRAWN[-1], seed).train, seed)
    line = {"most suspected": samples.suspects(SHOWN).rows}
    picture = samples.images(line, _words(samples), "label given → class predicted")
    write_atomic(PICTURE, picture.png())


def main() -> None:
    torch.set_num_threads(1)
    rows: dict[str, Any] = read_json(CACHE)
    for labels in (*DRAWN, PEOPLE):
        for seed in SEEDS:
            for method in TRAININGS:
                name = f"{labels} | {seed} | {method}"
                if name not in rows:
                    rows[name] = result(labels, seed, method)
                    write_json(CACHE, rows)
                    print(json.dumps(rows[name]), flush=True)
    content = {"stamp": stamp(), "cleanlab": version("cleanlab"), "rows": list(rows.values())}
    draw()
    write_json(RESULTS, content)
    print(table(content["rows"]).to_string())


def _amount(found: Interval, digits: str) -> str:
    return f"{found.mean:{digits}} [{found.low:{digits}}, {found.high:{digits}}]"


def sentence(rows: list[dict[str, Any]]) -> str:
    """What the kit finds at the largest share, and of labels of people, over all seeds."""
    found, wrong = {}, {}
    for row in rows:
        key = (row["labels"], row["method"])
        found[key] = found.get(key, 0) + row["found"]
        wrong[key] = wrong.get(key, 0) + row["wrong"]
    drawn, people, others = (DRAWN[-1], "astkit"), (PEOPLE, "astkit"), (PEOPLE, CLEANLAB)
    return (
        f"`report.suspects(k)`, with k the number of wrong labels, finds {found[drawn]:,} of"
        f" {wrong[drawn]:,} in digits with\n{DRAWN[-1]} random labels, and {found[people]:,} of"
        f" {wrong[people]:,} that careless people gave to CIFAR-10; there cleanlab finds\n"
        f"{found[others]:,}, with {TRAININGS[CLEANLAB]} times the training ({len(SEEDS)} seeds). No"
        " method here is known to gain accuracy on the latter."
    )


def _words(samples: Samples) -> Any:
    predicted = samples.predicted
    assert predicted is not None
    return lambda row: f" → {samples.class_name(int(predicted[row]))}"


if __name__ == "__main__":
    main()
