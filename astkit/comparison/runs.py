"""The runs of a comparison in their order: what its folder lacks is trained, the rest is read.

First the forecast, then the baseline with its learning rates, then for each seed dense training,
every policy, and random selection at the rate of each policy that skips samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from safetensors.torch import load

from astkit.comparison.baseline import Baseline, find_rates
from astkit.comparison.forecast import tell_forecast
from astkit.comparison.notes import note_on_shared_rows, notes_on
from astkit.comparison.plan import Method, Plan
from astkit.comparison.progress import Live, RunsBar
from astkit.comparison.reads import same_reads
from astkit.comparison.report import Comparison
from astkit.comparison.statistics import DENSE
from astkit.comparison.training import RECORDS, train_method
from astkit.comparison.trees import line_on_trees
from astkit.datasets.facts import varies
from astkit.datasets.foreign import keeps_order
from astkit.datasets.joined import divide_joined
from astkit.files import read_json, write_json
from astkit.progress import announce
from astkit.stamp import stamp
from astkit.trainers.fingerprint import LOSSES, check_same, label_counts, plain, source_code

SETTINGS = "settings.json"
Entries = dict[tuple[str, int], dict[str, Any]]
"""Of finished runs, by label and seed."""


def train_plan(
    plan: Plan, check_baseline: bool, notes: Sequence[str], live: Live
) -> dict[str, Any]:
    """Train the runs of ``plan`` that its folder lacks; returns the contents of a `Comparison`.

    ``notes``: sentences that come before others; ``live`` shows the runs so far. Raises
    ``ValueError`` for data that a policy refuses and for a folder with results of another
    comparison, ``FloatingPointError`` if dense training diverges with all seeds.
    """
    paths = sorted((plan.folder / "entries").glob("*.json"))
    entries: Entries = {(each["policy"], each["seed"]): each for each in map(read_json, paths)}
    # a temporary folder has no results of another call
    same = same_reads(plan) if plan.resumable else nullcontext(lambda: None)
    with same as keep, RunsBar() as bar:
        _check_policies(plan, entries)
        forecast, followers = tell_forecast(plan, bar)
        baseline = find_rates(plan, followers, entries, check_baseline, bar)
        own_rates = []
        if plan.task.config.lr is None:
            plan = replace(plan, task=plan.task.at_rate(baseline.lr))
            own_rates = baseline.say_rates([*plan.target_controls, *plan.policies])
        for note in own_rates:
            announce(note)
        settings = _check_folder(plan)
        keep()
        if check_baseline:  # not for the data of a refused call
            baseline.save(plan.folder)
        controls = _train_missing(plan, baseline, entries, bar, live)
    labels = [DENSE, *plan.target_controls, *controls, *plan.policies]
    runs = _asked_for(plan, entries, labels)
    good = [entry for entry in runs if "failed" not in entry]
    if not good:
        raise FloatingPointError(f"dense training fails: {runs[0]['failed']}")
    new = list(notes_on(plan, list(controls.values()), runs))
    shared = note_on_shared_rows(plan)
    first = [] if shared is None else [shared]
    last = line_on_trees(plan, forecast, followers, good)
    for note in [*new, *first, *last]:
        announce(note)
    return {
        "entries": runs,
        "metric": good[0]["metric"],
        "higher": good[0]["higher"],
        "notes": [*first, *notes, *own_rates, *new, *last],
        "baseline": baseline.notes,
        "forecast": None if forecast is None else forecast.to_json(),
        "given_forecast": list(followers),
        "settings": settings,
        "stamp": stamp(),
        "old_rows": len(divide_joined(plan.task.train)[0]) if plan.target_controls else None,
    }


def _check_policies(plan: Plan, entries: Entries) -> None:
    """Raise ``ValueError`` for data or labels that a policy which is to be trained refuses."""
    for label, policy in plan.new_policies().items():
        if all((label, seed) in entries for seed in plan.seeds):
            continue
        if policy.plans and not plan.selects:
            raise ValueError(
                f"{label} selects rows before loading, but train is a"
                f" {type(plan.task.train).__name__} that loads all rows in its own way: pass a"
                " map-style data set, or a plain DataLoader"
            )
        plan.trainer(policy).check()


def _check_folder(plan: Plan) -> dict[str, Any]:
    """What the runs compute, see `astkit.trainers.fingerprint`; the folder keeps it.

    Of dense training with the seed that the folder was begun with. Raises ``ValueError`` if the
    folder holds results of another comparison.
    """
    path = plan.folder / SETTINGS
    then = read_json(path)
    begun = then.pop("seed", None)
    seed = begun if isinstance(begun, int) else plan.seeds[0]
    trainer = plan.trainer(seed=seed)
    of_each_run = ("seed", "policy", "data.seed")
    now = {name: each for name, each in trainer.describe().items() if name not in of_each_run}
    test = plan.task.source("test")
    now["test"] = [test.num_samples, label_counts(test)]
    now["test_order"] = keeps_order(test)
    if not varies(plan.task.train):
        now[LOSSES] = trainer.first_losses()
    policies = {}
    for label, method in plan.policies.items():
        policy = method.new_policy(seed)
        assert policy is not None
        arguments = {name: each for name, each in plain(policy).items() if name != "seed"}
        policies[label] = {**arguments, "code": source_code(policy)}
    if then:
        before = then.pop("policies")
        check_same(then, now, f"out is {plan.folder}, which")
        for label in policies.keys() & before.keys():
            check_same(before[label], policies[label], f"{label} in {plan.folder}")
        policies = before | policies
    settings = {**now, "policies": policies}
    write_json(path, {**settings, "seed": seed})
    return settings


def _train_missing(
    plan: Plan, baseline: Baseline, entries: Entries, bar: RunsBar, live: Live
) -> dict[str, Method]:
    """Train the runs that have no entry, and add it; returns the random controls.

    Where dense training failed there is nothing to compare with, so these seeds are left out.
    """
    methods = {**plan.target_controls, **plan.policies}
    controls: dict[str, Method] = {}
    known = not plan.selects  # whether the controls are

    def failed(seed: int) -> bool:
        return "failed" in entries.get((DENSE, seed), {})

    def train(method: Method, seed: int) -> None:
        if failed(seed) or (method.label, seed) in entries:
            return
        labels = [DENSE, *methods, *controls]
        if not known:  # each policy has one until it is known whether it does
            labels += [f"control of {label}" for label in plan.policies]
        seeds = [each for each in plan.seeds if not failed(each)]
        waiting = [name for name in labels for each in seeds if (name, each) not in entries]
        dense = entries.get((DENSE, seed))
        with bar.run(method.label, seed, waiting, not known):
            entries[method.label, seed] = train_method(
                plan.task.at_rate(baseline.rates.get(method.label)),
                method,
                seed,
                plan.run_budget(method, dense),
                plan.folder,
                resumable=plan.resumable,
                show=bar.show,
                # else a method of more steps would train beyond the end of a torch scheduler
                schedule_steps=None if dense is None else dense["optimizer_steps"],
            )
        bar.say(entries[method.label, seed])
        labels = [DENSE, *methods, *controls]
        labels = [DENSE, *plan.target_controls, *controls, *plan.policies]
        runs = _asked_for(plan, entries, labels)
        if good := [run for run in runs if "failed" not in run]:
            so_far = {**good[0], "entries": runs, "settings": {"test_order": False}}
            live.show(Comparison(so_far, plan.folder), labels)

    before = len(entries)
    bar.begin("run", len(_asked_for(plan, entries, [DENSE, *methods])))
    for place, seed in enumerate(plan.seeds):
        train(plan.dense, seed)
        if seed == plan.seeds[0]:
            _look_at_length(plan, baseline, entries[DENSE, seed])
        for method in methods.values():
            train(method, seed)
        controls, known = plan.random_controls(entries), True
        for control in controls.values():
            for each in plan.seeds[: place + 1]:
                train(control, each)
    bar.finish(len(entries) - before, "run")
    return controls


def _asked_for(plan: Plan, entries: Entries, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The entries of the plan's seeds, in the order of ``labels``."""
    known = ((label, seed) for seed in plan.seeds for label in labels)
    return [entries[each] for each in known if each in entries]


def _look_at_length(plan: Plan, baseline: Baseline, entry: dict[str, Any]) -> None:
    """Say whether the second half of the first run of dense training gained."""
    path = plan.folder / RECORDS / entry["visits"]
    if baseline.trial is not None and path.exists():
        value = entry["curve"][-1][2] if entry["curve"] else None
        baseline.look_at(value, load(path.read_bytes()).get("validation"), plan.budget)
        baseline.save(plan.folder)
        for note in baseline.notes:
            announce(f"compare: {note}")
