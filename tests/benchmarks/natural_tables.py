"""What natural shifts of real tables showed, as a section of docs/policies.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astkit.files import read_json
from astkit.stamp import describe
from tests.benchmarks import natural, natural_training

Entry = dict[str, Any]
METHODS = ("both", "target alone", "aim")
WHEN = {True: "later rows", False: "the same period"}
TRAINING = """## Natural shifts of real tables

Tables that nobody made for this: flights from New York, bikes rented by the hour, houses in
Texas, air fares, school tests, wages. Old rows are trained on (up to 20,000), up to 1,000 rows of
the target are known, and test rows are either of the same period or later ones, as for a model in
use. Gain over dense training on the old rows at equal FLOPs, in percent of the RMSE or points of
accuracy, of a network with two hidden layers; mean and 95 % interval over {splits} splits, one
training a split. "Both" trains on old and target rows alike. "Target alone" keeps its best
validation point, whose step of {steps:,} is named for each split. "Aim" may train on the target's
rows as it decides. Of late flights no dense network names any (its accuracy is the share of the
others), so that accuracy tells little there.

"""
FORECASTS = """
### Was it foretold?

`astkit.forecast` judges decisions by boosted trees before any training; the same trees, fitted to
all rows that a decision names, measure the gain on the test rows. A forecast counts for each
decision but `old`, shift and split; nothing was tuned on these {splits} splits. Of later rows
nothing is foretold from fewer than 4 dates.

"""
CHOSEN = """
What was chosen, and what that and `both` measured, in the same unit; the regret is that against
the best constant answer for the shift, known afterwards.

"""


def text() -> str:
    """The section, from the committed results."""
    training = read_json(natural_training.RESULTS)
    forecasts = read_json(natural.RESULTS)
    parts = []
    if training:
        parts += [_training(training["entries"]), _stamp(training)]
    if forecasts:
        parts += [_record(forecasts["entries"]), _chosen(forecasts["entries"]), _stamp(forecasts)]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _gain(found: Sequence[float]) -> str:
    mean, low, high = found
    said = f"{mean:+.1f}" if np.isnan(low) else f"{mean:+.1f} [{low:.1f}, {high:.1f}]"
    return said.replace("-0.0", "0.0").replace("+0.0", "0.0")


def _training(entries: Sequence[Entry]) -> str:
    found = natural_training.gains(entries)
    lines = [line for line in found if line["splits"] == natural_training.SPLITS]
    rows = [
        [
            line["shift"],
            WHEN[line["later"]],
            *(_gain(line[method]) for method in METHODS),
            ", ".join(map(str, line["best_steps"])),
        ]
        for line in sorted(lines, key=lambda line: not line["later"])
    ]
    head = ["shift", "test rows", *METHODS, "target alone was best at step"]
    counts = {"splits": natural_training.SPLITS, "steps": natural_training.STEPS}
    return TRAINING.format(**counts) + _table(head, rows)


def _record(entries: Sequence[Entry]) -> str:
    found = natural.record(list(entries)).reset_index()
    rows = [[str(value) for value in line] for line in found.itertuples(index=False)]
    splits = len({each["split"] for each in entries})
    return FORECASTS.format(splits=splits) + _table(list(found.columns), rows)


def _chosen(entries: Sequence[Entry]) -> str:
    rows = []
    for key in dict.fromkeys((each["shift"], each["later"]) for each in entries):
        mine = [each for each in entries if (each["shift"], each["later"]) == key]
        names = [each["chosen"] for each in mine]
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        chosen = [_measured(each, each["chosen"]) for each in mine]
        both = [_measured(each, "both") for each in mine]
        best = max(float(np.mean([_measured(each, name) for each in mine])) for name in CONSTANT)
        rows.append(
            [
                key[0],
                WHEN[key[1]],
                ", ".join(f"{name} ({count})" for name, count in counts.items()),
                f"{np.mean(chosen):+.1f}",
                f"{np.mean(both):+.1f}",
                f"{best - np.mean(chosen):.1f}",
            ]
        )
    head = ["shift", "test rows", "chosen (splits)", "it measured", "both measured", "regret"]
    return CHOSEN + _table(head, rows) + "\n" + _regrets(entries)


CONSTANT = ("old", "both", "target")


def _regrets(entries: Sequence[Entry]) -> str:
    """Mean regret of the chosen decisions and of each constant answer, in a sentence."""
    best = [max(_measured(each, name) for name in CONSTANT) for each in entries]
    chosen = np.mean(
        [b - _measured(each, each["chosen"]) for b, each in zip(best, entries, strict=True)]
    )
    constant = {
        name: np.mean([b - _measured(each, name) for b, each in zip(best, entries, strict=True)])
        for name in CONSTANT
    }
    others = ", ".join(f"{value:.1f} of always `{name}`" for name, value in constant.items())
    other = sum(each["chosen"] != "both" for each in entries)
    worse = [_measured(each, "both") - _measured(each, each["chosen"]) for each in entries]
    return (
        f"Mean regret against the best of these three: {chosen:.1f} of the chosen decisions,"
        f" {others}. An answer other than `both` was given {other} times of {len(entries)}; at"
        f" worst it measured {max(worse):.1f} less than `both`.\n"
    )


def _measured(entry: Entry, decision: str) -> float:
    return float(entry["measured"][decision][0])


def _stamp(content: Entry) -> str:
    later = "".join(f", resumed at {commit[:8]}" for commit in content["resumed_at"])
    return f"\nMeasured with {describe(content['stamp'])}{later}.\n"
