"""Every figure of the origin documents, beside what was measured.

Down to "speed over dense" they are the original's results: BATCHED_OPTIMIZATION.md and
KAGGLE_AST_FINAL_REPORT.md in oluwafemidiakhoa/adaptive-sparse-training at 3e66290. The others are
planned: what plans for other projects expected of the same techniques, mostly without measuring.

A figure is "not run" while its file, or its entry there, is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import pandas as pd

from astkit.comparison.statistics import paired_difference
from astkit.files import read_json
from astkit.profiling import Timings
from benchmarks.bench import ROOT

NOT_RUN = "not run"
CIFAR10 = "notebooks/results/01_cifar10_simple_cnn.json"
DIGITS = "notebooks/results/01_digits.json"
SWITCHES = "notebooks/results/03_switches.json"
RATIOS = "benchmarks/results.json"
LATTICE = "benchmarks/lattice.json"
LOGIC = "benchmarks/logic_ca.json"
PUBLISHED = "benchmarks/published.json"
GPU = "notebooks/results/gpu.json"
GPU_EARLIER = "benchmarks/gpu_origin.json"
GATE, BY_SAMPLE = "batched gate", "sample by sample, per sample"
RENAMED = {"sample by sample, per batch": "one by one", BY_SAMPLE: "one by one, update each"}
"""What notebook 01 now calls the methods of results that were measured before."""

Report = Mapping[str, Any]
Measured = tuple[str, int]
"""A measured value as a text, and the number of runs or rounds behind it."""


class Figure(NamedTuple):
    """One figure; ``read`` reads its measured value from the JSON file ``run``.

    ``read`` raises ``LookupError`` where the file has no such entry. ``other``: conditions of
    another measurement, by which values differ; 01 is notebook 01.
    """

    claim: str
    origin: str
    run: str
    read: Callable[[Report], Measured]
    other: str = ""


def table(root: Path = ROOT) -> pd.DataFrame:
    """One row per figure: its fields, with the measured value, n and the file it comes from."""
    rows = []
    for claim, origin, run, read, other in FIGURES:
        measured, n, found = NOT_RUN, "", ""
        try:
            measured, count = read(read_json(root / run))
            n, found = str(count), run
        except LookupError:
            pass  # there is no such file, or it has no such entry
        rows.append((claim, origin, measured, n, found, other))
    columns = ["claim", "origin", "measured", "n", "run", "other conditions"]
    return pd.DataFrame(rows, columns=columns).set_index("claim")


def device(report: Report) -> str:
    """The device of a report: its GPU by name, or "CPU"."""
    return str([*report["stamp"]["devices"], "CPU"][0])


def _arm(report: Report, name: str) -> list[dict[str, Any]]:
    names = (name, RENAMED.get(name))
    results = [each for each in report["results"] if each["arm"] in names]
    if not results:
        raise LookupError(name)
    return results


def _entry(rows: Any, key: str, value: str | int) -> Any:
    return [row for row in rows if row[key] == value][0]  # noqa: RUF015


def _interval(found: Report) -> str:
    return f"{found['median']:.3g} x [{found['low']:.3g}, {found['high']:.3g}]"


def over_batched(report: Report) -> Measured:
    """The sample-by-sample loop over the batched gate."""
    found = _entry(report["figures"], "name", "sample by sample (per_sample) / batched")
    return f"{_interval(found)}, digits_cnn, digits, {device(report)}", found["n"]


def vit_over_batched(report: Report) -> Measured:
    """The sample-by-sample loop over the batched gate, of the original's vision transformer."""
    ratio = report["parts"]["by_sample"]["ratio"]
    return f"{_interval(ratio)}, simplified_vit, {device(report)}", ratio["n"]


def vit_epoch(report: Report) -> Measured:
    """Seconds of an epoch of CIFAR-10 sample by sample, from the median batch."""
    part = report["parts"]["by_sample"]
    seconds, size = part["seconds"]["sample by sample"], part["epoch"]
    text = f"{seconds * size:.3g} s, {size} times the median batch, {device(report)}"
    return text, part["ratio"]["n"]


def joules_saved(said: str, report: Report) -> Measured:
    """Share of the board's joules that the gate saves in a batch, by network."""
    found = {
        name.split(", ")[1]: part["saved"]
        for name, part in report["parts"].items()
        if name.startswith("joules") and "saved" in part
    }
    shares = ", ".join(f"{saved:.0%} {name}" for name, saved in found.items())
    return f"{shares}, {said}, {device(report)}", 1


