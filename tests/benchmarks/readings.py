"""How a measured value of a published figure is read from the JSON file that holds it.

Each function makes a reader: from the file's content to the measured value as a text, and the
number of runs or rounds behind it. It raises ``LookupError`` where the file has no such entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from astkit.comparison.statistics import Interval, paired_difference
from astkit.profiling import Timings

GATE, BY_SAMPLE = "batched gate", "sample by sample, per sample"

Report = Mapping[str, Any]
Measured = tuple[str, int]
Reader = Callable[[Report], Measured]


def device(report: Report) -> str:
    """The device of a report: its GPU by name, or "CPU"."""
    return str([*report["stamp"]["devices"], "CPU"][0])


def _arm(report: Report, name: str) -> list[dict[str, Any]]:
    results = [each for each in report["results"] if each["arm"] == name]
    if not results:
        raise LookupError(name)
    return results


def difference(results: Sequence[Report], arm: str, control: str) -> Interval:
    """Test accuracy of ``arm`` minus ``control``, paired by seed."""
    found, other = (
        {each["seed"]: each["test_accuracy"] for each in results if each["arm"] == name}
        for name in (arm, control)
    )
    return paired_difference(found, other)


def _entry(rows: Any, key: str, value: str | int) -> Any:
    return [row for row in rows if row[key] == value][0]  # noqa: RUF015


def _interval(found: Report) -> str:
    return f"{found['median']:.3g} x [{found['low']:.3g}, {found['high']:.3g}]"


def over_batched(network: str) -> Reader:
    """The sample-by-sample loop over the batched gate, on ``network``."""

    def read(report: Report) -> Measured:
        found = _entry(report["figures"], "name", "sample by sample (per_sample) / batched")
        if network not in found["meaning"]:
            raise LookupError(network)
        return f"{_interval(found)}, {network}, digits, {device(report)}", found["n"]

    return read


def accuracy_gap(report: Report) -> Measured:
    """Test accuracy of the batched gate minus that of the sample-by-sample loop, paired by seed."""
    _arm(report, GATE), _arm(report, BY_SAMPLE)
    gap, settings = difference(report["results"], GATE, BY_SAMPLE), report["settings"]
    where = f"{settings['model']}, {settings['dataset']}"
    return f"{gap.mean:+.2%} [{gap.low:+.2%}, {gap.high:+.2%}], {where}", gap.n


def same_decisions(report: Report) -> Measured:
    """In how many runs both ways trained as many samples, under either rule of stepping."""
    names = (GATE, "sample by sample, per batch", BY_SAMPLE)
    trained = [{run["seed"]: run["samples_trained"] for run in _arm(report, x)} for x in names]
    seeds = set.intersection(*map(set, trained))
    same = [sum(trained[0][seed] == other[seed] for seed in seeds) for other in trained[1:]]
    text = f"as many trained in {same[0]} of {len(seeds)} runs with a step a batch"
    return f"{text}, {same[1]} with a step a sample", len(seeds)


def span(key: str, form: str) -> Reader:
    """Smallest and largest mean of a pass in the gate's runs."""

    def read(report: Report) -> Measured:
        runs = _arm(report, GATE)
        values = [step[key] for run in runs for step in run["steps"] if key in step]
        if not values:
            raise LookupError(key)
        return f"{min(values):{form}} to {max(values):{form}}, means of passes", len(runs)

    return read


def least_loss(report: Report) -> Measured:
    """The smallest mean loss of a pass in the gate's runs."""
    runs = _arm(report, GATE)
    least = min(step["loss"] for run in runs for step in run["steps"])
    return f"least loss of a pass {least:.2f}", len(runs)


def gate(key: str, form: str) -> Reader:
    """A value of the gate's runs, their mean."""

    def read(report: Report) -> Measured:
        runs = _arm(report, GATE)
        return format(mean(run[key] for run in runs), form), len(runs)

    return read


