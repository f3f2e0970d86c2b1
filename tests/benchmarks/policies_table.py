"""The page docs/policies.md, made from the entries of the comparison of policies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

import pandas as pd

from astkit.names import REGISTRIES, resolve
from astkit.runs.intervals import Interval, paired_difference, split_error
from tests.benchmarks.figures import markdown
from tests.benchmarks.policies_plan import Entries, Entry, current, parsed

HEAD = """# Policies

A policy chooses the samples that are trained on. Each is one file in
[astkit/gating](../astkit/gating), used by its name, as in `Trainer(..., policy="infobatch")`.
Written by `python -m tests.benchmarks.policies --table`.

"""
RESULTS = """
## Accuracy at equal cost

Test accuracy in percentage points against dense training, which has a schedule of the same length,
on {data}: mean over seeds of the difference for the same seed, with its 95 % interval (Student).
All runs of a column may spend the FLOPs of dense training at that length, or the stated share of
them, scoring and helper models included; "undecided" where the interval holds 0. Dense training
shows its accuracy and half the width of the test split's own 95 % interval. "Tuned": learning rate
and batch size are the search's choice, for dense training too.
"""
PUBLISHED = {
    "infobatch": (
        "40 % of the cost saved",
        "ResNets, CIFAR-10/100, 200 epochs; ResNet-50, ImageNet, 90",
    ),
    "bls": ("20-50 % pruned without loss", "14 data sets, 18 networks"),
    "repb": ("30 % pruned at full accuracy", "16 data sets, 17 networks"),
    "seta": ("up to 50 % of the cost saved", "abstract only"),
    "kakurenbo": ("22 % of the time, -0.4 points", "ImageNet, several networks; abstract only"),
    "selective_backprop": ("up to 3.5 x to a target error", "CIFAR-10/100, SVHN"),
    "rho": ("18 x fewer steps", "Clothing-1M, 10 candidates scored a trained sample"),
    "proxy_topk": ("1.27 x the speed", "airbench96, CIFAR-10, accuracy 96 %"),
    "random": ("66 against 69 % at a tenth of the data an epoch", "RS2: ResNet-18, ImageNet"),
}
"""What the authors claim, and on what."""
Group = tuple[str, float, str]  # condition, epochs, metric


def page(entries: Entries) -> str:
    """The tables as Markdown; without an entry of today's code only the rules."""
    found = current(entries)
    rules = HEAD + markdown(cards())
    if not found:
        return f"{rules}\n"
    data = ", ".join(sorted({entry["data"] for entry in found}))
    parts = [rules, RESULTS.format(data=data), markdown(differences(found))]
    parts += ["\n## Published claims\n", markdown(claims(found))]
    noisy = [entry for entry in found if any(entry["wrong_share"])]
    if noisy:
        parts += ["\nShare of wrong labels among the rows trained on, over the budget:\n"]
        parts += [markdown(wrong_shares(noisy))]
    parts += ["\nThe class that is recognised least, and samples trained on:\n"]
    parts += [markdown(worst_classes(found))]
    if stale := len(entries) - len(found):
        parts += [f"\n{stale} results of earlier code are left out."]
    dirty = sum(bool(entry["stamp"]["dirty"]) for entry in found)
    commits = sorted({str(entry["stamp"]["commit"])[:8] for entry in found})
    parts += [f"\nCommits: {', '.join(commits)}; {dirty} of {len(found)} runs had local changes."]
    return "\n".join(parts) + "\n"


def cards() -> pd.DataFrame:
    """The rules of all policies."""
    found = {name: resolve("policy", name).card for name in REGISTRIES["policy"]}
    rows = {
        name: {
            title: text.replace("|", "\\|")
            for title, text in zip(
                ("rule", "source", "skipped samples cost", "bias", "when not"), card, strict=True
            )
        }
        for name, card in found.items()
    }
    return pd.DataFrame(rows).T.rename_axis("policy")


def claims(entries: Sequence[Entry]) -> pd.DataFrame:
    """What the authors claim, beside what was measured here on clean data."""
    clean = [entry for entry in entries if entry["condition"] == "clean"]
    rows: dict[str, dict[str, str]] = {}
    for policy, (claim, where) in PUBLISHED.items():
        own = [entry for entry in clean if parsed(entry["policy"])[0] == policy]
        control = [entry for entry in clean if entry["policy"] == "dense"]
        shown = differences([*control, *own]) if own else pd.DataFrame()
        rows[policy] = {
            "claim": claim,
            "on": where,
            "here, accuracy at equal FLOPs": "; ".join(
                f"{column}: {value}"
                for column in shown.columns
                for name, value in shown[column].items()
                if value and not str(name).startswith("dense")
            )
            or "not measured",
        }
    return pd.DataFrame(rows).T.rename_axis("policy")