def accuracy_gap(report: Report) -> Measured:
    """Test accuracy of the batched gate minus that of the sample-by-sample loop, paired by seed."""
    arms = (_arm(report, GATE), _arm(report, BY_SAMPLE))
    gap = paired_difference(*({run["seed"]: run["test_accuracy"] for run in arm} for arm in arms))
    where = f"{report['settings']['model']}, {report['settings']['dataset']}"
    return f"{gap.mean:+.2%} [{gap.low:+.2%}, {gap.high:+.2%}], {where}", gap.n


def same_decisions(report: Report) -> Measured:
    """In how many runs both ways trained as many samples, under either rule of stepping."""
    names = (GATE, "sample by sample, per batch", BY_SAMPLE)
    trained = [{run["seed"]: run["samples_trained"] for run in _arm(report, x)} for x in names]
    seeds = set.intersection(*map(set, trained))
    same = [sum(trained[0][seed] == other[seed] for seed in seeds) for other in trained[1:]]
    text = f"as many trained in {same[0]} of {len(seeds)} runs with a step a batch"
    return f"{text}, {same[1]} with a step a sample", len(seeds)


def span(key: str, form: str, report: Report) -> Measured:
    """Smallest and largest mean of a pass in the gate's runs."""
    runs = _arm(report, GATE)
    values = [step[key] for run in runs for step in run["steps"] if key in step]
    if not values:
        raise LookupError(key)
    return f"{min(values):{form}} to {max(values):{form}}, means of passes", len(runs)


def least_loss(report: Report) -> Measured:
    """The smallest mean loss of a pass in the gate's runs."""
    runs = _arm(report, GATE)
    least = min(step["loss"] for run in runs for step in run["steps"])
    return f"least loss of a pass {least:.2f}", len(runs)


def gate(key: str, report: Report) -> Measured:
    """The mean of a value of the gate's runs."""
    runs = _arm(report, GATE)
    return f"{mean(run[key] for run in runs):.1%}", len(runs)


def epoch(arm: str, report: Report) -> Measured:
    """Seconds per epoch of an arm."""
    runs, settings = _arm(report, arm), report["settings"]
    seconds = mean(run["seconds"] for run in runs) / settings["epochs"]
    where = f"{settings['model']}, {settings['dataset']}, {device(report)}"
    return f"{seconds:.3g} s, {where}, {report['stamp']['threads']} threads", len(runs)


def energy_saved(report: Report) -> Measured:
    """Share of the original's energy units that the gate saves."""
    arms = (_arm(report, GATE), _arm(report, "dense"))
    gate, dense = (mean(run["origin_energy_units"] for run in arm) for arm in arms)
    return f"joules not measured ({1 - gate / dense:.1%} of its units)", len(arms[0])


def over_dense(report: Report) -> Measured:
    """Speed of the gate over dense training, a batch: arms of whole runs do not take turns."""
    row = _entry(report.get("batches", ()), "arm", GATE)
    low, high = row["speedup_low"], row["speedup_high"]
    text = f"{row['speedup']:.2f} x [{low:.2f}, {high:.2f}] a batch, {device(report)}"
    return text, row["rounds"]


def _bench(dense: Report) -> str:
    return f"{dense['bench']['model']}, {dense['bench']['device'].upper()}"


def switch(name: str, report: Report) -> Measured:
    """Seconds of the plain arm over those of the switch ``name``, dense training."""
    dense = report["dense"]
    plain = dense["baseline"]
    arms = {arm: tuple(dense["seconds"][arm]) for arm in (plain, name)}
    ratio = Timings(arms, plain).ratio(plain, name)
    return f"{_interval(vars(ratio))}, {_bench(dense)}", ratio.n


def memory(name: str, report: Report) -> Measured:
    """Reduction of peak memory by the switch ``name``, relative to the plain arm."""
    dense = report["dense"]
    plain, low = (dense["reports"][arm]["memory"] for arm in (dense["baseline"], name))
    if plain is None or low is None:
        raise LookupError(name)
    return f"{1 - low / plain:.0%}, {_bench(dense)}", 1