def epoch(arm: str) -> Reader:
    """Seconds per epoch of an arm."""

    def read(report: Report) -> Measured:
        runs, settings = _arm(report, arm), report["settings"]
        seconds = mean(run["seconds"] for run in runs) / settings["epochs"]
        where = f"{settings['model']}, {settings['dataset']}, {device(report)}"
        return f"{seconds:.3g} s, {where}, {report['stamp']['threads']} threads", len(runs)

    return read


def energy_saved(report: Report) -> Measured:
    """Share of the original's energy units that the gate saves."""
    gate, dense = (
        mean(run["origin_energy_units"] for run in _arm(report, name)) for name in (GATE, "dense")
    )
    saved = f"joules not measured ({1 - gate / dense:.1%} of its units)"
    return saved, len(_arm(report, GATE))


def over_dense(report: Report) -> Measured:
    """Speed of the gate over dense training, a batch: arms of whole runs do not take turns."""
    row = next((row for row in report.get("batches", ()) if row["arm"] == GATE), None)
    if row is None:
        raise LookupError(GATE)
    low, high = row["speedup_low"], row["speedup_high"]
    text = f"{row['speedup']:.2f} x [{low:.2f}, {high:.2f}] a batch, {device(report)}"
    return text, row["rounds"]


def _bench(dense: Report) -> str:
    return f"{dense['bench']['model']}, {dense['bench']['device'].upper()}"


def switch(name: str) -> Reader:
    """Seconds of the plain arm over those of the switch ``name``, dense training."""

    def read(report: Report) -> Measured:
        dense = report["dense"]
        arms = {arm: tuple(dense["seconds"][arm]) for arm in (dense["baseline"], name)}
        ratio = Timings(arms, dense["baseline"]).ratio(dense["baseline"], name)
        return f"{_interval(vars(ratio))}, {_bench(dense)}", ratio.n

    return read


def memory(name: str) -> Reader:
    """Reduction of peak memory by the switch ``name``, relative to the plain arm."""

    def read(report: Report) -> Measured:
        dense = report["dense"]
        plain, low = (dense["reports"][arm]["memory"] for arm in (dense["baseline"], name))
        if plain is None or low is None:
            raise LookupError(name)
        return f"{1 - low / plain:.0%}, {_bench(dense)}", 1

    return read


def effective(name: str) -> Reader:
    """Samples per step over samples loaded at a time, with the switch ``name``."""

    def read(report: Report) -> Measured:
        arm = report["dense"]["reports"][name]
        loaded, total = arm["batch_size"], arm["effective_batch_size"]
        return f"{total / loaded:g} x ({loaded} loaded, {total} a step)", 1

    return read


def loading(report: Report) -> Measured:
    """Gain of workers, and of data on the device, over a DataLoader without workers."""
    name = "DataLoader over torchvision transforms / device-resident data"
    found = _entry(report["figures"], "name", name)
    best, seconds = found["best"], found["seconds"]
    workers = seconds["DataLoader, 0 workers"] / seconds[best]
    said = f"{best.removeprefix('DataLoader, ')} {workers:.2f} x; resident {_interval(found)}"
    return f"{said}; {device(report)}", found["n"]


def gain(name: str, said: str) -> Reader:
    """The ratio ``name`` of published.json."""

    def read(report: Report) -> Measured:
        found = next((each for each in report["figures"] if each["name"] == name), None)
        if found is None:
            raise LookupError(name)
        return f"{_interval(found)} {said}, {device(report)}", found["n"]

    return read


def ratio(part: str, name: str, said: str) -> Reader:
    """A ratio of interleaved arms in a part of lattice.json."""

    def read(report: Report) -> Measured:
        found = report[part]["ratios"][name]
        return f"{_interval(found)} {said}, {device(report)}", found["n"]

    return read


def at_batch(size: int, part: str) -> Reader:
    """The loop over samples, over the batch at once, of the logic automaton."""

    def read(report: Report) -> Measured:
        batch = _entry(report[part], "batch", size)["ratios"]["batch"]
        return f"{_interval(batch)}, {part}, {device(report)}", batch["n"]

    return read


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
    return ratio("early_stop", "all steps / early stop", said)(report)


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
