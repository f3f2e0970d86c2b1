"""The order of the runs of `astkit.compare`: what is trained, kept, left out and noted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from astkit.aim.decisions import OLD
from astkit.aim.gains import ExpectedGain
from astkit.aim.policy import MOST, Aim, expected_gain, plan_of
from astkit.comparison.baseline import Baseline, check_baseline, own_rate
from astkit.comparison.progress import RunsBar
from astkit.comparison.statistics import ALONE, BOTH, DENSE, cost_share
from astkit.comparison.tables import boosted_trees
from astkit.comparison.training import RECORDS, Entry, Method, Task, selectable, train_method
from astkit.datasets.facts import class_labels, shared_rows, varies
from astkit.datasets.foreign import keeps_order
from astkit.datasets.joined import divide_joined
from astkit.datasets.loader import old_rows
from astkit.files import read_json, write_json
from astkit.progress import announce
from astkit.stamp import stamp
from astkit.trainers import Budget, Trainer
from astkit.trainers.fingerprint import (
    LOSSES,
    check_same,
    label_counts,
    plain,
    source_code,
)

SETTINGS = "settings.json"
PLACE = ("source", "torch", "cpu", "devices")  # of a stamp: what seconds depend on


@dataclass
class Schedule:
    """The runs of a comparison, and their entries so far by label and seed.

    For each seed dense training comes first, then every policy, then random selection at the rate
    of each policy that skips samples.
    """

    task: Task
    methods: dict[str, Method]
    budget: Budget
    seeds: list[int]
    folder: Path
    resumable: bool = True
    check_baseline: bool = True
    notes: list[str] = field(default_factory=list)
    entries: dict[tuple[str, int], Entry] = field(default_factory=dict)
    controls: dict[str, Method] = field(default_factory=dict)
    on_target: dict[str, Method] = field(default_factory=dict)  # controls with rows of a target
    decision: dict[str, Any] | None = None  # what is forecast of these, see `DataPlan`
    settings: dict[str, Any] = field(default_factory=dict)
    baseline: Baseline = field(default_factory=Baseline)

    def train(self) -> dict[str, Any]:
        """Train the runs that the folder lacks; returns the contents of a `Comparison`."""
        with RunsBar() as self.bar:
            return self._train_all()

    def _train_all(self) -> dict[str, Any]:
        for path in sorted((self.folder / "entries").glob("*.json")):
            entry = read_json(path)
            self.entries[entry["policy"], entry["seed"]] = entry
        self.selects = hasattr(selectable(self.task.train, 0), "order")  # rows before loading
        self.on_target = controls_on_target(self.task.train)
        self.controlled = not self.selects  # whether the controls are known
        first, dense = self.seeds[0], Method(DENSE, None)
        self._check_policies(first)
        expected = self._forecast(first)
        self.baseline = self._baseline(first, expected)
        then = read_json(self.folder / SETTINGS)
        if then or (DENSE, first) in self.entries:
            begun = then.get("seed")  # that of the trainer described there
            seed = begun if isinstance(begun, int) else first
            self._check(self.task.trainer(None, seed, self.budget))
        self.bar.begin("run")
        before = len(self.entries)
        for place, seed in enumerate(self.seeds):
            self._train([(dense, seed)])
            self._look_at(first)
            chosen = {**self.on_target, **self.methods}
            self._train([(each, seed) for each in chosen.values()])
            seeds = self.seeds[: place + 1]
            self.controls, self.controlled = self._controls(seeds), True
            self._train([(each, seed) for each in self.controls.values() for seed in seeds])
        self.bar.finish(len(self.entries) - before, "run")
        known = ((label, seed) for seed in self.seeds for label in self._labels())
        entries = [self.entries[each] for each in known if each in self.entries]
        if all("failed" in entry for entry in entries):
            raise FloatingPointError(f"dense training fails: {entries[0]['failed']}")
        self._note_costs(entries)
        for label in self.methods:
            self._note_policy(label, [entry for entry in entries if entry["policy"] == label])
        self._note_target(entries)
        self._note_data(entries)
        some = next(entry for entry in entries if "failed" not in entry)
        return {
            "entries": entries,
            "metric": some["metric"],
            "higher": some["higher"],
            "notes": self.notes,
            "baseline": self.baseline.notes,
            "forecast": None if expected is None else expected._asdict(),
            "settings": self.settings,
            "stamp": stamp(),
            "decision": self.decision,
            "old_rows": len(divide_joined(self.task.train)[0]) if self.on_target else None,
        }

    def _labels(self) -> list[str]:
        """The methods in the order of the report."""
        return [DENSE, *self.on_target, *self.controls, *self.methods]

    # --- before the first run ---

    def _check_policies(self, seed: int) -> None:
        """Raise ``ValueError`` for data or labels that a policy which is to be trained refuses."""
        for label, method in self.methods.items():
            if all((label, each) in self.entries for each in self.seeds):
                continue
            policy = method.new_policy(seed)
            assert policy is not None
            if policy.plans and not self.selects:
                raise ValueError(
                    f"{label} selects rows before loading, but train is a"
                    f" {type(self.task.train).__name__} that loads all rows in its own way: pass a"
                    " map-style data set, or a plain DataLoader"
                )
            self.task.trainer(policy, seed, self.budget).check()

    def _forecast(self, seed: int) -> ExpectedGain | None:
        """What choosing by the validation data is expected to gain, if a policy does so."""
        policies = [method.new_policy(seed) for method in self.methods.values()]
        chooser = next((each for each in policies if isinstance(each, Aim)), None)
        if chooser is None:
            return None
        trainer = self.task.trainer(None, seed, self.budget)
        features, classes = getattr(chooser, "features", None), trainer.find_targets().classes
        options: dict[str, Any] = {"features": features, "seed": seed, "classes": classes}
        self.bar.begin("forecast")
        if self.on_target:
            allowed = MOST * dense_flops(trainer)
            plan = plan_of(getattr(trainer.train_data, "data", None), features, classes, allowed)
            self.decision = {"sentence": plan.sentence, "table": list(plan.table)}
            self.decision["chosen"] = plan.decision.name
            announce(plan.sentence)
            return None
        try:
            expected = expected_gain(self.task.train, self.task.validation, **options)
        except ValueError as error:  # "auto" does without, "aim" says it where it cannot
            announce(f"forecast: none, since {error}")
            return None
        announce(expected.sentence)
        return expected

    def _baseline(self, seed: int, expected: ExpectedGain | None) -> Baseline:
        """The baseline as checked now, or by an earlier call in this folder.

        Methods that gain by the validation data, as ``expected``, have a rate of their own, and so
        have controls with rows of a target.
        """
        baseline = Baseline.load(self.folder)
        if baseline is None:
            baseline = Baseline()
            if self.check_baseline:
                given = self.task.make_optimizer is not None or self.task.config.lr is not None
                given = given or (DENSE, seed) in self.entries  # trained at the default rate
                baseline = check_baseline(self.task, self.budget, seed, given, self.bar)
        if self.task.config.lr is None:
            follows = expected is not None and expected.power > 0
            follows = follows or (self.decision or {}).get("chosen", OLD.name) != OLD.name
            for label, method in {**self.on_target, **self.methods}.items():
                new = label not in baseline.rates and (label, seed) not in self.entries
                aims = follows and isinstance(method.new_policy(seed), Aim)
                if baseline.lr is not None and new and (aims or label in self.on_target):
                    baseline.rates[label] = own_rate(self.task, method, self.budget, seed, self.bar)
                if baseline.rates.get(label, baseline.lr) != baseline.lr:
                    self._say(
                        f"{label}: learning rate {baseline.rates[label]:.2g}, its best on the"
                        " validation data, which differ from the training data;"
                        f" {baseline.lr:.2g} for the others"
                    )
            self.task = self._task(baseline.lr)
        return baseline

    def _task(self, lr: float | None) -> Task:
        """The task with another learning rate."""
        return replace(self.task, config=replace(self.task.config, lr=lr))

    def _look_at(self, seed: int) -> None:
        """Say what the length of the first run of dense training gained."""
        baseline, entry = self.baseline, self.entries[DENSE, seed]
        path = self.folder / RECORDS / entry["visits"]
        if baseline.trial is not None and path.exists():
            value = entry["curve"][-1][2] if entry["curve"] else None
            baseline.look_at(value, load_file(path).get("validation"), self.budget)
            baseline.save(self.folder)
            for note in baseline.notes:
                announce(f"compare: {note}")

    def _check(self, trainer: Trainer) -> None:
        """Describe what the runs compute, see `astkit.trainers.fingerprint`.

        ``trainer`` is one of dense training, with the seed that the folder was begun with, not
        trained yet. Raises ``ValueError`` if the folder holds results of another comparison.
        """
        own = ("seed", "policy", "data.seed")  # of each run
        now = {name: value for name, value in trainer.describe().items() if name not in own}
        test = self.task.source("test")
        now["test"] = [test.num_samples, label_counts(test)]
        now["test_order"] = keeps_order(test)
        if not varies(self.task.train):
            now[LOSSES] = trainer.first_losses()
        policies = {}
        for label, method in self.methods.items():
            policy = method.new_policy(trainer.config.seed)
            assert policy is not None
            arguments = {k: v for k, v in plain(policy).items() if k != "seed"}
            policies[label] = {**arguments, "code": source_code(policy)}
        path = self.folder / SETTINGS
        then = read_json(path)
        if then:
            before = then.pop("policies")
            then.pop("seed", None)
            check_same(then, now, f"out is {self.folder}, which")
            for label in policies.keys() & before.keys():
                check_same(before[label], policies[label], f"{label} in {self.folder}")
            policies = before | policies
        self.settings = {**now, "policies": policies}
        write_json(path, {**self.settings, "seed": trainer.config.seed})
        if self.check_baseline:  # not for the data of a refused call
            self.baseline.save(self.folder)

    # --- the runs ---

    def _train(self, runs: Sequence[tuple[Method, int]]) -> None:
        """Train the ``runs`` that have no entry.

        Where dense training failed there is nothing to compare with, so these seeds are left out.
        """
        good = self._good_seeds()
        for method, seed in runs:
            if seed not in good or (method.label, seed) in self.entries:
                continue
            own = self.baseline.rates.get(method.label)
            with self.bar.run(method.label, seed, *self._to_come(), not self.controlled):
                entry = train_method(
                    self.task if own is None else self._task(own),
                    method,
                    seed,
                    self._budget(method, seed),
                    self.folder,
                    resumable=self.resumable,
                    check=None if self.settings else self._check,
                    show=self.bar.show,
                    # else a method of more steps would train beyond the end of a torch scheduler
                    schedule_steps=self.entries.get((DENSE, seed), {}).get("optimizer_steps"),
                )
            self.entries[method.label, seed] = entry

    def _good_seeds(self) -> list[int]:
        """Those with which dense training did not fail so far."""
        dense = ((seed, self.entries.get((DENSE, seed), {})) for seed in self.seeds)
        return [seed for seed, entry in dense if "failed" not in entry]

    def _to_come(self) -> tuple[int, list[str]]:
        """How many runs have an entry, and the methods of those that have none.

        Each policy has a control until it is known whether it does.
        """
        labels = self._labels()
        if not self.controlled:
            labels += [f"control of {label}" for label in self.methods]
        wanted = [(label, seed) for label in labels for seed in self._good_seeds()]
        waiting = [label for label, seed in wanted if (label, seed) not in self.entries]
        return len(wanted) - len(waiting), waiting

    def _budget(self, method: Method, seed: int) -> Budget:
        """Dense training has the budget given; other runs have what dense training cost."""
        if method.policy is None:
            return self.budget
        dense = self.entries[DENSE, seed]
        counted = not dense["uncounted"]
        return Budget(flops=dense["flops"]) if counted else Budget(seconds=dense["seconds"])

    def _controls(self, seeds: Sequence[int]) -> dict[str, Method]:
        """Random selection at the rate of each policy for its first seed that did not fail."""
        controls: dict[str, Method] = {}
        if not self.selects:
            return controls
        for label, method in self.methods.items():
            runs = (self.entries[label, seed] for seed in seeds if (label, seed) in self.entries)
            good = next((each for each in runs if "failed" not in each), None)
            if good and (control := method.random_control(good)):
                controls[control.label] = control
        return controls

    # --- what a reader has to know ---

    def _note_costs(self, entries: Sequence[Entry]) -> None:
        uncounted = sorted({name for entry in entries for name in entry["uncounted"]})
        if uncounted:
            self._say(
                f"the FLOPs of {', '.join(uncounted)} cannot be counted: runs have equal seconds"
            )
        places = [[entry.get("stamp", {}).get(name) for name in PLACE] for entry in entries]
        if any(place != places[0] for place in places):
            self._say(
                f"runs differ in {', '.join(PLACE[:-1])} or {PLACE[-1]} (see stamp in entries), so"
                " their seconds are not comparable"
            )
        for entry in entries:
            if "failed" in entry:
                self._say(f"{entry['policy']}, seed {entry['seed']}: {entry['failed']}")

    def _note_policy(self, label: str, runs: Sequence[Entry]) -> None:
        """Break-even rate, and steps beside those of the control."""
        first = runs[0]
        self._note_break_even(label, first, self.entries[DENSE, first["seed"]])
        for control in self.controls:
            other = self.entries[control, first["seed"]]
            near = abs(other["rate"] - first["rate"]) < 0.01 * first["rate"]
            steps, others = first["steps"], other["steps"]
            if near and not 0.9 * others < steps < 1.1 * others:
                self._say(f"{label} took {steps} steps, its random control {others}")

    def _note_break_even(self, label: str, entry: Entry, dense: Entry) -> None:
        """The rate below which scoring saves time, from the seconds of the first seed."""
        scored, phases = entry["scored"], entry["phases"]
        if not scored or not dense["trained"]:
            return
        passes = sum(dense["phases"].get(name, 0.0) for name in ("forward", "backward", "graph"))
        training = passes / dense["trained"]
        choosing = (phases.get("score", 0.0) + phases.get("gate", 0.0)) / scored
        if not choosing:  # rows were scored for a plan
            return
        rate = 1 - choosing / training if training else 0.0
        if rate <= 0:
            self._say(f"{label}: scoring a row takes longer than training on it: it saves no time")
        else:
            self._say(
                f"{label}: break-even rate {rate:.2f}: scoring a row took {choosing * 1e3:.2g} ms,"
                f" its training passes {training * 1e3:.2g} ms, so a rate above {rate:.2f} saves no"
                " time"
            )

    def _note_target(self, entries: Sequence[Entry]) -> None:
        """Where training on the target alone was best, and what trees reach on the same rows."""
        dense = {entry["seed"]: entry for entry in entries if entry["policy"] == DENSE}
        best = [entry for entry in entries if entry.get("best_step") is not None]
        if best:
            places = ", ".join(f"{each['best_step']:,} of {each['steps']:,}" for each in best)
            shares = [cost_share(each["best_flops"], dense[each["seed"]]["flops"]) for each in best]
            used = "" if None in shares else f", after {_mean(shares):.2f} x the FLOPs of dense"
            self._say(f"{ALONE}: best at step {places}{used}: its weights are those of that point")
        if self.on_target and (said := boosted_trees(self.task.train, self.task.test)):
            self._say(said)

    def _note_data(self, entries: Sequence[Entry]) -> None:
        if not self.selects:
            self._say("train loads all rows in its own way, so there is no random control")
        if "auto" in self.methods and entries[0]["worst_class"] is not None:
            parts = {"train": self.task.train, "validation": self.task.validation}
            unread = [name for name, data in parts.items() if class_labels(data) is None]
            if unread:
                self._say(
                    f"auto cannot read the class labels of {' and '.join(unread)}, so it does not"
                    " look for wrong labels or at class shares: give the data set an attribute"
                    " labels, one class per row"
                )
        old = divide_joined(self.task.train)[0]
        shared = shared_rows(old, self.task.validation, self.task.test)
        if shared:
            counts = [f"{n:,} of {a} in {b}, remove them from {a}" for (a, b), n in shared.items()]
            sentence = (
                f"rows with equal inputs: {'; '.join(counts)}: a model that has seen a row says"
                " nothing about new ones"
            )
            self.notes.insert(0, sentence)
            announce(sentence)

    def _say(self, sentence: str) -> None:
        announce(sentence)
        self.notes.append(sentence)


def dense_flops(trainer: Trainer) -> float:
    """What dense training costs: its budget, or an estimate from the first rows.

    Infinite where FLOPs cannot be counted, as runs have equal seconds then.
    """
    budget = trainer.budget
    if budget.flops is not None:
        return budget.flops
    batch = trainer.batches.peek()
    of_batch = trainer.cost(batch).training(batch.rows)
    steps = budget.steps or len(trainer.train_data) * (budget.epochs or 0.0)
    return math.inf if trainer.ledger.uncounted else steps * of_batch


def controls_on_target(train: Any) -> dict[str, Method]:
    """Training on old and target rows alike, and on the target's alone; none without a target."""
    data = getattr(selectable(train, 0), "data", None)
    if data is None or old_rows(data) == len(data):
        return {}
    alike = torch.ones(len(data))
    alone = (torch.arange(len(data)) >= old_rows(data)).float()
    return {
        BOTH: Method(BOTH, {"name": "weighted", "weights": alike, "cost": 0.0}),
        ALONE: Method(ALONE, {"name": "weighted", "weights": alone, "cost": 0.0}, keeps_best=True),
    }


def _mean(values: Sequence[Any]) -> float:
    return sum(values) / len(values)
