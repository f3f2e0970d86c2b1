"""How a measured value of a published figure is read from the JSON file that holds it.

Each reader takes the file's content, and gives ``None`` where that has no such entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from astkit.profiling import Timings
from astkit.runs import claims, tables

NOT_RUN = "not run"
GATE, BY_SAMPLE = "batched gate", "sample by sample, per sample"

Report = Mapping[str, Any]


class Measured(NamedTuple):
    """What was measured, with its interval where it has one, and on how many runs or rounds."""

    text: str
    n: int


def device(report: Report) -> str:
    """The device of a report: its GPU by name, or "CPU"."""
    devices = report["stamp"]["devices"]
    return str(devices[0]) if devices else "CPU"


def _entry(rows: Sequence[Report], key: str, value: str | int) -> Report | None:
    return next((row for row in rows if row[key] == value), None)


def _arms(report: Report, *names: str) -> list[list[claims.Result]] | None:
    """The unsteered results of the arms ``names``; ``None`` unless there are some of each."""
    results = tables.unsteered(report["results"])
    found = [[result for result in results if result["arm"] == name] for name in names]
    return found if all(found) else None


def _interval(found: Report) -> str:
    return f"{found['median']:.3g} x [{found['low']:.3g}, {found['high']:.3g}]"


def over_batched(network: str, report: Report) -> Measured | None:
    """The origin's loop over the batched gate, on ``network``."""
    found = _entry(report["figures"], "name", "sample by sample (per_sample) / batched")
    if found is None or network not in found["meaning"]:
        return None
    return Measured(f"{_interval(found)}, {network}, digits, {device(report)}", found["n"])


def accuracy_gap(report: Report) -> Measured | None:
    """Test accuracy of the batched gate minus that of the origin's loop, paired by seed."""
    if _arms(report, GATE, BY_SAMPLE) is None:
        return None
    gap = tables.difference(report["results"], GATE, BY_SAMPLE)
    settings = report["settings"]
    where = f"{settings['model']}, {settings['dataset']}"
    return Measured(f"{gap.mean:+.2%} [{gap.low:+.2%}, {gap.high:+.2%}], {where}", gap.n)


def same_decisions(report: Report) -> Measured | None:
    """In how many runs both paths trained as many samples, under either rule of stepping."""
    found = _arms(report, GATE, "sample by sample, per batch", BY_SAMPLE)
    if found is None:
        return None
    trained = [{run["seed"]: run["samples_trained"] for run in runs} for runs in found]
    seeds = set.intersection(*map(set, trained))
    same = [sum(trained[0][seed] == other[seed] for seed in seeds) for other in trained[1:]]
    text = f"as many trained in {same[0]} of {len(seeds)} runs with a step a batch"
    return Measured(f"{text}, {same[1]} with a step a sample", len(seeds))


def span(key: str, form: str, report: Report) -> Measured | None:
    """Smallest and largest mean of a pass in the gate's runs."""
    found = _arms(report, GATE)
    if found is None:
        return None
    values = [step[key] for run in found[0] for step in run["steps"] if key in step]
    if not values:
        return None
    low, high = format(min(values), form), format(max(values), form)
    return Measured(f"{low} to {high}, means of passes", len(found[0]))


def least_loss(report: Report) -> Measured | None:
    """The smallest mean loss of a pass in the gate's runs."""
    found = _arms(report, GATE)
    if found is None:
        return None
    least = min(step["loss"] for run in found[0] for step in run["steps"])
    return Measured(f"least loss of a pass {least:.2f}", len(found[0]))


def gate(key: str, form: str, report: Report) -> Measured | None:
    """A value of the gate's runs, their mean."""
    found = _arms(report, GATE)
    if found is None:
        return None
    return Measured(format(mean(run[key] for run in found[0]), form), len(found[0]))


def epoch(arm: str, report: Report) -> Measured | None:
    """Seconds a pass of an arm."""
    found = _arms(report, arm)
    if found is None:
        return None
    settings, threads = report["settings"], report["stamp"]["threads"]
    seconds = mean(run["seconds"] / run["epochs"][-1]["epoch"] for run in found[0])
    where = f"{settings['model']}, {settings['dataset']}, {device(report)}, {threads} threads"
    return Measured(f"{seconds:.3g} s, {where}", len(found[0]))


def claimed(claim: str, report: Report) -> Measured | None:
    """A row of `claims.table`."""
    row = claims.table(report).loc[claim]
    text = str(row["measured"])
    return None if text == NOT_RUN else Measured(text, int(str(row["n"])))


def over_dense(report: Report) -> Measured | None:
    """Speed of the gate over dense training: a batch, and the whole run."""
    whole = claimed("speed over dense, whole run", report)
    batch = claimed("speed over dense, a batch, interleaved", report)
    if batch is None or whole is None:
        return whole
    text = f"{batch.text} a batch; {whole.text} the run (n = {whole.n}); {device(report)}"
    return Measured(text, batch.n)