def effective(name: str, report: Report) -> Measured:
    """Samples per step over samples loaded at a time, with the switch ``name``."""
    arm = report["dense"]["reports"][name]
    loaded, total = arm["batch_size"], arm["effective_batch_size"]
    return f"{total / loaded:g} x ({loaded} loaded, {total} a step)", 1


def loading(report: Report) -> Measured:
    """Gain of workers, and of data on the device, over a DataLoader without workers."""
    name = "DataLoader over torchvision transforms / device-resident data"
    found = _entry(report["figures"], "name", name)
    best, seconds = found["best"], found["seconds"]
    workers = seconds["DataLoader, 0 workers"] / seconds[best]
    said = f"{best.removeprefix('DataLoader, ')} {workers:.2f} x; resident {_interval(found)}"
    return f"{said}; {device(report)}", found["n"]


def gain(name: str, said: str, report: Report) -> Measured:
    """The ratio ``name`` of published.json."""
    found = _entry(report["figures"], "name", name)
    return f"{_interval(found)} {said}, {device(report)}", found["n"]


def ratio(part: str, name: str, said: str, report: Report) -> Measured:
    """A ratio of interleaved arms in a part of lattice.json."""
    found = report[part]["ratios"][name]
    return f"{_interval(found)} {said}, {device(report)}", found["n"]


def at_two(report: Report) -> Measured:
    """The loop over samples, over the batch of two at once, of the logic automaton."""
    batch = _entry(report["checkerboard"], "batch", 2)["ratios"]["batch"]
    return f"{_interval(batch)}, checkerboard, {device(report)}", batch["n"]


def apart(report: Report) -> Measured:
    """Largest relative difference of losses and gradients among the four ways."""
    found = [*report["life"], *report["checkerboard"]]
    most = max(value for each in found for value in each["difference"].values())
    return f"{most:.0e}, gradients too, of the largest", len(found)


def logits_apart(report: Report) -> Measured:
    """Largest difference of logits after 5 updates."""
    return f"{report['updates_apart']:.0e} after 5 updates", 1


def stopping(report: Report) -> Measured:
    """Speed and error of early stopping of lattices."""
    said = f"with the surface off by {report['early_stop']['surface_error']:.2%}"
    return ratio("early_stop", "all steps / early stop", said, report)


def loop_seconds(report: Report) -> Measured:
    """A batch of the lattice, flow by flow."""
    case = report["at_once"]
    seconds, size = case["seconds"]["loop"]["loop"], case["config"]
    lattice = f"{size['width']}x{size['height']}x{size['depth']}"
    text = f"{median(seconds):.3g} s, {case['batch']} samples, {lattice}, {device(report)}"
    return text, len(seconds)


def samples_a_second(report: Report) -> Measured:
    """Of the lattice: flow by flow, and all flows at once."""
    case, seconds = report["at_once"], report["at_once"]["seconds"]["loop"]
    slow, fast = (case["batch"] / median(seconds[arm]) for arm in ("loop", "at once"))
    return f"{slow:.2g} to {fast:.3g}, {device(report)}", len(seconds["loop"])


_CHUNKS = partial(ratio, "at_once", "chunks of 16 / at once", "over chunks of 16")
_WORDS = partial(ratio, "words", "a sample / a batch", "decoding 16 samples")
_BF16 = partial(ratio, "precision", "fp32 / bf16", "a training pass")
_LOOP = partial(ratio, "at_once", "loop / at once", "over a loop over flows")

_PROGRESS = partial(gain, "progress drawn each step / 10 times an epoch", "batches of 32 digits")
_COMPILE = partial(gain, "eager / torch.compile", "SimpleCNN")
_ATTENTION = partial(
    gain, "attention: math / flash kernel", "the kernel alone, forward and backward"
)
_THREADS = partial(gain, "one thread / one a CPU", "threads alone")
_STREAMING = partial(gain, "items one by one / mapped", "loading and training, SimpleCNN")
_MEMORY = partial(gain, "lattice memory: fp32 / bf16", "the peak of a training pass")

