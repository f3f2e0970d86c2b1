"""What a reader of a comparison has to know beside its verdicts, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astkit.comparison.plan import Method, Plan, by_rows
from astkit.comparison.statistics import ALONE, DENSE, Arm, Entry, by_arm, cost_share
from astkit.datasets.facts import class_labels, shared_rows
from astkit.datasets.joined import divide_joined

PLACE = ("source", "torch", "cpu", "devices")  # of a stamp: what seconds depend on


def notes_on(plan: Plan, controls: Sequence[Method], entries: Sequence[Entry]) -> Iterator[str]:
    """All notes on finished runs; ``controls``: random selection at the rates of the policies."""
    arms = by_arm(entries)
    yield from _costs(entries)
    for label in plan.policies:
        yield from _speed(label, arms, controls)
    if plan.target_controls:
        yield from _best_points(arms)
    if not plan.selects:
        yield "train loads all rows in its own way, so there is no random control"
    if "auto" in plan.policies and plan.trainer().find_targets().classes:
        parts = {"train": plan.task.train, "validation": plan.task.validation}
        unread = [name for name, data in parts.items() if class_labels(data) is None]
        if unread:
            yield (
                f"auto cannot read the class labels of {' and '.join(unread)}, so it does not look"
                " for wrong labels or at class shares: give the data set an attribute labels, one"
                " class per row"
            )


def note_on_shared_rows(plan: Plan) -> str | None:
    """Which rows of the training, validation and test data are equal; ``None`` if none is."""
    shared = shared_rows(divide_joined(plan.task.train)[0], plan.task.validation, plan.task.test)
    if not shared:
        return None
    counts = [f"{n:,} of {a} in {b}, remove them from {a}" for (a, b), n in shared.items()]
    return (
        f"rows with equal inputs: {'; '.join(counts)}: a model that has seen a row says nothing"
        " about new ones"
    )


def _costs(entries: Sequence[Entry]) -> Iterator[str]:
    """What could not be counted, seconds of several machines, and runs that failed."""
    uncounted = sorted({name for entry in entries for name in entry["uncounted"]})
    if uncounted:
        yield f"the FLOPs of {', '.join(uncounted)} cannot be counted: runs have equal seconds"
    if any(entry["policy"] == DENSE and by_rows(entry) for entry in entries):
        yield (
            "the model looks rows up, which takes no counted FLOPs, and does little else: runs pass"
            " equally many rows through it, scored ones counted like trained ones"
        )
    places = [[entry.get("stamp", {}).get(name) for name in PLACE] for entry in entries]
    if any(place != places[0] for place in places):
        yield (
            f"runs differ in {', '.join(PLACE[:-1])} or {PLACE[-1]} (see stamp in entries), so"
            " their seconds are not comparable"
        )
    for entry in entries:
        if "failed" in entry:
            yield f"{entry['policy']}, seed {entry['seed']}: {entry['failed']}"


def _speed(label: str, arms: dict[str, Arm], controls: Sequence[Method]) -> Iterator[str]:
    """Break-even rate of a policy at its first seed, and steps beside those of its control.

    Below the break-even rate scoring saves time: there a row's scoring takes what is left out of
    its training passes.
    """
    seed, run = next(iter(arms[label].items()))
    dense, phases = arms[DENSE][seed], run["phases"]
    choosing = phases.get("score", 0.0) + phases.get("gate", 0.0)
    if run["scored"] and dense["trained"] and choosing:  # else rows were scored for a plan
        passes = sum(dense["phases"].get(name, 0.0) for name in ("forward", "backward", "graph"))
        training, scoring = passes / dense["trained"], choosing / run["scored"]
        rate = 1 - scoring / training if training else 0.0
        if rate <= 0:
            yield f"{label}: scoring a row takes longer than training on it: it saves no time"
        else:
            yield (
                f"{label}: break-even rate {rate:.2f}: scoring a row took {scoring * 1e3:.2g} ms,"
                f" its training passes {training * 1e3:.2g} ms, so a rate above {rate:.2f} saves"
                " no time"
            )
    for control in controls:
        other = arms[control.label][seed]
        near = abs(other["rate"] - run["rate"]) < 0.01 * run["rate"]
        if near and not 0.9 * other["steps"] < run["steps"] < 1.1 * other["steps"]:
            yield f"{label} took {run['steps']} steps, its random control {other['steps']}"


def _best_points(arms: dict[str, Arm]) -> Iterator[str]:
    """Where training on the target alone was best."""
    best = {seed: run for seed, run in arms[ALONE].items() if run.get("best_step") is not None}
    if best:
        steps = sorted(each["best_step"] for each in best.values())
        places = " to ".join(f"{step:,}" for step in dict.fromkeys([steps[0], steps[-1]]))
        shares = [cost_share(run["best_flops"], arms[DENSE][s]["flops"]) for s, run in best.items()]
        used = ""
        if None not in shares:
            mean = sum(filter(None, shares)) / len(shares)
            used = f", after {mean:.2f} x the FLOPs of dense"
        places += f" of {max(each['steps'] for each in best.values()):,}"
        yield f"{ALONE}: best at step {places}{used}: its weights are those of that point"
