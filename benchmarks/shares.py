"""What choosing gains, as a share of what is possible: ``python -m benchmarks.shares``.

Collects the runs of `benchmarks.gain` and writes notebooks/results/06_shares.json, the table
that README's picture, docs/policies.md and notebook 06 show.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from scipy.optimize import brentq
from torch import Tensor

from astkit.comparison.statistics import DENSE, ERROR, Gaps, Interval, by_arm, gaps, mean_interval
from astkit.comparison.training import RECORDS
from astkit.files import read_json, write_atomic, write_json
from benchmarks import marks, natural_training
from benchmarks.gain import (
    ABSTENTIONS,
    CACHE,
    FORECASTS,
    RESNET,
    RESULTS,
    ROWS,
    SEEDS,
    Run,
    alike,
    dumped,
    plan,
    read,
    short,
)

SHARES = RESULTS.with_name("06_shares.json")
DATA = {
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    RESNET: "CIFAR-10, ResNet-9",
}
WORDS = {
    "irrelevant_text:share=0.2": "four of five texts are irrelevant",
    "irrelevant_text:share=0.05": "19 of 20 texts are irrelevant",
    "irrelevant_text:share=0.5": "half of the texts are irrelevant",
    "irrelevant_text:share=1.0": "all texts are relevant",
    "drift:kind=law,data=table": "table: older rows follow another law",
    "drift:kind=law,data=series": "series: the older part follows another law",
    "drift:kind=columns,data=table": "table: older rows have two columns swapped",
    "drift:kind=columns,data=series": "series: older rows have two columns swapped",
    "drift:kind=inputs,data=table": "table: older rows differ in inputs only",
    "drift:kind=inputs,data=series": "series: the older part differs in inputs only",
    "other_domain": "half of the images are of another domain",
    "open_set": "half of the images belong to no class",
    "web": "images as from the web",
    "long_tail": "long tail, balanced target",
    "wrong_labels": "40 % wrong labels",
    "wrong_labels:target=0": "40 % wrong labels, in the validation rows too",
    "human_labels": "labels of careless people",
    "human_labels:kind=random1": "labels of people, one person a row",
    "clean": "clean",
    "duplicates": "each row several times",
    "small": "small",
}
KINDS = {
    "irrelevant_text:share=1.0": "clean data",
    "irrelevant_text": "irrelevant texts",
    "drift:kind=inputs": "clean data",
    "drift": "drifted tables",
    "other_domain": "other domains",
    "open_set": "images of no class",
    "web": "web images",
    "long_tail": "long tails",
    "wrong_labels": "wrong labels",
    "human_labels": "wrong labels",
}
"""Kinds of data, by how a condition begins; others are clean data."""
AIM_ON_TARGET = "aim+target"
"""In a table of its own: what it may train on, no other policy may."""
WHOLE = 0.8  # epochs over texts


def described(data: str, condition: str, epochs: float) -> str:
    """A condition in words."""
    words = WORDS.get(condition) or WORDS[condition.partition(":")[0]]
    if data not in DATA:
        return words
    return f"{words} ({DATA[data]}, {epochs:g} epochs)"


def kind(condition: str) -> str:
    """The kind of data of a condition."""
    found = (words for begin, words in KINDS.items() if condition.startswith(begin))
    return next(found, "clean data")


def place(key: tuple[str, str, float]) -> tuple[int, int, float]:
    """Where a condition stands in tables: as in `WORDS`, Fashion-MNIST first."""
    data, condition, epochs = key
    word = condition if condition in WORDS else condition.partition(":")[0]
    return list(WORDS).index(word), [*DATA, data].index(data), -epochs


def complete(entries: dict[str, Any]) -> list[Run]:
    """The planned runs of methods that were trained with all of their seeds."""
    missing = {replace(spec, seed=0) for spec in plan() if spec.name not in entries}
    return [spec for spec in plan() if replace(spec, seed=0) not in missing]


def shares() -> list[dict[str, Any]]:
    """A row for each condition and method: its gain, its share of the oracle's, rows trained on.

    A gain is positive if the method is better: in points of accuracy, else in percent of the value
    of dense training. The share is missing where the oracle's own gain does not exclude 0. Rows
    that are trained on are a share of those of dense training, the rest of the FLOPs chooses. With
    target rows to train on, the upper end of the gain over `aim` that looks at them stands beside.
    """
    entries, forecasts = read(RESULTS), read(FORECASTS)
    rows = dict(np.load(ROWS)) if ROWS.exists() else {}
    conditions = defaultdict(list)
    for spec in complete(entries):
        entry = {**entries[spec.name], "name": spec.name}
        conditions[spec.data, spec.condition, spec.epochs].append(entry)

    def tested(entry: dict[str, Any]) -> Tensor | None:
        found = rows.get(entry["name"])
        return None if found is None else torch.from_numpy(found).double()

    def trained(arm: Mapping[int, dict[str, Any]]) -> float:
        return float(np.mean([run["trained"] for run in arm.values()]))

    table = []
    for key in sorted(conditions, key=place):
        runs = conditions[key]
        arms = by_arm(runs)
        dense, oracle = arms.pop(DENSE), arms.get("oracle")
        value = float(np.mean([run["value"] for run in dense.values()]))
        accurate = runs[0]["metric"] is None or "accuracy" in runs[0]["metric"]
        scale = (100 if accurate else 100 / value) * (1 if runs[0]["higher"] else -1)
        for policy, arm in arms.items():
            gap = gaps(arm, dense, tested)
            gain = gap.estimate().interval()
            ends = sorted((scale * gain.low, scale * gain.high))
            whole = None if oracle is None else gaps(oracle, dense, tested)
            common = whole is not None and len(whole.values) == len(gap.values)
            part = share_of_gain(gap, whole) if common and policy != "oracle" else None
            known = part is not None and part.n > 0
            over_aim = {}
            if policy == AIM_ON_TARGET:
                more = gaps(arm, arms["aim"], tested).estimate().interval()
                over_aim = {"over_aim_high": max(scale * more.low, scale * more.high)}
            table.append(
                {
                    "condition": described(*key),
                    "kind": kind(key[1]),
                    "policy": policy,
                    "n": gain.n,
                    "dense": value,
                    "unit": "points" if accurate else "%",
                    "gain": scale * gain.mean,
                    "gain_low": ends[0],
                    "gain_high": ends[1],
                    "share": part.mean if known else None,
                    "share_low": part.low if known else None,
                    "share_high": part.high if known else None,
                    "trained": trained(arm) / trained(dense),
                    **over_aim,
                    **foretold(key, value, forecasts if policy == "aim" else {}),
                }
            )
    return table


def multipliers(entries: dict[str, Any]) -> list[dict[str, Any]]:
    """The share of dense training's FLOPs at which a method reaches its bits, on texts.

    Of each seed by interpolation over the logarithm of the budget, between runs with budgets of
    their own, see `gain.short`, and a whole one; mean and interval over the seeds that reach it.
    """
    found = defaultdict[tuple[str, str], list[float]](list)
    for whole in dict.fromkeys(replace(spec, epochs=WHOLE) for spec in short()):
        dense = entries[replace(whole, policy=DENSE).name]
        runs = [each for each in short() if replace(each, epochs=WHOLE) == whole]
        known = [entries[each.name] for each in (*runs, whole) if each.name in entries]
        shares = [math.log(each["budget"] / dense["budget"]) for each in known]
        bits = [each["value"] for each in known]
        if bits[-1] < dense["value"] < bits[0]:
            share = np.interp(-dense["value"], -np.array(bits), shares)
            found[described("text", whole.condition, WHOLE), whole.policy].append(math.exp(share))
    lines = []
    for (condition, policy), shares in found.items():
        share, low, high, n = mean_interval(shares)
        line = {"condition": condition, "policy": policy, "n": n}
        lines.append({**line, "share": share, "low": low, "high": high})
    return lines


def share_of_gain(policy: Gaps, oracle: Gaps) -> Interval:
    """The gain of a policy as a share of that of the oracle, over the same seeds.

    Fieller's interval: the shares f for which the interval of policy - f * oracle contains 0
    (Fieller, "Some problems in interval estimation", JRSS B 16 (1954)). It is bounded if the
    interval of the oracle's own gain excludes 0; otherwise, and where the spread of the policy's
    gain is unknown, the result is of n = 0.
    """
    whole, mine = oracle.estimate(), policy.estimate()
    if not whole.p() < ERROR or math.isnan(mine.interval().low):
        return mean_interval([])
    mean = mine.mean / whole.mean

    def outside(share: float) -> float:
        """How far 0 lies outside of the interval of policy - ``share`` * oracle."""
        rows = None
        if policy.rows is not None and oracle.rows is not None:
            rows = policy.rows - share * oracle.rows
        rest = Gaps(policy.values - share * oracle.values, rows).estimate().interval()
        return -1.0 if math.isnan(rest.low) else max(rest.low, -rest.high)

    def end(step: float) -> float:
        if outside(mean) >= 0:  # proportional, up to rounding
            return mean
        while outside(mean + step) <= 0:
            step *= 2
        return float(brentq(outside, mean, mean + step))

    return Interval(mean, end(-0.1), end(0.1), whole.n)


def foretold(
    key: tuple[str, str, float], value: float, forecasts: dict[str, Any]
) -> dict[str, float | None]:
    """Mean forecast for a condition over its seeds, and two standard errors, in units of the gain.

    Reductions of a root mean squared error are those of the squared error, bits percent of
    ``value``, that of dense training.
    """
    names = [Run(*key, "aim", seed).name for seed in SEEDS]
    found = [forecasts[name] for name in names if name in forecasts]
    if not found:
        return {"forecast": None, "forecast_error": None}
    gain = float(np.mean([each["gain"] for each in found]))
    error = 2 * float(np.mean([each["error"] for each in found]))
    unit = next((each["unit"] for each in found if each["unit"]), "")
    if unit == "% of the RMSE":
        error *= 2 * (1 - gain / 100)
        gain = 100 * (1 - (1 - gain / 100) ** 2)
    elif unit.startswith("bits"):
        gain, error = 100 * gain / value, 100 * error / value
    return {"forecast": gain, "forecast_error": error}


def abstentions() -> list[dict[str, Any]]:
    """How often `aim` trains on everything where training data and target are alike."""
    entries, table = read(ABSTENTIONS), defaultdict[str, list[float]](list)
    for spec in alike():
        if spec.name in entries:
            name = described(spec.data, spec.condition, spec.epochs)
            table[name].append(entries[spec.name]["value"])
    return [{"data": name, "abstains": sum(each), "n": len(each)} for name, each in table.items()]


def natural() -> list[dict[str, Any]]:
    """A row for each natural shift and method, on later rows where it has an order: all splits."""
    found = natural_training.gains(read_json(natural_training.RESULTS)["entries"])
    ordered = {line["shift"] for line in found if line["later"]}
    return [
        {
            "shift": line["shift"],
            "later": line["later"],
            "policy": policy,
            "n": line["splits"],
            "unit": line["unit"],
            **dict(zip(("gain", "gain_low", "gain_high"), line[policy], strict=True)),
        }
        for line in found
        if line["splits"] == natural_training.SPLITS
        if line["later"] or line["shift"] not in ordered
        for policy in ("both", "target alone", "aim")
    ]


def collect() -> None:
    """Move new entries and the test results of their rows to notebooks/results."""
    for path in (RESULTS, FORECASTS, ABSTENTIONS):
        write_atomic(path, dumped(read(path)))
    arrays = dict(np.load(ROWS)) if ROWS.exists() else {}
    for name in read(RESULTS):  # a run that was trained again replaces the earlier one
        folder = CACHE / "runs" / name.replace("/", "_") / RECORDS
        for file in folder.glob("*.safetensors"):
            rows = load_file(file)["test"]
            exact = bool(((rows == 0) | (rows == 1)).all())
            arrays[name] = rows.numpy().astype(bool if exact else np.float16)
    np.savez_compressed(ROWS, **arrays)


def main() -> None:
    collect()
    table = shares()
    entries = read(RESULTS)
    changed = [name for name, entry in entries.items() if entry["stamp"]["dirty"]]
    if changed:
        raise SystemExit(f"measured with local changes, train them again: {', '.join(changed)}")
    commits = sorted({entry["stamp"]["commit"][:8] for entry in entries.values()})
    on_target = [row for row in table if row["policy"] == AIM_ON_TARGET]
    table = [row for row in table if row["policy"] != AIM_ON_TARGET]
    planned = dict.fromkeys((spec.data, spec.condition, spec.epochs) for spec in plan())
    done = {(spec.data, spec.condition, spec.epochs) for spec in complete(entries)}
    content: dict[str, Any] = {
        "measured_at": commits,
        "natural": natural(),
        "rows": table,
        "aim_on_target": on_target,
        "abstentions": abstentions(),
        "multipliers": multipliers(entries),
        "not_run": [described(*key) for key in planned if key not in done],
    }
    write_json(SHARES, {**content, "marks": marks.marks(content)})
    print(pd.DataFrame(table).round(3).to_string())


if __name__ == "__main__":
    main()
