"""docs/policies.md, its charts and CSV files: `python -m benchmarks.policies` writes them.

Its gains come from `benchmarks.shares`. The entries of "Accuracy at equal cost" are kept from
an earlier runner and an earlier `auto`, with the commits that trained them; those of today are
trained by `benchmarks.gain`. All arms of a condition have the same learning rate and batch
size: those with which dense training was best, `SETTINGS`. `OWN` has those of policies that fail
with them. The table uses seeds 0 to 4, once.

The search (policies_search.json) trained as long as the table does, with seeds from 100, on 45,000
of the training images; the other 5,000 were scored, and the test images were not read. Trials are
compared by the mean over the seeds that all of them have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from astkit.comparison import verdict
from astkit.comparison.statistics import DENSE
from astkit.files import read_json, write_atomic
from astkit.names import REGISTRIES, resolve
from astkit.trainers.evaluation import wilson_interval
from benchmarks import calibration, natural_tables, policy_tables
from benchmarks.bench import HERE, ROOT, markdown, summary
from benchmarks.gain import parsed

PAGE = ROOT / "docs" / "policies.md"
ENTRIES = ROOT / "notebooks" / "results" / "06_policies.json"
SEARCH = HERE / "policies_search.json"
TRIALS = ((6e-3, 64), (1.2e-2, 64), (2.4e-2, 64))
"""Learning rates and batch sizes that were tried; with up to 1.2e-2, batches of 128 were worse."""
SETTINGS = {
    "clean": (2.4e-2, 64),
    "duplicates": (2.4e-2, 64),
    "long_tail": (2.4e-2, 64),
    "natural_tail": (2.4e-2, 64),
    "small": (1.2e-2, 64),
    "wrong_labels": (1.2e-2, 64),
}
OWN = {"gate": (3e-4, 64)}
"""Settings of policies whose accuracy those of dense training halve.

The gate was tried with 3e-4 to 1.2e-2, and with batches of 640, of which it trains on 64 rows.
"""
HEAD = """# Rules and results

![gain of aim over dense training at equal FLOPs, by kind of data](static/hero.png)

Which policies are there, and what did each gain? A policy chooses the samples that are trained on;
which one fits your data, and how to write another: [Policies](choose.md).

"""
GAINS = """
## Gains by kind of data

Gain over dense training at equal FLOPs, n = {seeds} seeds, with 95 % intervals over seeds and test
rows. The oracle knows which rows are right and relevant, and draws just those, evenly; a method may
exceed it. Numbers at the right are those of `aim`.

![{words}](static/gains.png)

All methods with their intervals and shares of what the oracle gains: [gains.csv](static/gains.csv).
There *dense+target* also trains on the validation rows, and *elr* chooses no rows: it is
early-learning regularisation (Liu et al., 2020), a loss for wrong labels.

Where the training data are like the target, `aim` should train on everything. Draws of the data for
which it did (`python -m benchmarks.gain --abstentions`): {counts}.
{nulls}

How much compute is that worth? The share of dense training's FLOPs at which a method reaches its
bits, between runs with budgets of their own (`python -m benchmarks.gain --short`), with 95 %
intervals over seeds; a multiplier of 2 is half of the FLOPs:

{multipliers}

<details><summary>What was changed after results were seen; commits</summary>

`auto` was changed after the rows with other inputs had been seen, where it preferred high losses,
and after those with wrong labels, where it drew by its trust in a label to the power 4; the power 1
was chosen with other seeds. It was measured again with the same seeds, as was `aim` on images of
another domain after its rule for images changed. Where it found no difference and no wrong labels,
`auto` then preferred high losses in runs of less than 24 epochs; today it trains on all rows there.
Today passes on the model take at most 5 % of a run, in which each row is read once. Of the long
tails at 8 epochs the model is no longer asked; it had found nothing there.
The forecast behind `aim` was written anew, as one for all kinds of data. What it foretells was
computed again for every run, and runs in which it finds something were trained again, but images of
another domain at 24 epochs and images with target rows to train on.
Planned and not run: {missing}. Measured at {commits} (`python -m benchmarks.gain`, then
`python -m benchmarks.shares`).

</details>

### With rows of the target to train on

The same, where the validation rows may be trained on too: *both* draws old and target rows alike;
`aim` decides from the joined rows which to draw and how often (`Trainer(..., target=)`). All spend
the FLOPs of dense training, `aim` those of its forecast included; n = {seeds} seeds.

{on_target}
"""
RESULTS = """
## Accuracy at equal cost

