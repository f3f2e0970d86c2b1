"""Every published figure that the kit takes up, beside what was measured. Needs pandas.

Features 1 to 8 are the origin's own: BATCHED_OPTIMIZATION.md and KAGGLE_AST_FINAL_REPORT.md in
oluwafemidiakhoa/adaptive-sparse-training at 3e66290. From 15 on they are what plans for other
projects expected of the same techniques, mostly without measuring.

A figure is "not run" while the file that it would come from, or its entry there, is absent; add a
``read`` function and its file once there is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pandas as pd

from astkit.profiling import Comparison
from astkit.runs import claims, tables

ROOT = Path(__file__).parents[2]
NOT_RUN = "not run"
CIFAR10 = "notebooks/results/01_cifar10_simple_cnn.json"
DIGITS = "notebooks/results/01_digits.json"
SWITCHES = "notebooks/results/03_switches.json"
RATIOS = "tests/benchmarks/results.json"
SPEED = "tests/benchmarks/speed.json"
GATE, BY_SAMPLE = "batched gate", "sample by sample, per sample"

Report = Mapping[str, Any]


class Measured(NamedTuple):
    """What was measured, with its interval where it has one, and on how many runs or rounds."""

    text: str
    n: int


@dataclass(frozen=True)
class Figure:
    """One published figure; ``read`` takes its measured value from the JSON file ``run``.

    ``run`` is a path in the checkout. ``read`` gives ``None`` where the file has no such entry.
    """

    feature: int
    claim: str
    origin: str
    run: str = ""
    read: Callable[[Report], Measured | None] | None = None


def table(root: Path = ROOT) -> pd.DataFrame:
    """One row a figure: feature, claim, origin, measured, n, and the file it comes from."""
    reports: dict[str, Report | None] = {}
    rows = []
    for figure in FIGURES:
        if figure.run not in reports:
            path = root / figure.run
            reports[figure.run] = json.loads(path.read_text()) if path.is_file() else None
        report = reports[figure.run]
        found = None if report is None or figure.read is None else figure.read(report)
        rows.append(
            {
                "feature": figure.feature,
                "claim": figure.claim,
                "origin": figure.origin,
                "measured": found.text if found else NOT_RUN,
                "n": str(found.n) if found else "",
                "run": figure.run if found else "",
            }
        )
    return pd.DataFrame(rows).set_index("feature")


def device(report: Report) -> str:
    """The device of a report: its GPU by name, or "CPU"."""
    devices = report["stamp"]["devices"]
    return str(devices[0]) if devices else "CPU"


def _entry(rows: Sequence[Report], key: str, value: str) -> Report | None:
    return next((row for row in rows if row[key] == value), None)


def _arms(report: Report, *names: str) -> list[list[claims.Result]] | None:
    """The unsteered results of the arms ``names``; ``None`` unless there are some of each."""
    results = tables.unsteered(report["results"])
    found = [[result for result in results if result["arm"] == name] for name in names]
    return found if all(found) else None


def _interval(found: Report) -> str:
    return f"{found['median']:.3g} x [{found['low']:.3g}, {found['high']:.3g}]"


def _over_batched(network: str, report: Report) -> Measured | None:
    found = _entry(report["figures"], "name", "sample by sample (per_sample) / batched")
    if found is None or network not in found["meaning"]:
        return None
    return Measured(f"{_interval(found)}, {network}, digits, {device(report)}", found["n"])


def _accuracy_gap(report: Report) -> Measured | None:
    if _arms(report, GATE, BY_SAMPLE) is None:
        return None
    gap = tables.difference(report["results"], GATE, BY_SAMPLE)
    settings = report["settings"]
    where = f"{settings['model']}, {settings['dataset']}"
    shown = f"{gap.mean:+.2%} [{gap.low:+.2%}, {gap.high:+.2%}]"
    return Measured(f"{shown}, {where}", gap.n)


def _same_decisions(report: Report) -> Measured | None:
    """In how many runs both paths trained as many samples, under either rule of stepping."""
    found = _arms(report, GATE, "sample by sample, per batch", BY_SAMPLE)
    if found is None:
        return None
    trained = [{run["seed"]: run["samples_trained"] for run in runs} for runs in found]
    seeds = set.intersection(*map(set, trained))
    same = [sum(trained[0][seed] == other[seed] for seed in seeds) for other in trained[1:]]
    text = f"as many trained in {same[0]} of {len(seeds)} runs with a step a batch"
    return Measured(f"{text}, {same[1]} with a step a sample", len(seeds))


def _span(key: str, form: str, report: Report) -> Measured | None:
    """Smallest and largest mean of a pass in the gate's runs."""
    found = _arms(report, GATE)
    if found is None:
        return None
    values = [step[key] for run in found[0] for step in run["steps"] if key in step]
    if not values:
        return None
    low, high = format(min(values), form), format(max(values), form)
    return Measured(f"{low} to {high}, means of passes", len(found[0]))


