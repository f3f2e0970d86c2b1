"""Every published figure that the kit takes up, beside what was measured. Needs pandas.

Features 1 to 8 are the origin's own: BATCHED_OPTIMIZATION.md and KAGGLE_AST_FINAL_REPORT.md in
oluwafemidiakhoa/adaptive-sparse-training at 3e66290. From 15 on they are what plans for other
projects expected of the same techniques, mostly without measuring.

A figure is "not run" while the file that it would come from, or its entry there, is absent; give it
a reader from `tests.benchmarks.readings` and its file once there is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from tests.benchmarks import readings
from tests.benchmarks.readings import BY_SAMPLE, GATE, NOT_RUN, Measured, Report

ROOT = Path(__file__).parents[2]
CIFAR10 = "notebooks/results/01_cifar10_simple_cnn.json"
DIGITS = "notebooks/results/01_digits.json"
SWITCHES = "notebooks/results/03_switches.json"
RATIOS = "tests/benchmarks/results.json"
SPEED = "tests/benchmarks/speed.json"
LATTICE = "tests/benchmarks/lattice.json"
LOGIC = "tests/benchmarks/logic_ca.json"


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


FIGURES: tuple[Figure, ...] = (
    Figure(1, "sample by sample, an epoch, ViT", "228 s"),
    Figure(
        1, "sample by sample, an epoch, CNN", "167 s", DIGITS, partial(readings.epoch, BY_SAMPLE)
    ),
    Figure(2, "batched over sample by sample, ViT", "11-15x"),
    Figure(
        2,
        "batched over sample by sample, CNN",
        "14-20x",
        RATIOS,
        partial(readings.over_batched, "digits_cnn"),
    ),
    Figure(2, "batched, same decisions", "same", DIGITS, readings.same_decisions),
    Figure(2, "batched minus sample by sample, accuracy", "no loss", DIGITS, readings.accuracy_gap),
    Figure(
        5, "activation rate, target 10 %", "9-12 %", CIFAR10, partial(readings.span, "rate", ".1%")
    ),
    Figure(5, "threshold", "0.42-0.58", CIFAR10, partial(readings.span, "threshold", ".2f")),
    Figure(6, "epochs with loss 0", "never", CIFAR10, readings.least_loss),
    Figure(7, "energy saved", "89.6 % (units)", CIFAR10, partial(readings.claimed, "energy saved")),
    Figure(
        8, "validation accuracy", "61.2 %", CIFAR10, partial(readings.gate, "val_accuracy", ".1%")
    ),
    Figure(8, "activation rate", "10.4 %", CIFAR10, partial(readings.gate, "rate", ".1%")),
    Figure(8, "an epoch", "15.9 s", CIFAR10, partial(readings.epoch, GATE)),
    Figure(8, "speed over dense", "11.5x", CIFAR10, readings.over_dense),
    Figure(
        15, "mixed precision, memory saved", "30-50 %", SWITCHES, partial(readings.memory, "bf16")
    ),
    Figure(15, "mixed precision, speed", "15-30 %", SWITCHES, partial(readings.switch, "bf16")),
    Figure(
        16,
        "accumulation, effective batch",
        "2x",
        SWITCHES,
        partial(readings.effective, "accumulation, 2 x 64"),
    ),
    Figure(17, "progress 10 times an epoch, overhead", "5-10 % less"),
    Figure(18, "loader settings, loading", "20-40 % faster", RATIOS, readings.loading),
    Figure(19, "torch.compile", "10-30 %", SWITCHES, partial(readings.switch, "compile")),
    Figure(19, "channels_last", "10-30 %", SWITCHES, partial(readings.switch, "channels_last")),
    Figure(19, "flash attention", "10-30 %"),
    Figure(20, "cuDNN benchmark, threads, OMP", "10-20 %"),
    Figure(
        21,
        "metrics only when needed",
        "10-20 %",
        SWITCHES,
        partial(readings.switch, "metrics every 10"),
    ),
    Figure(22, "all switches together", "1.5-2x (CPU)", SPEED, readings.together),
    Figure(
        24,
        "samples in parallel, batch of 2",
        "1.5-2x (1.3-1.8x)",
        LOGIC,
        partial(readings.at_batch, 2, "checkerboard"),
    ),
    Figure(24, "parallel and sequential losses agree to", "1e-10", LOGIC, readings.apart),
    Figure(24, "parallel and sequential logits agree to", "1e-8", LOGIC, readings.logits_apart),
    Figure(25, "lattice, a batch before", "30 s", LATTICE, readings.loop_seconds),
    Figure(
        26,
        "flows all at once",
        "5x",
        LATTICE,
        partial(readings.ratio, "at_once", "chunks of 16 / at once", "over chunks of 16"),
    ),
    Figure(26, "adaptive stopping", "8.33x", LATTICE, readings.stopping),
    Figure(
        27,
        "text bridge batched",
        "16x",
        LATTICE,
        partial(readings.ratio, "words", "a sample / a batch", "decoding 16 samples"),
    ),
    Figure(28, "streaming and prefetch", "2x"),
    Figure(
        29,
        "bf16 lattice, speed",
        "1.5x",
        LATTICE,
        partial(readings.ratio, "precision", "fp32 / bf16", "a training pass"),
    ),
    Figure(29, "bf16 lattice, memory", "half"),
    Figure(
        32,
        "lattice, all together, throughput",
        "40x",
        LATTICE,
        partial(readings.ratio, "at_once", "loop / at once", "over a loop over flows"),
    ),
    Figure(
        32, "lattice, all together, samples / s", "0.5 to 20", LATTICE, readings.samples_a_second
    ),
)
