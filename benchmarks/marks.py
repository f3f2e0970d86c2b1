"""Bounds that were set before the gains of `aim` were measured, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from astkit.comparison.statistics import mean_interval
from astkit.files import read_json
from astkit.trainers.evaluation import wilson_interval
from benchmarks import calibration, natural, natural_training
from benchmarks.moment_marks import of_histories, of_moments

Entry = dict[str, Any]
Line = tuple[str, str, str, bool]
CONSTANT = ("old", "both", "target")
"""Answers that need no forecast."""
NETWORK = {"both": "both", "target": "target alone"}
"""Decisions by which a network was trained, and their names there."""


def marks(content: Entry) -> list[Entry]:
    """A row for each bound: what, the mark, what was measured, and whether it was kept.

    ``content``: rows, abstentions and runs with target rows of notebooks/results/06_shares.json.
    """
    forecasts = read_json(natural.RESULTS)["entries"]
    training = natural_training.gains(read_json(natural_training.RESULTS)["entries"])
    lines = [
        *of_forecasts(forecasts),
        *of_choices(forecasts),
        *of_moments(forecasts),
        *of_histories(),
        *of_networks(forecasts, training),
        *of_losses(training, content),
        of_target_rows(content["aim_on_target"]),
        *of_abstention(content["abstentions"]),
    ]
    names = ("what", "mark", "measured", "kept")
    return [dict(zip(names, line, strict=True)) for line in lines]


def of_forecasts(entries: Sequence[Entry]) -> Iterator[Line]:
    """What was foretold, beside what fresh rows measured."""
    record = natural.record(list(entries))
    for when, least in (("later rows", 0.80), ("the same period", 0.85)):
        found = record.loc[when]
        mine = [each for each in entries if each["later"] == (when == "later rows")]
        if when == "later rows":
            count = int(found["significantly on the other side"])
            what = "later rows: forecasts that exclude 0 and measure the opposite, significantly"
            yield what, "none", f"{count} of {found['exclude 0']:.0f}", count == 0
        share = found["within 1.96 combined errors"]
        said = f"{share:.3f} of {found['forecasts']:.0f}, median width {found['median width']}"
        said += f"; mean over {_of_shifts(mine)}"
        what = f"{when}, all decisions: foretold and measured within 1.96 combined errors"
        yield what, f"at least {least:.2f}", said, bool(share >= least)
        lines = [
            natural.within(line)
            for each in mine
            for line in each["decisions"]
            if line["decision"] == each["chosen"] != "old"
        ]
        if when == "the same period":
            share = float(np.mean(lines))
            said = f"{share:.2f} of {len(lines)}"
            yield (
                f"{when}, chosen decisions: the same",
                f"at least {least:.2f}",
                said,
                share >= least,
            )


def _of_shifts(entries: Sequence[Entry]) -> str:
    """Share of decisions within combined errors, as mean and interval over shifts."""
    inside: dict[str, list[bool]] = {}
    for each in entries:
        for line in each["decisions"]:
            if line["decision"] != "old":
                inside.setdefault(each["shift"], []).append(natural.within(line))
    found = mean_interval(float(np.mean(each)) for each in inside.values())
    return f"{found.n} shifts {found.mean:.2f} [{found.low:.2f}, {min(found.high, 1):.2f}]"


def of_choices(entries: Sequence[Entry]) -> Iterator[Line]:
    """What the chosen decisions measured, against the same answer always."""
    found = regrets(entries)
    best = min(CONSTANT, key=lambda name: float(np.mean(found[name])))
    more: dict[Any, list[float]] = {}
    for each, mine, other in zip(entries, found["chosen"], found[best], strict=True):
        more.setdefault((each["shift"], each["later"]), []).append(mine - other)
    gap = mean_interval(float(np.mean(each)) for each in more.values())
    mine, least = (float(np.mean(found[name])) for name in ("chosen", best))
    said = f"{mine:.2f} against {least:.2f}: {gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"
    said += f", n = {gap.n} cases"
    what = "mean regret of the chosen decisions, against that of the best constant answer"
    yield what, f"below that of always `{best}`", said, mine < least
    lost = [measured(each, "both") - measured(each, each["chosen"]) for each in entries]
    worst = entries[int(np.argmax(lost))]
    said = f"{max(lost):.1f}: {worst['shift']}, split {worst['split']}, {worst['chosen']}"
    said += f"; more than 2 in {sum(each > 2 for each in lost)} of {len(lost)}"
    yield "how much a chosen decision measured below `both`", "at most 2", said, max(lost) <= 2
    other = [n for n, each in enumerate(entries) if each["chosen"] != "both"]
    told = mean_interval(-lost[n] for n in other)
    said = f"{told.mean:+.1f} [{told.low:+.1f}, {told.high:+.1f}]"
    what = f"an answer other than `both` ({len(other)} of {len(entries)}): what it gained over it"
    yield what, "told", said, True


def regrets(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """How much less than the best of `CONSTANT` each answer measured, and the chosen decision."""
    best = [max(measured(each, name) for name in CONSTANT) for each in entries]
    found = {
        name: [top - measured(each, name) for top, each in zip(best, entries, strict=True)]
        for name in CONSTANT
    }
    chosen = [top - measured(each, each["chosen"]) for top, each in zip(best, entries, strict=True)]
    return {"chosen": chosen, **found}


def measured(entry: Entry, decision: str) -> float:
    """The gain of a decision on fresh rows."""
    return float(entry["measured"][decision][0])


def of_networks(entries: Sequence[Entry], trained: Sequence[Entry]) -> Iterator[Line]:
    """What networks gained by decisions whose forecast excludes 0."""
    gains = {(line["shift"], line["later"]): line for line in trained}
    sure = opposite = 0
    for each in entries:
        if (each["shift"], each["later"]) not in gains:  # no network was trained on it
            continue
        for line in each["decisions"]:
            if line["decision"] in NETWORK and (line["low"] > 0 or line["high"] < 0):
                _, low, high = gains[each["shift"], each["later"]][NETWORK[line["decision"]]]
                sure += 1
                opposite += (line["low"] > 0 and high < 0) or (line["high"] < 0 and low > 0)
    what = "the network, `both` and `target`: forecasts that exclude 0 and are significantly wrong"
    yield what, "at most 5 %", f"{opposite} of {sure}", opposite <= 0.05 * sure
    doubt = sum("depends on the model" in each["sentence"] for each in entries)
    what = "forecasts that say that it depends on the model"
    yield what, "at most a third", f"{doubt} of {len(entries)}", doubt <= len(entries) / 3


def of_losses(trained: Sequence[Entry], content: Entry) -> Iterator[Line]:
    """Intervals of `aim` that show a loss of more than 1 % or 1 point."""
    own = [row["gain_high"] for row in content["rows"] if row["policy"] == "aim"]
    groups = {
        "natural shifts": [line["aim"][2] for line in trained],
        "made and clean data": own,
        "the same with target rows": [row["gain_high"] for row in content["aim_on_target"]],
    }
    said = [
        f"{name} {sum(high < -1 for high in highs)} of {len(highs)}"
        for name, highs in groups.items()
    ]
    kept = not any(high < -1 for highs in groups.values() for high in highs)
    what = "`aim` against dense training: intervals that show a loss of more than 1 % or 1 point"
    yield what, "none", ", ".join(said), kept


def of_target_rows(rows: Sequence[Entry]) -> Line:
    """Where `aim` gains less if it may train on the target's rows than if it looks at them."""
    made = [row for row in rows if not row["condition"].startswith(("table", "series"))]
    below, others = (
        [row["condition"] for row in some if row["over_aim_high"] < 0]
        for some in (made, [row for row in rows if row not in made])
    )
    said = f"{len(below)} of {len(made)}" + "".join(f"; {each}" for each in below)
    said += "".join(f"; {each}: below" for each in others)
    what = "texts and images where `aim` with target rows to train on is below looking at them"
    return what, "none, significantly", said, not below


def of_abstention(counts: Sequence[Entry]) -> Iterator[Line]:
    """How often `aim` draws where there is nothing to choose."""
    cells = read_json(calibration.RESULTS)["tables"]["cells"]
    trials = sum(each["trials"] for each in cells)
    alarms = round(sum(each["trials"] * each["alarms"] for each in cells))
    high = 100 * wilson_interval(alarms, trials)[1]
    share = 100 * alarms / trials
    said = f"{alarms} of {trials:,}: {share:.1f} %, upper end {high:.1f} %"
    what = "small tables like their target in which a test finds a difference"
    yield what, "at most 1 %, upper end 2 %", said, share <= 1 and high <= 2
    shown = [f"{each['data']} {each['abstains']:.0f} of {each['n']}" for each in counts]
    kept = all(each["abstains"] >= 0.95 * each["n"] for each in counts)
    what = "draws without a shift in which `aim` trains on everything"
    yield what, "19 of 20", ", ".join(shown), kept