def _least_loss(report: Report) -> Measured | None:
    found = _arms(report, GATE)
    if found is None:
        return None
    least = min(step["loss"] for run in found[0] for step in run["steps"])
    return Measured(f"least loss of a pass {least:.2f}", len(found[0]))


def _gate(key: str, form: str, report: Report) -> Measured | None:
    found = _arms(report, GATE)
    if found is None:
        return None
    return Measured(format(mean(run[key] for run in found[0]), form), len(found[0]))


def _epoch(arm: str, report: Report) -> Measured | None:
    found = _arms(report, arm)
    if found is None:
        return None
    settings, threads = report["settings"], report["stamp"]["threads"]
    seconds = mean(run["seconds"] / run["epochs"][-1]["epoch"] for run in found[0])
    where = f"{settings['model']}, {settings['dataset']}, {device(report)}, {threads} threads"
    return Measured(f"{seconds:.3g} s, {where}", len(found[0]))


def _claimed(claim: str, report: Report) -> Measured | None:
    """A row of `claims.table`."""
    row = claims.table(report).loc[claim]
    text = str(row["measured"])
    return None if text == NOT_RUN else Measured(text, int(str(row["n"])))


def _over_dense(report: Report) -> Measured | None:
    whole = _claimed("speed over dense, whole run", report)
    batch = _claimed("speed over dense, a batch, interleaved", report)
    if batch is None or whole is None:
        return whole
    text = f"{batch.text} a batch; {whole.text} the run (n = {whole.n}); {device(report)}"
    return Measured(text, batch.n)


def _switch(name: str, report: Report) -> Measured | None:
    """Seconds of the plain arm over those of the switch ``name``, dense training."""
    found = _timed(name, report)
    if found is None:
        return None
    ratio = found.ratio(found.baseline, name)
    bench = report["dense"]["bench"]
    where = f"{bench['model']}, {bench['device'].upper()}"
    return Measured(f"{_interval(vars(ratio))}, {where}", ratio.n)


def _timed(name: str, report: Report) -> Comparison | None:
    dense = report["dense"]
    if name not in dense["seconds"]:
        return None
    seconds = {arm: tuple(values) for arm, values in dense["seconds"].items()}
    return Comparison(seconds, dense["baseline"])


def _memory(name: str, report: Report) -> Measured | None:
    """Peak memory of the switch ``name`` below the plain arm's."""
    dense = report["dense"]
    arms = [dense["reports"].get(arm) for arm in (dense["baseline"], name)]
    peaks = [arm["memory"] for arm in arms if arm is not None and arm["memory"] is not None]
    if len(peaks) < 2:
        return None
    where = f"{dense['bench']['model']}, {dense['bench']['device'].upper()}"
    return Measured(f"{1 - peaks[1] / peaks[0]:.0%}, {where}", 1)


def _effective(name: str, report: Report) -> Measured | None:
    arm = report["dense"]["reports"].get(name)
    if arm is None:
        return None
    loaded, effective = arm["batch_size"], arm["effective_batch_size"]
    return Measured(f"{effective / loaded:g} x ({loaded} loaded, {effective} a step)", 1)


