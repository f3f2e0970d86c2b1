"""How many wrong labels are found, and by how much training: `python -m benchmarks.suspects`.

Digits of which a share has another label, drawn at random, and images of CIFAR-10 with the labels
of careless people (CIFAR-10N, "worse"). The kit ranks the rows by their mean loss over one
training, or over as many as cleanlab takes, which ranks them by the probability of the label given,
as predicted by five networks of which none was trained on the row. The same network and number of
epochs for all. Needs cleanlab, from ``make peers``, and CIFAR-10N beside CIFAR-10; ``--only`` some
labels and ``--methods`` others than all. Other ranks of the same training (`RANKS`) were compared
on digits with seeds 5 to 9, where the penalty of `astkit.comparison.suspects` was chosen of 0.001,
0.01, 0.1, 1, 3 and 10, and the margin to another class in place of the value for the label. That of
the head (`by_head`) was chosen with labels of people and seeds 5 and 6, of 0.001, 0.01, 0.1 and 1.
suspects.json is written with what it has and the new results, and so is the picture of README.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from astkit import models, rng
from astkit.comparison.samples import Samples
from astkit.comparison.statistics import Interval, mean_interval, paired_difference
from astkit.comparison.suspects import excess_loss, label_doubt
from astkit.comparison.training import RunRecord
from astkit.datasets import Images, Loader, split
from astkit.datasets.conditions import Condition, condition
from astkit.files import read_json, write_atomic, write_json
from astkit.stamp import stamp
from astkit.trainers import TrainConfig, Trainer
from benchmarks import bench, gain

RESULTS = bench.HERE / "suspects.json"
PICTURE = bench.ROOT / "docs" / "static" / "suspects.png"
SEEDS, FOLDS, SHOWN = range(5), 5, 12
DRAWN, EPOCHS, LR = ("10 %", "30 %"), 15, 3e-3  # of digits
EPOCHS_OF_PEOPLE, PEOPLE = 8, "labels of people, CIFAR-10"
MORE = "the same, 30,000 images"
ROWS = {PEOPLE: 10_000, MORE: 30_000}
CLEANLAB = "cleanlab"
QUARTER, PART, FEATURES = RANKS = (
    "astkit, last quarter",
    "astkit, last part",
    "astkit, features",
)
CHECKED, HEAD, STRENGTH = 1_000, "astkit, 1,000 labels checked", 0.01
TRAININGS = {
    "astkit": 1,
    **dict.fromkeys((*RANKS, HEAD), 1),
    "astkit, four trainings": 4,
    CLEANLAB: FOLDS - 1,  # in whole ones
}


def made_of(labels: str, seed: int) -> Condition:
    """Data whose wrong labels are known: digits with a share of them, or those of people."""
    if labels in DRAWN:
        parts, share = split("digits"), float(labels.removesuffix(" %")) / 100
        return condition("wrong_labels", parts.train, parts.test, seed, target=100, share=share)
    run = gain.Run("cifar10", "human_labels:kind=worse", EPOCHS_OF_PEOPLE, "dense", seed)
    whole = gain.made(run)
    assert whole.true_labels is not None
    rows = rng.permutation(len(whole.train), seed, "suspects")[: ROWS[labels]]
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
    return trained(data, seed)[0]


def trained(data: Images, seed: int) -> tuple[Samples, Trainer]:
    record = RunRecord(len(data), torch.device("cpu"))
    trainer = trainer_of(data, seed, record)
    for _ in trainer.steps():
        record.progress = trainer.progress
    options: dict[str, Any] = {"predicted": record.predicted, "name": "dense"}
    return Samples(record.trained, record.losses, data, **options), trainer


@lru_cache(maxsize=1)
def ranks(labels: str, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Suspicion of each row by one training, by rule, and the inputs of its last layer."""
    data = made_of(labels, seed).train
    samples, trainer = trained(data, seed)
    features = last_features(trainer.model, data)
    parts = {QUARTER: len(samples.losses) // 4, PART: 1}
    by_part = {
        name: excess_loss(samples.losses[-count:]).nan_to_num(-torch.inf)
        for name, count in parts.items()
    }
    return {
        "astkit": samples.loss,
        **by_part,
        FEATURES: label_doubt(features, data.labels),
    }, features


def by_head(
    found: dict[str, Tensor], features: Tensor, wrong: Tensor, rows: Tensor, strength: float
) -> Tensor:
    """Suspicion by logistic regression on features and ranks, fitted to ``rows`` that are known."""
    x = torch.cat([features.double(), torch.stack(list(found.values()), 1).double()], 1)
    x = ((x - x.mean(0)) / x.std(0).clamp_min(1e-12)).numpy()
    model = LogisticRegression(C=strength, max_iter=1000).fit(x[rows], wrong[rows])
    return torch.from_numpy(model.decision_function(x))


def last_features(model: nn.Module, data: Images) -> Tensor:
    """Inputs of the last linear layer, ``[N, d]``."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    seen: list[Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0].float()))
    _outputs(model, data, data)
    hook.remove()
    return torch.cat(seen)


def _outputs(model: nn.Module, rows: Images, normalised_as: Images) -> Tensor:
    batches = Loader(rows, 500, shuffle=False, normalize=normalised_as.channel_stats()).batches(0)
    model.eval()
    with torch.no_grad():
        return torch.cat([model(batch.x) for batch in batches])


def by_cleanlab(data: Images, seed: int) -> Tensor:
    """Suspicion of each row, float64 ``[N]``: 1 - cleanlab's quality of its label."""
    from cleanlab.rank import get_label_quality_scores

    probabilities = torch.zeros(len(data), data.num_classes)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for train, held_out in folds.split(np.zeros(len(data)), data.labels):
        trainer = trainer_of(data.subset(torch.from_numpy(train)), seed)
        trainer.run()
        rows = data.subset(torch.from_numpy(held_out))
        outputs = _outputs(trainer.model, rows, data)
        probabilities[torch.from_numpy(held_out)] = outputs.softmax(1)
    quality = get_label_quality_scores(data.labels.numpy(), probabilities.numpy())
    return torch.from_numpy(1 - quality)


def result(labels: str, seed: int, method: str) -> dict[str, Any]:
    """Average precision of a method, and wrong labels among as many suspects.

    With checked labels those of the other rows, beside the same of the other ranks.
    """
    made, others = made_of(labels, seed), {}
    wrong = made.wrong
    if method == CLEANLAB:
        suspicion = by_cleanlab(made.train, seed)
    elif method == "astkit, four trainings":
        seeds = range(seed, seed + 100 * TRAININGS[method], 100)
        suspicion = sum((by_loss(made.train, each).loss for each in seeds), torch.zeros(()))
    elif method == HEAD:
        found, features = ranks(labels, seed)
        checked, rest = rng.permutation(len(wrong), seed, "checked").split(
            [CHECKED, len(wrong) - CHECKED]
        )
        suspicion = by_head(found, features, wrong, checked, STRENGTH)[rest]
        wrong = wrong[rest]
        others = {name: _precision(wrong, each[rest]) for name, each in found.items()}
    else:
        suspicion = ranks(labels, seed)[0][method]
    top = suspicion.argsort(descending=True)[: int(wrong.sum())]
    return {
        "labels": labels,
        "seed": seed,
        "method": method,
        "average_precision": _precision(wrong, suspicion),
        "found": int(wrong[top].sum()),
        "wrong": int(wrong.sum()),
        "rows": len(wrong),
        "commit": stamp()["commit"],
        **({"others": others} if others else {}),
    }


def _precision(wrong: Tensor, suspicion: Tensor) -> float:
    return float(average_precision_score(wrong, suspicion))


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
            if not some:
                continue
            found, wrong = (sum(row[key] for row in some) for key in ("found", "wrong"))
            same = {row["seed"]: row["others"]["astkit"] for row in some if "others" in row}
            gap = paired_difference(arm, values[CLEANLAB])
            shown[f"{labels}, {method}"] = {
                "n": str(len(some)),
                "average precision": _amount(mean_interval(arm.values()), ".3f"),
                "wrong labels found": f"{found:,} of {wrong:,}",
                "trainings": str(TRAININGS[method]),
                "minus cleanlab": ""
                if method in (CLEANLAB, HEAD) or gap.n == 0
                else _amount(gap, "+.3f"),
                "minus astkit": _amount(paired_difference(arm, same or values["astkit"]), "+.4f")
                if method in (*RANKS, HEAD)
                else "",
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
    every, methods = [*DRAWN, *ROWS], list(TRAININGS)
    asked = bench.options(__doc__, RESULTS, only=every, methods=methods)
    report = read_json(asked.out)
    rows = {(row["labels"], row["seed"], row["method"]): row for row in report.get("rows", [])}
    environment = stamp()
    for key in product(asked.only, SEEDS, asked.methods):
        if key not in rows and not (key[0] in DRAWN and key[2] == HEAD):  # too few rows
            rows[key] = result(*key)
            print(json.dumps(rows[key]), flush=True)
            if CLEANLAB in asked.methods:
                report["cleanlab"] = version("cleanlab")
            write_json(asked.out, {**report, "stamp": environment, "rows": list(rows.values())})
    draw()
    print(table(list(rows.values())).to_string())


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
    quarter, features = (PEOPLE, QUARTER), (PEOPLE, FEATURES)
    checked = [row for row in rows if (row["labels"], row["method"]) == (PEOPLE, HEAD)]
    more = mean_interval(row["average_precision"] - row["others"][QUARTER] for row in checked)
    return (
        f"`report.suspects(k)`, with k the number of wrong labels, finds {found[drawn]:,} of"
        f" {wrong[drawn]:,} in digits with\n{DRAWN[-1]} random labels, and {found[people]:,} of"
        f" {wrong[people]:,} that careless people gave to CIFAR-10; there cleanlab finds\n"
        f"{found[others]:,}, with {TRAININGS[CLEANLAB]} times the training ({len(SEEDS)} seeds)."
        f" By the last quarter of the losses `astkit.suspects`\nfinds {found[quarter]:,}, by"
        f" features at the end {found[features]:,}; {CHECKED:,} checked labels add"
        f" {_amount(more, '.3f')} to the average\nprecision of the former. No method here is"
        " known to gain accuracy on these labels."
    )


def _words(samples: Samples) -> Any:
    predicted = samples.predicted
    assert predicted is not None
    return lambda row: f" → {samples.class_name(int(predicted[row]))}"


if __name__ == "__main__":
    main()