_CIFAR = "the original's: CIFAR-10, not comparable"
_BUSY = "01: score loss, single batches, a busy machine"
_BOARD = "05: Life, 3x3 cells in 1 step; here 16x16 in 20"
_SMALL = "04: 1 sample of 4x4 cells; here 16 of 12x12"
_STOP = "04: no stragglers; here 5 % of the flows, made to take 50 steps"
_JOULES = partial(joules_saved, "a batch, both fast")
_JOULES_PLAIN = partial(joules_saved, "a batch, both plain")
_EVERY = partial(switch, "all that auto picks")
_EFFECTIVE = partial(effective, "accumulation, 2 x 64")

FIGURES: tuple[Figure, ...] = (
    Figure("sample by sample, an epoch, ViT", "228 s", GPU_EARLIER, vit_epoch),
    Figure("sample by sample, an epoch, CNN", "167 s", DIGITS, partial(epoch, BY_SAMPLE), _CIFAR),
    Figure("batched over sample by sample, ViT", "11-15x", GPU_EARLIER, vit_over_batched),
    Figure("batched over sample by sample, CNN", "14-20x", RATIOS, over_batched, _BUSY),
    Figure("batched, same decisions", "same", DIGITS, same_decisions),
    Figure("batched minus sample by sample, accuracy", "no loss", DIGITS, accuracy_gap),
    Figure("activation rate, target 10 %", "9-12 %", CIFAR10, partial(span, "rate", ".1%")),
    Figure("threshold", "0.42-0.58", CIFAR10, partial(span, "threshold", ".2f")),
    Figure("epochs with loss 0", "never", CIFAR10, least_loss),
    Figure("energy saved", "89.6 % (units)", CIFAR10, energy_saved),
    Figure("energy saved, joules, 512 rows", "not measured", GPU, _JOULES),
    Figure("energy saved, joules, 128 rows", "not measured", GPU_EARLIER, _JOULES_PLAIN),
    Figure("validation accuracy", "61.2 %", CIFAR10, partial(gate, "val_accuracy")),
    Figure("activation rate", "10.4 %", CIFAR10, partial(gate, "rate")),
    Figure("an epoch", "15.9 s", CIFAR10, partial(epoch, GATE)),
    Figure("speed over dense", "11.5x", CIFAR10, over_dense, "01: DigitsCNN, digits"),
    Figure("mixed precision, memory saved", "30-50 %", SWITCHES, partial(memory, "bf16")),
    Figure("mixed precision, speed", "15-30 %", SWITCHES, partial(switch, "bf16")),
    Figure("accumulation, effective batch", "2x", SWITCHES, _EFFECTIVE),
    Figure("progress 10 times an epoch, overhead", "5-10 % less", PUBLISHED, _PROGRESS),
    Figure("loader settings, loading", "20-40 % faster", RATIOS, loading, "03: whole steps"),
    Figure("torch.compile", "10-30 %", PUBLISHED, _COMPILE),
    Figure("channels_last", "10-30 %", SWITCHES, partial(switch, "channels_last")),
    Figure("flash attention", "10-30 %", PUBLISHED, _ATTENTION),
    Figure("cuDNN benchmark, threads, OMP", "10-20 %", PUBLISHED, _THREADS),
    Figure("metrics only when needed", "10-20 %", SWITCHES, partial(switch, "metrics every 10")),
    Figure("all switches together", "1.5-2x (CPU)", SWITCHES, _EVERY),
    Figure("samples in parallel, batch of 2", "1.5-2x (1.3-1.8x)", LOGIC, at_two, _BOARD),
    Figure("parallel and sequential losses agree to", "1e-10", LOGIC, apart),
    Figure("parallel and sequential logits agree to", "1e-8", LOGIC, logits_apart),
    Figure("lattice, a batch before", "30 s", LATTICE, loop_seconds),
    Figure("flows all at once", "5x", LATTICE, _CHUNKS, "04: 8x8 cells; here 12x12"),
    Figure("adaptive stopping", "8.33x", LATTICE, stopping, _STOP),
    Figure("text bridge batched", "16x", LATTICE, _WORDS),
    Figure("streaming and prefetch", "2x", PUBLISHED, _STREAMING),
    Figure("bf16 lattice, speed", "1.5x", LATTICE, _BF16),
    Figure("bf16 lattice, memory", "half", PUBLISHED, _MEMORY),
    Figure("lattice, all together, throughput", "40x", LATTICE, _LOOP, _SMALL),
    Figure("lattice, all together, samples / s", "0.5 to 20", LATTICE, samples_a_second),
)