def differences(entries: Sequence[Entry]) -> pd.DataFrame:
    """Policies by conditions: the difference to dense training at the same length."""
    values: dict[tuple[str, Group], dict[int, Entry]] = defaultdict(dict)
    for entry in entries:
        for metric in metrics_of(entry):
            group = (entry["condition"], entry["epochs"], metric)
            values[label(entry), group][entry["seed"]] = entry
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for (policy, group), runs in values.items():
        some = next(iter(runs.values()))
        dense = values.get((label({**some, "policy": "dense", "fraction": 1.0}), group), {})
        scores, control = (
            {seed: run[group[2]] for seed, run in each.items()} for each in (runs, dense)
        )
        if runs is dense:
            average = mean(scores.values())
            error = split_error(average, some["test_rows"])
            cells[policy][heading(group)] = f"{average:.2%} ± {error:.2%}, n = {len(scores)}"
        else:
            cells[policy][heading(group)] = verdict(paired_difference(scores, control))
    table = pd.DataFrame(cells).T.fillna("").rename_axis("policy")
    return table.loc[sorted(table.index, key=lambda name: (not name.startswith("dense"), name))]


def metrics_of(entry: Entry) -> tuple[str, ...]:
    """What is compared: on a long tail the balanced and the natural accuracy."""
    return ("balanced", "natural") if entry["condition"].startswith("long_tail") else ("accuracy",)


def label(entry: Entry) -> str:
    """The name of a row of the table."""
    parts = [entry["policy"]]
    parts += [f"{entry['fraction']:g} of the FLOPs"] * (entry["fraction"] != 1)
    return ", ".join([*parts, *["tuned"] * entry["tuned"]])


def heading(group: Group) -> str:
    condition, epochs, metric = group
    return f"{condition}, {epochs:g} epochs" + (f", {metric}" if metric != "accuracy" else "")


def verdict(found: Interval) -> str:
    """A difference with its interval, "undecided" where that holds 0 or is absent."""
    if not found.n:
        return "no dense run of the same seed"
    open_ = math.isnan(found.low) or found.low <= 0 <= found.high
    return f"{found}" + (", undecided" if open_ else "")


def wrong_shares(entries: Sequence[Entry]) -> pd.DataFrame:
    """Mean over seeds of the share of wrong labels: at the start, in the middle, at the end."""
    rows = []
    for name, runs in grouped(entries).items():
        parts = [mean(part) for part in zip(*(run["wrong_share"] for run in runs), strict=True)]
        shown = {"start": parts[0], "middle": parts[len(parts) // 2], "end": parts[-1]}
        rows.append({**name_of(name, runs), **{at: f"{x:.1%}" for at, x in shown.items()}})
    return pd.DataFrame(rows).set_index("policy")


def worst_classes(entries: Sequence[Entry]) -> pd.DataFrame:
    """Mean over seeds of the lowest accuracy of a class, and of the samples trained on."""
    rows = []
    for name, runs in grouped(entries).items():
        passes = mean(run["trained"] / run["train_rows"] for run in runs)
        worst = mean(run["worst"] for run in runs)
        rows.append(
            {
                **name_of(name, runs),
                "worst class": f"{worst:.1%}",
                "samples trained / N": f"{passes:.2f}",
                "rate": f"{mean(run['rate'] for run in runs):.2f}",
            }
        )
    return pd.DataFrame(rows).set_index("policy")


def grouped(entries: Sequence[Entry]) -> dict[tuple[str, str, float], list[Entry]]:
    """The seeds of each policy on each condition."""
    found: dict[tuple[str, str, float], list[Entry]] = defaultdict(list)
    for entry in entries:
        found[label(entry), entry["condition"], entry["epochs"]].append(entry)
    return dict(sorted(found.items()))


def name_of(name: tuple[str, str, float], runs: Sequence[Entry]) -> dict[str, str]:
    policy, condition, epochs = name
    return {
        "policy": policy,
        "condition": condition,
        "epochs": f"{epochs:g}",
        "n": str(len(runs)),
    }