def switch(name: str, report: Report) -> Measured | None:
    """Seconds of the plain arm over those of the switch ``name``, dense training."""
    found = _timed(name, report)
    if found is None:
        return None
    ratio = found.ratio(found.baseline, name)
    bench = report["dense"]["bench"]
    where = f"{bench['model']}, {bench['device'].upper()}"
    return Measured(f"{_interval(vars(ratio))}, {where}", ratio.n)


def _timed(name: str, report: Report) -> Timings | None:
    dense = report["dense"]
    if name not in dense["seconds"]:
        return None
    seconds = {arm: tuple(values) for arm, values in dense["seconds"].items()}
    return Timings(seconds, dense["baseline"])


def memory(name: str, report: Report) -> Measured | None:
    """Peak memory of the switch ``name`` below the plain arm's."""
    dense = report["dense"]
    arms = [dense["reports"].get(arm) for arm in (dense["baseline"], name)]
    peaks = [arm["memory"] for arm in arms if arm is not None and arm["memory"] is not None]
    if len(peaks) < 2:
        return None
    where = f"{dense['bench']['model']}, {dense['bench']['device'].upper()}"
    return Measured(f"{1 - peaks[1] / peaks[0]:.0%}, {where}", 1)


def effective(name: str, report: Report) -> Measured | None:
    """Samples a step over samples loaded at a time, with the switch ``name``."""
    arm = report["dense"]["reports"].get(name)
    if arm is None:
        return None
    loaded, effective = arm["batch_size"], arm["effective_batch_size"]
    return Measured(f"{effective / loaded:g} x ({loaded} loaded, {effective} a step)", 1)


def loading(report: Report) -> Measured | None:
    """What workers, and data on the device, buy over a DataLoader without workers."""
    name = "DataLoader over torchvision transforms / device-resident data"
    found = _entry(report["figures"], "name", name)
    if found is None:
        return None
    best, seconds = found["best"], found["seconds"]
    workers = seconds["DataLoader, 0 workers"] / seconds[best]
    said = f"{best.removeprefix('DataLoader, ')} {workers:.2f} x; resident {_interval(found)}"
    return Measured(f"{said}; {device(report)}", found["n"])


def together(report: Report) -> Measured | None:
    """All that "auto" picks over plain dense training."""
    found = _entry(report.get("speed", ()), "kind", "dense")
    if found is None:
        return None
    text = f"{_interval(found['speed'])}, {found['model']}, {device(report)}"
    return Measured(text, found["speed"]["n"])


def ratio(part: str, name: str, said: str, report: Report) -> Measured | None:
    """A ratio of interleaved arms in a part of lattice.json."""
    if part not in report:
        return None
    found = report[part]["ratios"][name]
    return Measured(f"{_interval(found)} {said}, {device(report)}", found["n"])


def at_batch(size: int, part: str, report: Report) -> Measured | None:
    """The loop over samples, over the batch at once, of the logic automaton."""
    found = _entry(report.get(part, ()), "batch", size)
    if found is None:
        return None
    batch = found["ratios"]["batch"]
    return Measured(f"{_interval(batch)}, {part}, {device(report)}", batch["n"])


def apart(report: Report) -> Measured | None:
    """How far losses and gradients of the four ways are apart, of the largest element."""
    found = [*report.get("life", ()), *report.get("checkerboard", ())]
    if not found:
        return None
    most = max(value for each in found for value in each["difference"].values())
    return Measured(f"{most:.0e}, gradients too, of the largest", len(found))


def logits_apart(report: Report) -> Measured | None:
    """How far logits are apart after 5 updates."""
    found = report.get("updates_apart")
    return None if found is None else Measured(f"{found:.0e} after 5 updates", 1)


def stopping(report: Report) -> Measured | None:
    """Early stopping of lattices: what it buys, and how far it is off."""
    if "early_stop" not in report:
        return None
    off = report["early_stop"]["surface_error"]
    said = f"with the surface off by {off:.2%}"
    return ratio("early_stop", "all steps / early stop", said, report)


def loop_seconds(report: Report) -> Measured | None:
    """A batch of the lattice, flow by flow."""
    case = report.get("at_once")
    if case is None:
        return None
    seconds, size = case["seconds"]["loop"]["loop"], case["config"]
    lattice = f"{size['width']}x{size['height']}x{size['depth']}"
    text = f"{median(seconds):.3g} s, {case['batch']} samples, {lattice}, {device(report)}"
    return Measured(text, len(seconds))


def samples_a_second(report: Report) -> Measured | None:
    """Of the lattice: flow by flow, and all flows at once."""
    case = report.get("at_once")
    if case is None:
        return None
    slow, fast = (
        case["batch"] / median(case["seconds"]["loop"][arm]) for arm in ("loop", "at once")
    )
    text = f"{slow:.2g} to {fast:.3g}, {device(report)}"
    return Measured(text, len(case["seconds"]["loop"]["loop"]))