def _loading(report: Report) -> Measured | None:
    ratio = "DataLoader over torchvision transforms / device-resident data"
    found = _entry(report["figures"], "name", ratio)
    if found is None:
        return None
    best, seconds = found["best"], found["seconds"]
    workers = seconds["DataLoader, 0 workers"] / seconds[best]
    said = f"{best.removeprefix('DataLoader, ')} {workers:.2f} x; resident {_interval(found)}"
    return Measured(f"{said}; {device(report)}", found["n"])


def _together(report: Report) -> Measured | None:
    found = _entry(report.get("speed", ()), "kind", "dense")
    if found is None:
        return None
    text = f"{_interval(found['speed'])}, {found['model']}, {device(report)}"
    return Measured(text, found["speed"]["n"])


FIGURES: tuple[Figure, ...] = (
    Figure(1, "sample by sample, an epoch, ViT", "228 s"),
    Figure(1, "sample by sample, an epoch, CNN", "167 s", DIGITS, partial(_epoch, BY_SAMPLE)),
    Figure(2, "batched over sample by sample, ViT", "11-15x"),
    Figure(
        2,
        "batched over sample by sample, CNN",
        "14-20x",
        RATIOS,
        partial(_over_batched, "digits_cnn"),
    ),
    Figure(2, "batched, same decisions", "same", DIGITS, _same_decisions),
    Figure(2, "batched minus sample by sample, accuracy", "no loss", DIGITS, _accuracy_gap),
    Figure(5, "activation rate, target 10 %", "9-12 %", CIFAR10, partial(_span, "rate", ".1%")),
    Figure(5, "threshold", "0.42-0.58", CIFAR10, partial(_span, "threshold", ".2f")),
    Figure(6, "epochs with loss 0", "never", CIFAR10, _least_loss),
    Figure(7, "energy saved", "89.6 % (units)", CIFAR10, partial(_claimed, "energy saved")),
    Figure(8, "validation accuracy", "61.2 %", CIFAR10, partial(_gate, "val_accuracy", ".1%")),
    Figure(8, "activation rate", "10.4 %", CIFAR10, partial(_gate, "rate", ".1%")),
    Figure(8, "an epoch", "15.9 s", CIFAR10, partial(_epoch, GATE)),
    Figure(8, "speed over dense", "11.5x", CIFAR10, _over_dense),
    Figure(15, "mixed precision, memory saved", "30-50 %", SWITCHES, partial(_memory, "bf16")),
    Figure(15, "mixed precision, speed", "15-30 %", SWITCHES, partial(_switch, "bf16")),
    Figure(
        16,
        "accumulation, effective batch",
        "2x",
        SWITCHES,
        partial(_effective, "accumulation, 2 x 64"),
    ),
    Figure(17, "progress 10 times an epoch, overhead", "5-10 % less"),
    Figure(18, "loader settings, loading", "20-40 % faster", RATIOS, _loading),
    Figure(19, "torch.compile", "10-30 %", SWITCHES, partial(_switch, "compile")),
    Figure(19, "channels_last", "10-30 %", SWITCHES, partial(_switch, "channels_last")),
    Figure(19, "flash attention", "10-30 %"),
    Figure(20, "cuDNN benchmark, threads, OMP", "10-20 %"),
    Figure(
        21, "metrics only when needed", "10-20 %", SWITCHES, partial(_switch, "metrics every 10")
    ),
    Figure(22, "all switches together", "1.5-2x (CPU)", SPEED, _together),
    Figure(24, "samples in parallel, batch of 2", "1.5-2x (1.3-1.8x)"),
    Figure(24, "parallel and sequential losses agree to", "1e-10"),
    Figure(24, "parallel and sequential logits agree to", "1e-8"),
    Figure(25, "lattice, a batch before", "30 s"),
    Figure(26, "flows all at once", "5x"),
    Figure(26, "adaptive stopping", "8.33x"),
    Figure(27, "text bridge batched", "16x"),
    Figure(28, "streaming and prefetch", "2x"),
    Figure(29, "bf16 lattice, speed", "1.5x"),
    Figure(29, "bf16 lattice, memory", "half"),
    Figure(32, "lattice, all together, throughput", "40x"),
    Figure(32, "lattice, all together, samples / s", "0.5 to 20"),
)
