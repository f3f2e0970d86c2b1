"""How many wrong labels are found, and by how much training: `python -m tests.benchmarks.suspects`.

Digits of which a share has another label, drawn at random, and images of CIFAR-10 with the labels
of careless people (CIFAR-10N, "worse"). The kit ranks the rows by their mean loss over one
training; cleanlab by the probability of the label given, as predicted by five networks of which
none was trained on the row. The same network and number of epochs for both. Needs cleanlab, from
``make peers``, and CIFAR-10N beside CIFAR-10. Writes suspects.json and the picture of README.
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
from astkit.comparison.training import Record
from astkit.datasets import Images, Loader, split
from astkit.datasets.conditions import Condition, condition
from astkit.files import write_atomic, write_json
from astkit.stamp import stamp
from astkit.trainers import TrainConfig, Trainer
from tests.benchmarks import gain

RESULTS = Path(__file__).with_name("suspects.json")
PICTURE = Path(__file__).parents[2] / "docs" / "static" / "suspects.png"
SEEDS, FOLDS, SHOWN = range(5), 5, 12
DRAWN, EPOCHS, LR = ("10 %", "30 %"), 15, 3e-3  # of digits
ROWS, EPOCHS_OF_PEOPLE = 10_000, 8
PEOPLE = "labels of people, CIFAR-10"


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


def trainer_of(data: Images, seed: int, *observers: Record) -> Trainer:
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
    record = Record(len(data), lambda: trainer.progress, torch.device("cpu"))
    trainer = trainer_of(data, seed, record)
    trainer.optimisation.watching = True
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


def rows_of(made: Condition, labels: str, seed: int, suspicion: dict[str, Tensor]) -> list[Any]:
    """A result for each method: average precision, and wrong labels among as many suspects."""
    wrong, results = made.wrong, []
    for method, values in suspicion.items():
        top = values.argsort(descending=True)[: int(wrong.sum())]
        results.append(
            {
                "labels": labels,
                "seed": seed,
                "method": method,
                "average_precision": float(average_precision_score(wrong, values)),
                "found": int(wrong[top].sum()),
                "wrong": int(wrong.sum()),
                "rows": len(wrong),
                "trainings": 1.0 if method == "astkit" else FOLDS - 1.0,
            }
        )
    return results


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
            for method in ("astkit", "cleanlab")
        }
        gap = paired_difference(values["astkit"], values["cleanlab"])
        for method, arm in values.items():
            some = [row for row in rows if (row["labels"], row["method"]) == (labels, method)]
            found, wrong = (sum(row[key] for row in some) for key in ("found", "wrong"))
            shown[f"{labels}, {method}"] = {
                "n": str(len(some)),
                "average precision": _amount(mean_interval(arm.values()), ".3f"),
                "wrong labels found": f"{found:,} of {wrong:,}",
                "trainings": f"{some[0]['trainings']:g}",
                "astkit minus cleanlab": _amount(gap, "+.3f") if method == "astkit" else "",
            }
    return pd.DataFrame(shown).T.rename_axis("wrong labels")


def main() -> None:
    torch.set_num_threads(1)
    rows, environment = list[Any](), stamp()
    for labels in (*DRAWN, PEOPLE):
        for seed in SEEDS:
            made = made_of(labels, seed)
            samples = by_loss(made.train, seed)
            found = {"astkit": samples.loss, "cleanlab": by_cleanlab(made.train, seed)}
            rows += rows_of(made, labels, seed, found)
            print(json.dumps(rows[-2:]), flush=True)
            if (labels, seed) == (DRAWN[-1], 0):
                line = {"most suspected": samples.suspects(SHOWN).rows}
                picture = samples.images(line, _words(samples), "label given → class predicted")
                write_atomic(PICTURE, picture.png())
    write_json(RESULTS, {"stamp": environment, "cleanlab": version("cleanlab"), "rows": rows})
    print(table(rows).to_string())


def _amount(found: Interval, digits: str) -> str:
    return f"{found.mean:{digits}} [{found.low:{digits}}, {found.high:{digits}}]"


def sentence(rows: list[dict[str, Any]]) -> str:
    """What the kit finds at the largest share, and of labels of people, over all seeds."""
    counts = {}
    for labels in (DRAWN[-1], PEOPLE):
        some = [row for row in rows if (row["labels"], row["method"]) == (labels, "astkit")]
        found, wrong = (sum(row[key] for row in some) for key in ("found", "wrong"))
        counts[labels] = f"{found:,} of {wrong:,}"
    drawn, people = counts.values()
    return (
        f"`report.suspects(k)`, with k the number of wrong labels, {len(SEEDS)} seeds: on digits"
        f" with {DRAWN[-1]}\nrandom labels it finds {drawn}; on CIFAR-10 with labels of careless"
        f" people\n{people}. No method here is known to gain accuracy on the latter."
    )


def _words(samples: Samples) -> Any:
    predicted = samples.predicted
    assert predicted is not None
    return lambda row: f" → {samples.class_name(int(predicted[row]))}"


if __name__ == "__main__":
    main()