Policies that choose by difficulty, and an earlier `auto`, on {data} with a network of four
convolutions: points of test accuracy above dense training, which has the same FLOPs, scoring and
helper models included (*less training*: a shorter run than dense training's).

![{words}](static/accuracy.png)

Each accuracy with its interval: [accuracy.csv](static/accuracy.csv).

All methods have the learning rate and batch size with which dense training is best, in a search
with other seeds ([policies_search.json](../benchmarks/policies_search.json)), and the
learning rate is fully decayed at the end. Differences are paired by seed, with 95 % intervals over
seeds only: they hold for these test images alone. Outcomes are Holm-corrected: at most a 5 % chance
of any wrong sign per condition, over all policies that were measured, also those that are gone
([tried.md](tried.md)).

<details><summary>Rates, batch sizes, what was changed after results were seen; commits</summary>

Learning rate and batch size: {settings}. An earlier edition gave each method the best
rate of its own search with one seed: 0.006 for dense training and 0.012 for policies. Most of what
`auto` gained on clean data came from that difference; runs with another rate than today's were
trained again, or are left out. `auto` was changed twice after results with these seeds had been
seen, and measured again with them: the exponent of its trust for wrong labels, and that it counts
distinct samples for duplicates. So its rows on these two are no independent test.

Commits: {commits}; {dirty} of {runs} runs had local changes.

</details>
"""
MARKS = """
## What was to be reached

Bounds that were set before any of this was measured, natural shifts first; rows that were missed
stay, and [what was tried](tried.md) about them. Of later rows, splits of bikes and of
houses in Texas hold the same target rows, so that five of them tell little more than one.

{marks}
"""
PUBLISHED = {
    "infobatch": (
        "40 % of the cost saved",
        "ResNets, CIFAR-10/100, 200 epochs; ResNet-50, ImageNet, 90",
    ),
    "random": ("66 against 69 % at a tenth of the data an epoch", "RS2: ResNet-18, ImageNet"),
}
"""What the authors claim, and on what."""
TESTS = {
    "long_tail": {
        "balanced": ", balanced validation and test",
        "natural": ", balanced validation, imbalanced test (the same runs)",
    },
    "natural_tail": {"natural": ", imbalanced validation and test"},
}
"""Metrics of conditions that have other ones than the accuracy."""
GONE = (
    *("bls", "gradnorm_is", "rho", "selective_backprop", "seta"),
    *("el2n_static", "kakurenbo", "proxy_topk", "rcap", "repb"),
)
"""Policies that were measured and are no longer part of the kit: docs/tried.md has their rows."""
Entry = dict[str, Any]
Tasks = dict[str, list[Entry]]


def page(entries: dict[str, Entry]) -> str:
    """The page as Markdown."""
    found = list(entries.values())
    rules = cards().rename(index=linked)
    source = rules.drop(columns=["rule", "when not"])
    parts = [HEAD + markdown(rules[["rule", "when not"]])]
    parts += [folded("Source, cost and bias", source)]
    parts += [natural_tables.text(), gained(), reached(), compared(found)]
    parts += ["## Published claims\n", markdown(claims(found).rename(index=linked))]
    return "\n".join(parts) + "\n"


def linked(name: str) -> str:
    """The name of a policy with a link to its file; on the site it leads to the policy's page."""
    module = REGISTRIES["policy"][name].partition(":")[0]
    return f"[{name}](../{module.replace('.', '/')}.py)"


def folded(title: str, table: pd.DataFrame) -> str:
    """A table that a click opens, on GitHub and on the site."""
    return f"\n<details><summary>{title}</summary>\n\n{markdown(table)}\n\n</details>\n"


def gained() -> str:
    """What each method gains by kind of data."""
    content = read_json(policy_tables.SHARED)
    table = policy_tables.gains()
    seeds = "to".join(f" {count} " for count in sorted({*table["n"]})).strip()
    counts = [
        f"{each['data']}: {each['abstains']:.0f} of {each['n']}" for each in content["abstentions"]
    ]
    return GAINS.format(
        seeds=seeds,
        words=policy_tables.gains_words(table),
        counts="; ".join(counts),
        nulls=without_a_shift(),
        multipliers=markdown(policy_tables.multipliers(content["multipliers"])),
        on_target=markdown(policy_tables.on_target()),
        missing="; ".join(content["not_run"]),
        commits=", ".join(content["measured_at"]),
    )


def reached() -> str:
    """Each bound, what was measured, and whether it was kept."""
    table = pd.DataFrame(read_json(policy_tables.SHARED)["marks"]).set_index("what")
    table["kept"] = table["kept"].map({True: "yes", False: "missed"})
    return MARKS.format(marks=markdown(table))


def without_a_shift() -> str:
    """How often `aim` weighs the rows of tables that are like the target, in a sentence."""
    cells = read_json(calibration.RESULTS)["tables"]["cells"]
    trials = sum(each["trials"] for each in cells)
    alarms, drawn = (
        round(sum(e["trials"] * e[kind] for e in cells)) for kind in ("alarms", "drawn")
    )
    high = 100 * wilson_interval(alarms, trials)[1]
    sizes = f"{cells[0]['train']} rows, {cells[0]['target']} of a target"
    return (
        f"In {trials:,} small tables ({sizes}; `python -m benchmarks.calibration --only\n"
        f"tables --trials {cells[0]['trials']}`) a test found a difference in {alarms}, at most"
        f" {high:.1f} % by the upper end of a 95 % interval, and rows were weighed in {drawn}."
    )


def compared(found: list[Entry]) -> str:
    """Accuracy at equal cost."""
    table = policy_tables.accuracies(tasks(found), GONE)
    return RESULTS.format(
        data=", ".join(sorted({entry["data"] for entry in found})),
        words=policy_tables.accuracy_words(table),
        settings=_settings(),
        commits=", ".join(sorted({str(entry["stamp"]["commit"])[:8] for entry in found})),
        dirty=sum(bool(entry["stamp"]["dirty"]) for entry in found),
        runs=len(found),
    )


def _settings() -> str:
    """Learning rate and batch size by condition, and of policies with their own."""
    found = {**SETTINGS, **{f"{name} everywhere": own for name, own in OWN.items()}}
    return "; ".join(
        f"{name.replace('_', ' ')} {lr:g}, {size}" for name, (lr, size) in found.items()
    )


def heading_metric(task: str) -> str:
    return "balanced accuracy" if task.endswith(TESTS["long_tail"]["balanced"]) else "accuracy"


def tasks(entries: Sequence[Entry]) -> Tasks:
    """Entries as `astkit.comparison.verdict` takes them, by condition, length and metric.

    Policies may use the class shares of the validation data; those of a long tail are balanced, or
    as imbalanced as the training data. Tasks without dense training are left out.
    """
    found: Tasks = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry["policy"] != DENSE):
        tests = TESTS.get(parsed(entry["condition"])[0], {"accuracy": ""})
        for metric, said in tests.items():
            task = f"{in_words(entry['condition'])}, {entry['epochs']:g} epochs{said}"
            shown = {"policy": label(entry), "value": entry[metric]}
            found[task].append({**entry, **shown, "seconds": None, "curve": []})
    full = {task: runs for task, runs in found.items() if runs[0]["policy"] == DENSE}
    return dict(sorted(full.items()))


