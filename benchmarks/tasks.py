"""Policies on tasks beyond images at equal FLOPs: `python -m benchmarks.tasks`.

Writes benchmarks/tasks.json, from which `benchmarks.readme` fills docs/measured.md. The
same command continues what was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from astkit import Budget, CachedLoss, RunInfo, Visit
from astkit.comparison.compare import checked_task, compare
from astkit.comparison.plan import Method
from astkit.comparison.report import Comparison
from astkit.comparison.statistics import DENSE, by_arm, is_control, mean_interval
from astkit.comparison.training import train_method
from astkit.comparison.verdict import Verdict, judge, unit
from astkit.files import read_json, write_json
from astkit.gating import cross_entropy_rows
from astkit.gating.policies.learned import Learned
from astkit.stamp import stamp
from benchmarks import bench
from benchmarks.builders import PARTS, SEQUENCES, Columns, sequences, task

RESULTS = bench.HERE / "tasks.json"
NAMES = ("series", "sound", "text", "language")
POLICIES = [{"name": "random", "rate": 0.5}, "infobatch", "auto"]
ALL = (*NAMES, "learned", "tokens")
LEARNED = {"policies": ["cached_loss", "learned"], "budget": Budget(epochs=10)}
REFERENCE, EPOCHS, SHARE = 168, 3, 0.6
"""Sequences and epochs of the reference model of token selection; share of the tokens trained."""
KEPT = ("policy", "seed", "value", "flops", "seconds", "trained", "scored", "rate")


def measure(name: str, seeds: int, folder: Path) -> dict[str, Any]:
    """Entries of the arms of one task, or of "learned", with metric and stamp."""
    given = LEARNED if name == "learned" else {"policies": POLICIES}
    found = compare(
        **{**task("digits" if name == "learned" else name), **given},
        seeds=range(seeds),
        out=folder,
        check_baseline=False,
        device="cpu",
    )
    print(found, flush=True)
    return plain(found)


def planning(rows: int = 50_000, rounds: int = 15) -> dict[str, Any]:
    """Median CPU seconds of planning an epoch of ``rows`` samples, interleaved, on one thread."""
    policies = {"learned": Learned(), "cached_loss": CachedLoss()}
    taken: dict[str, list[float]] = {name: [] for name in policies}
    with bench.one_thread():
        for epoch in range(rounds + 2):
            for name, policy in policies.items():
                run = RunInfo(rows, torch.arange(rows), epoch, 0, 0.5)
                start = time.process_time()
                chosen = policy.plan(run)
                taken[name].append(time.process_time() - start)
                policy.observe(Visit(chosen.index, torch.rand(len(chosen))))
    found = {name: median(seconds[2:]) for name, seconds in taken.items()}
    return {**found, "rows": rows, "n": rounds}


class TokenSelection:
    """Criterion that trains the fraction ``share`` of a batch's tokens with the largest excess.

    Excess is the loss minus that of a reference model, the batch's column ``reference``, see
    `with_reference`. The forward and backward passes still compute all tokens, since the tokens of
    a sequence depend on each other: only the logits' gradient is sparse. Source: Lin et al.,
    "Rho-1: Not All Tokens Are What You Need", NeurIPS 2024.
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Losses and selection, ``[rows, length]``."""
        losses, mask = cross_entropy_rows(outputs, batch)
        excess = (losses.detach() - batch["reference"]).masked_fill(~mask, -torch.inf)
        count = max(1, round(self.share * int(mask.sum())))
        chosen = torch.zeros_like(mask).flatten()
        chosen[excess.flatten().topk(count).indices] = True
        # row means are averaged, so that each selected token needs the weight 1 / count
        weight = len(losses) * chosen.view_as(mask).sum(1, keepdim=True) / count
        return losses * weight, chosen.view_as(mask)


@torch.no_grad()
def with_reference(data: Columns, model: nn.Module, rows: int = 256) -> Columns:
    """``data`` with a column ``reference``: the losses of ``model`` per token, ``[N, length]``."""
    columns = dict(zip(data.names, data.tensors, strict=True))
    tokens, labels = columns["tokens"], columns["labels"]
    parts = [
        cross_entropy_rows(model(x), {"labels": y})[0]
        for x, y in zip(tokens.split(rows), labels.split(rows), strict=True)
    ]
    return Columns(tokens=tokens, reference=torch.cat(parts), labels=labels)


def tokens(language: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Token selection against the dense arm of ``language``, whose runs are not repeated.

    The reference model is trained on other sequences of the text. Its training and scoring count in
    ``flops``; "equal steps" has as many steps as dense training, "equal FLOPs" as much cost.
    """
    dense = [entry for entry in language["entries"] if entry["policy"] == DENSE]
    made = task("language")
    x, y, _ = sequences()
    rows = slice(SEQUENCES, SEQUENCES + REFERENCE)
    given = {"criterion": None, **made, "device": "cpu"}
    budget = given.pop("budget")
    other = checked_task({**given, "train": Columns(tokens=x[rows], labels=y[rows])})
    entries = []
    for each in dense:
        seed = each["seed"]
        trainer = other.trainer(None, seed, Budget(epochs=EPOCHS))
        trainer.run()
        model = trainer.model.eval()
        scoring = trainer.cost(trainer.batches.peek()).scoring(len(made["train"]))
        cost = trainer.ledger.flops.total + scoring
        parts = {part: with_reference(made[part], model) for part in PARTS}
        chosen = checked_task({**given, **parts, "criterion": TokenSelection(SHARE)})
        for label, spent in (
            ("tokens, equal steps", budget),
            ("tokens, equal FLOPs", Budget(flops=each["flops"] - cost)),
        ):
            found = train_method(chosen, Method(label, None), seed, spent, folder, resumable=False)
            entries.append({**found, "flops": found["flops"] + cost, "seconds": None})
            print(label, seed, found["value"], found["flops"], cost, flush=True)
    every = [*dense, *map(kept, entries)]
    return {**language, "entries": every, "notes": [], "stamp": stamp()}


