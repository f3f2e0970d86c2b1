"""Every figure of the origin documents, beside what was measured. Needs pandas.

Features 1 to 8 are the original's results: BATCHED_OPTIMIZATION.md and KAGGLE_AST_FINAL_REPORT.md
in oluwafemidiakhoa/adaptive-sparse-training at 3e66290. From 15 on they are planned: what plans for
other projects expected of the same techniques, mostly without measuring.

A figure is "not run" while its file, or its entry there, is missing. Those that need a GPU are
measured on one by `python -m tests.benchmarks.gpu`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tests.benchmarks import readings as r
from tests.benchmarks.readings import BY_SAMPLE, GATE, Reader, Report

ROOT = Path(__file__).parents[2]
NOT_RUN, NEEDS_GPU = "not run", "needs a GPU"
CIFAR10 = "notebooks/results/01_cifar10_simple_cnn.json"
DIGITS = "notebooks/results/01_digits.json"
SWITCHES = "notebooks/results/03_switches.json"
RATIOS = "tests/benchmarks/results.json"
LATTICE = "tests/benchmarks/lattice.json"
LOGIC = "tests/benchmarks/logic_ca.json"
PUBLISHED = "tests/benchmarks/published.json"


def markdown(table: pd.DataFrame) -> str:
    """``table`` with its index as first column, as a Markdown table."""
    flat = table.reset_index()
    rows = [[str(value) for value in row] for row in flat.itertuples(index=False)]
    head = [str(name) for name in flat.columns]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Figure(NamedTuple):
    """One figure; ``read`` reads its measured value from the JSON file ``run``.

    ``other``: conditions of another measurement, by which values differ; 01 is notebook 01.
    """

    feature: int
    claim: str
    origin: str
    run: str = ""
    read: Reader | None = None
    other: str = ""


def table(root: Path = ROOT) -> pd.DataFrame:
    """One row per figure: its fields, with the measured value, n and the file it comes from."""
    reports: dict[str, Report] = {}
    rows = []
    for feature, claim, origin, run, read, other in FIGURES:
        path = root / run
        if run not in reports:
            reports[run] = json.loads(path.read_text()) if path.is_file() else {}
        measured, n, found = NOT_RUN if run else NEEDS_GPU, "", ""
        if reports[run] and read is not None:
            try:
                measured, count = read(reports[run])
                n, found = str(count), run
            except LookupError:
                pass  # the file has no such entry
        rows.append((feature, claim, origin, measured, n, found, other))
    columns = ["feature", "claim", "origin", "measured", "n", "run", "other conditions"]
    return pd.DataFrame(rows, columns=columns).set_index("feature")


_CHUNKS = r.ratio("at_once", "chunks of 16 / at once", "over chunks of 16")
_WORDS = r.ratio("words", "a sample / a batch", "decoding 16 samples")
_BF16 = r.ratio("precision", "fp32 / bf16", "a training pass")
_LOOP = r.ratio("at_once", "loop / at once", "over a loop over flows")

_PROGRESS = r.gain("progress drawn each step / 10 times an epoch", "batches of 32 digits")
_ATTENTION = r.gain("attention: math / flash kernel", "the kernel alone, forward and backward")
_THREADS = r.gain("one thread / one a CPU", "threads alone")
_STREAMING = r.gain("items one by one / mapped", "loading and training, SimpleCNN")
_MEMORY = r.gain("lattice memory: fp32 / bf16", "the peak of a training pass")

_CIFAR = "the original's: CIFAR-10, not comparable"
_BUSY = "01: score loss, single batches, a busy machine"
_SMALL = "04: 1 sample of 4x4 cells; here 16 of 12x12"
_STOP = "04: no stragglers; here 5 % of the flows, made to take 50 steps"

FIGURES: tuple[Figure, ...] = (
    Figure(1, "sample by sample, an epoch, ViT", "228 s"),
    Figure(1, "sample by sample, an epoch, CNN", "167 s", DIGITS, r.epoch(BY_SAMPLE), _CIFAR),
    Figure(2, "batched over sample by sample, ViT", "11-15x"),
    Figure(
        2,
        "batched over sample by sample, CNN",
        "14-20x",
        RATIOS,
        r.over_batched("digits_cnn"),
        _BUSY,
    ),
    Figure(2, "batched, same decisions", "same", DIGITS, r.same_decisions),
    Figure(2, "batched minus sample by sample, accuracy", "no loss", DIGITS, r.accuracy_gap),
    Figure(5, "activation rate, target 10 %", "9-12 %", CIFAR10, r.span("rate", ".1%")),
    Figure(5, "threshold", "0.42-0.58", CIFAR10, r.span("threshold", ".2f")),
    Figure(6, "epochs with loss 0", "never", CIFAR10, r.least_loss),
    Figure(7, "energy saved", "89.6 % (units)", CIFAR10, r.energy_saved),
    Figure(8, "validation accuracy", "61.2 %", CIFAR10, r.gate("val_accuracy", ".1%")),
    Figure(8, "activation rate", "10.4 %", CIFAR10, r.gate("rate", ".1%")),
    Figure(8, "an epoch", "15.9 s", CIFAR10, r.epoch(GATE)),
    Figure(8, "speed over dense", "11.5x", CIFAR10, r.over_dense, "01: DigitsCNN, digits"),
    Figure(15, "mixed precision, memory saved", "30-50 %", SWITCHES, r.memory("bf16")),
    Figure(15, "mixed precision, speed", "15-30 %", SWITCHES, r.switch("bf16")),
    Figure(
        16, "accumulation, effective batch", "2x", SWITCHES, r.effective("accumulation, 2 x 64")
    ),
    Figure(17, "progress 10 times an epoch, overhead", "5-10 % less", PUBLISHED, _PROGRESS),
    Figure(18, "loader settings, loading", "20-40 % faster", RATIOS, r.loading, "03: whole steps"),
    Figure(19, "torch.compile", "10-30 %", PUBLISHED, r.gain("eager / torch.compile", "SimpleCNN")),
    Figure(19, "channels_last", "10-30 %", SWITCHES, r.switch("channels_last")),
    Figure(19, "flash attention", "10-30 %", PUBLISHED, _ATTENTION),
    Figure(20, "cuDNN benchmark, threads, OMP", "10-20 %", PUBLISHED, _THREADS),
    Figure(21, "metrics only when needed", "10-20 %", SWITCHES, r.switch("metrics every 10")),
    Figure(22, "all switches together", "1.5-2x (CPU)", SWITCHES, r.switch("all that auto picks")),
    Figure(
        24,
        "samples in parallel, batch of 2",
        "1.5-2x (1.3-1.8x)",
        LOGIC,
        r.at_batch(2, "checkerboard"),
        "05: Life, 3x3 cells in 1 step; here 16x16 in 20",
    ),
    Figure(24, "parallel and sequential losses agree to", "1e-10", LOGIC, r.apart),
    Figure(24, "parallel and sequential logits agree to", "1e-8", LOGIC, r.logits_apart),
    Figure(25, "lattice, a batch before", "30 s", LATTICE, r.loop_seconds),
    Figure(26, "flows all at once", "5x", LATTICE, _CHUNKS, "04: 8x8 cells; here 12x12"),
    Figure(26, "adaptive stopping", "8.33x", LATTICE, r.stopping, _STOP),
    Figure(27, "text bridge batched", "16x", LATTICE, _WORDS),
    Figure(28, "streaming and prefetch", "2x", PUBLISHED, _STREAMING),
    Figure(29, "bf16 lattice, speed", "1.5x", LATTICE, _BF16),
    Figure(29, "bf16 lattice, memory", "half", PUBLISHED, _MEMORY),
    Figure(32, "lattice, all together, throughput", "40x", LATTICE, _LOOP, _SMALL),
    Figure(32, "lattice, all together, samples / s", "0.5 to 20", LATTICE, r.samples_a_second),
)