def in_words(condition: str) -> str:
    """ "wrong_labels:share=0.4" as "wrong labels (share 0.4)"."""
    name, options = parsed(condition)
    said = ", ".join(f"{option} {value}" for option, value in options.items())
    words = name.replace("natural", "long").replace("_", " ")
    return words + f" ({said})" * bool(said)


def label(entry: Entry) -> str:
    """The name of a method."""
    name = f"random at {entry['rate']:.2f}" if "@" in entry["policy"] else entry["policy"]
    return name + f", {entry['fraction']:g} of the FLOPs" * (entry["fraction"] != 1)


def cards() -> pd.DataFrame:
    """The rules of all policies."""
    titles = ("rule", "source", "skipped samples cost", "bias", "when not")
    rows = {}
    for name in REGISTRIES["policy"]:
        kind = resolve("policy", name)
        texts = (summary(kind), *(text.replace("|", "\\|") for text in kind.card))
        rows[name] = dict(zip(titles, texts, strict=True))
    return pd.DataFrame(rows).T.rename_axis("policy")


def claims(entries: Sequence[Entry]) -> pd.DataFrame:
    """What the authors claim, beside what was measured here on clean data."""
    clean = [run for run in entries if run["condition"] == "clean"]
    found: dict[str, list[str]] = defaultdict(list)
    for task, runs in tasks(clean).items():
        for each in verdict.judge(runs):
            if "of the FLOPs" in each.policy:
                continue
            said = f"{task}: {each.words}, {each.amount(each.difference)}, n = {each.n}"
            found[parsed(each.policy.split(",")[0])[0]].append(said)
    rows = {
        policy: {
            "claim": claim,
            "on": where,
            "here, accuracy at equal FLOPs": "; ".join(found[policy]) or "not measured",
        }
        for policy, (claim, where) in PUBLISHED.items()
    }
    return pd.DataFrame(rows).T.rename_axis("policy")


def files(entries: dict[str, Entry]) -> dict[str, str]:
    """The CSV files of the page by name."""
    tables = {
        "gains": policy_tables.gains(),
        "accuracy": policy_tables.accuracies(tasks(list(entries.values())), GONE),
    }
    return {f"{name}.csv": table.to_csv(index=False) for name, table in tables.items()}


if __name__ == "__main__":
    committed = read_json(ENTRIES)
    write_atomic(PAGE, page(committed))
    for name, text in files(committed).items():
        write_atomic(policy_tables.STATIC / name, text)
    measured = policy_tables.accuracies(tasks(list(committed.values())), GONE)
    for name, chart in {
        "gains": policy_tables.gains_chart(policy_tables.gains()),
        "accuracy": policy_tables.accuracy_chart(measured),
    }.items():
        write_atomic(policy_tables.STATIC / f"{name}.png", chart.png(dpi=220))