def kept(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables need of an entry, with six digits in the curve."""
    curve = [[float(f"{value or 0:.6g}") for value in row] for row in entry["curve"]]
    return {**{key: entry[key] for key in KEPT}, "curve": curve}


def plain(found: Comparison) -> dict[str, Any]:
    """What the tables need of a comparison."""
    return {
        "metric": found.metric,
        "higher": found.higher,
        "entries": [kept(entry) for entry in found.entries],
        "notes": found.notes,
        "stamp": found.stamp,
    }


def verdicts(part: dict[str, Any]) -> list[Verdict]:
    """The verdicts on the arms of a part of the file."""
    return judge(part["entries"], part["metric"], part["higher"])


def table(report: dict[str, Any], costs: bool = False) -> pd.DataFrame:
    """A row per task and policy: value, difference to dense, outcome.

    ``costs``: also shares of dense's costs, and the random control with the difference to it.
    """
    rows = []
    for name, part in report.items():
        arms, metric = by_arm(part["entries"]), part["metric"]
        judged = {each.policy: each for each in verdicts(part)}
        controls = [arm for arm in arms if is_control(arm)] if costs else [DENSE]
        for policy in (*controls, *judged):
            arm, found = arms[policy], judged.get(policy)
            value = mean_interval(run["value"] for run in arm.values()).mean
            row = {"task": name, "metric": metric, "policy": policy, "n": len(arm)}
            row["value"] = f"{value:.2%}" if unit(metric)[0] > 1 else f"{value:.4f}"
            if costs:
                shares = {"FLOPs": found and found.flops, "seconds": found and found.seconds}
                row |= {
                    f"{key} / dense": of.text(".2f") if of else "" for key, of in shares.items()
                }
            gaps = {"dense": found and found.difference, "random": found and found.to_random}
            row |= {
                f"against {of}": found.amount(gap) if found and gap and gap.n else ""
                for of, gap in gaps.items()
            }
            rows.append({**row, "outcome": "" if found is None else found.words})
    shown = pd.DataFrame(rows).set_index("task")
    return shown.loc[:, (shown != "").any()] if costs else shown.drop(columns="against random")


def main() -> None:
    """Measure the tasks that are asked for."""
    asked = bench.options(main.__doc__, RESULTS, tasks=[*ALL], seeds=5, folder="out/tasks")
    for name in asked.tasks:
        folder = Path(asked.folder) / name
        if name == "tokens":
            found = tokens(read_json(asked.out)["language"], folder)
        else:
            found = measure(name, asked.seeds, folder)
            found |= {"planning": planning()} if name == "learned" else {}
        write_json(asked.out, {**read_json(asked.out), name: found})


if __name__ == "__main__":
    main()
