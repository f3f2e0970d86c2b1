"""Order of the arms of `astkit.compare`: what is trained, kept, left out and reported."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from astkit.gating import as_policy
from astkit.gating.data_facts import class_labels
from astkit.identity import configuration
from astkit.runs import pilot
from astkit.runs.comparison_arguments import check_numbers
from astkit.runs.comparison_arm import Entry, control_of, run_arm
from astkit.runs.comparison_progress import Turns
from astkit.runs.comparison_task import Arm, Chosen, Task, selectable
from astkit.runs.paired import DENSE
from astkit.runs.record import read_json, write_json
from astkit.runs.samples import data_set
from astkit.stamp import stamp
from astkit.trainers import Budget
from astkit.trainers.progress import duration

UNLABELLED = {
    "train": "neither looks for wrong labels nor at class shares",
    "validation": "does not follow its class shares",
}
"""What `auto` leaves out without class labels."""
PLACE = ("source", "torch", "cpu", "devices")  # of a stamp: what seconds depend on


@dataclass
class Plan:
    """A comparison: its arms, and the entries so far by label and seed."""

    task: Task
    policies: dict[str, Chosen]
    budget: Budget
    seeds: list[int]
    minutes: float | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        check_numbers(self.seeds, self.minutes, self.jobs, self.budget)
        self.entries: dict[tuple[str, int], Entry] = {}
        self.notes: list[str] = []
        self.seeds = self.seeds if self.minutes is None else []
        self.first = self.seeds[0] if self.seeds else 0

    def run(self, folder: Path, *, resumable: bool, all_policies: bool) -> dict[str, Any]:
        """Train the arms that ``folder`` lacks; returns the contents of a `Comparison`."""
        start = time.monotonic()
        settings = self._checked_settings(folder)
        self.folder, self.resumable = folder, resumable
        for path in sorted((folder / "entries").glob("*.json")):
            entry = read_json(path, policy=str, seed=int, rate=float)
            self.entries[entry["policy"], entry["seed"]] = entry
        measured = self._pilot(all_policies)
        self._announce(measured)
        controls: dict[str, Arm] = {}
        seeds: list[int] = []
        self.turns, arms = Turns(), 2 * len(self.policies) + 1
        try:
            for group in self.groups(start):
                seeds += group
                self.turns.arms = arms * len(self.seeds or seeds)
                self._stage([Arm(DENSE, None, seed) for seed in group])
                self._stage(
                    [Arm(name, spec, s) for s in group for name, spec in self.policies.items()]
                )
                found = self._controls(seeds)
                arms = 1 + len(self.policies) + len(found)  # controls may be fewer
                self.turns.arms = arms * len(self.seeds or seeds)
                due = {label: group if label in controls else seeds for label in found}
                self._stage([found[label]._replace(seed=s) for label in due for s in due[label]])
                controls = found
        finally:
            self.turns.end()
        labels = [DENSE, *controls, *self.policies]
        entries = [self.entries[label, seed] for seed in seeds for label in labels]
        self._note(entries)
        return {
            "entries": entries,
            "metric": entries[0]["metric"],
            "higher": entries[0]["higher"],
            "notes": self.notes,
            "pilot": asdict(measured),
            "settings": settings,
            "stamp": stamp(),
        }

    def _checked_settings(self, folder: Path) -> dict[str, Any]:
        """All settings; raises ``ValueError`` if the folder's results have others."""
        shared = self.task.settings(self.budget, self.first)
        asked = {label: _plain(spec) for label, spec in self.policies.items()}
        now, asked = json.loads(json.dumps([shared, asked]))
        path = folder / "settings.json"
        then = read_json(path, policies=dict) or {**now, "policies": {}}
        before = then.pop("policies")
        changed = [name for name in now if now[name] != then.get(name)]
        changed += [label for label in asked if asked[label] != before.get(label, asked[label])]
        if changed:
            raise ValueError(
                f"out is {folder}, whose results were made with another {', '.join(changed)}:"
                " choose another folder, or restore those settings"
            )
        now["policies"] = before | asked
        write_json(path, now)
        return now

    def _pilot(self, all_policies: bool) -> pilot.Pilot:
        """The pilot, kept in the folder; removes the policies that cannot pay."""
        path = self.folder / "pilot.json"
        kept = read_json(path)
        found = pilot.Pilot.from_dict(kept) if kept else None
        task = self.task if found is None else found.settled(self.task)
        if found is None or any(found.of(label) is None for label in self.policies):
            found = pilot.measure(task, self.policies, self.first, self._steps())
            write_json(path, asdict(found))
        self.task = found.settled(self.task)
        for each in () if all_policies else found.predictions:
            if each.policy in self.policies and not each.pays:
                del self.policies[each.policy]
                self._say(
                    f"{each.policy} is left out, since it saves no time here whatever its accuracy:"
                    f" {each.measured}; all_policies=True, or --all, trains it"
                )
        if not self.policies:
            raise ValueError("no policy is left to compare: " + "; ".join(self.notes))
        return found

    def _steps(self) -> float:
        """About how many batches the comparison trains on."""
        source = selectable(self.task.train, self.first)
        size = self.task.batch_size or getattr(source, "batch_size", None) or 1
        batches = (source.num_samples or 0) / size * (self.budget.epochs or 1.0)
        return (2 * len(self.policies) + 1) * max(1, len(self.seeds)) * batches

    def _announce(self, measured: pilot.Pilot) -> None:
        """Print the estimated time."""
        held = pilot.held_rows(self.task)
        # a control for each policy takes as long as dense
        labels = [*self.policies, *[DENSE] * (len(self.policies) + 1)]
        once = sum(measured.arm_seconds(label, self.budget, held) for label in labels) / self.jobs
        arms = f"{len(labels)} arms"  # a policy that trains on all rows has no control
        if self.minutes is None:
            named = {DENSE, *self.policies, *self._controls(self.seeds)}
            known = sum(label in named and seed in self.seeds for label, seed in self.entries)
            share = 1 - known / (len(labels) * len(self.seeds))
            left = duration(max(0.0, share) * once * len(self.seeds))
            print(f"compare: at most {arms} for each of {len(self.seeds)} seeds, about {left}")
        else:
            fit = max(1, int(self.minutes * 60 / max(once, 1e-9)))
            print(f"compare: about {fit} seeds of at most {arms} in {self.minutes:g} minutes")

    def groups(self, start: float) -> Iterator[list[int]]:
        """Seeds that are trained together: one after the other, or as many as there are jobs."""
        if self.minutes is None:
            size = len(self.seeds) if self.jobs > 1 else 1
            yield from (self.seeds[at : at + size] for at in range(0, len(self.seeds), size))
            return
        longest = 0.0
        for first in itertools.count(0, self.jobs):
            began = time.monotonic()
            if first and began - start + longest > self.minutes * 60:
                return
            yield list(range(first, first + self.jobs))
            longest = max(longest, time.monotonic() - began)

    def _stage(self, arms: Sequence[Arm]) -> None:
        """Train the ``arms`` that have no entry, in this process or in parallel."""
        missing = [arm for arm in arms if (arm.label, arm.seed) not in self.entries]
        self.turns.keep(len(arms) - len(missing))
        calls = [(self.task, arm, self._budget(arm), self.folder) for arm in missing]
        for entry in self._entries(calls):
            self.entries[entry["policy"], entry["seed"]] = entry
            self.turns.finished(entry)

    def _entries(self, calls: Sequence[tuple[Task, Arm, Budget, Path]]) -> Iterator[Entry]:
        train = partial(run_arm, resumable=self.resumable, timed=self.jobs == 1)
        if self.jobs == 1:
            yield from (train(*call, observers=(self.turns,)) for call in calls)
            return
        import joblib

        with joblib.parallel_config("loky", n_jobs=self.jobs, inner_max_num_threads=1):
            parallel = joblib.Parallel(return_as="generator_unordered")
            yield from parallel(joblib.delayed(train)(*call) for call in calls)

    def _budget(self, arm: Arm) -> Budget:
        """Dense training has the budget given; other arms have what dense training cost."""
        if arm.policy is None:
            return self.budget
        dense = self.entries[DENSE, arm.seed]
        if not dense["uncounted"]:
            return Budget(flops=dense["flops"])
        if dense["seconds"] is None:
            raise ValueError(
                f"the FLOPs of {', '.join(dense['uncounted'])} cannot be counted, so that arms have"
                f" equal seconds, but jobs is {self.jobs}: give jobs=1 and another folder"
            )
        return Budget(seconds=dense["seconds"])

    def _controls(self, seeds: Sequence[int]) -> dict[str, Arm]:
        """Random selection at the rate of each policy for its first seed that did not fail."""
        found = {}
        for label, policy in self.policies.items():
            runs = (self.entries.get((label, seed)) for seed in seeds)
            run = next((run for run in runs if run is not None and "failed" not in run), None)
            control = control_of(run, policy) if run is not None else None
            if control is not None:
                found[control.label] = control
        return found

    def _note(self, entries: Sequence[Entry]) -> None:
        uncounted = sorted({name for entry in entries for name in entry["uncounted"]})
        if uncounted:
            self._say(
                f"the FLOPs of {', '.join(uncounted)} cannot be counted: arms have equal seconds"
            )
        for part in ("validation", "test"):
            if data_set(getattr(self.task, part)) is data_set(self.task.train):
                self._say(f"{part} is the training data: pass samples that are not trained on")
        asked = "auto" in self.policies and entries[0]["worst_class"] is not None
        for part, effect in UNLABELLED.items() if asked else ():
            if class_labels(data_set(getattr(self.task, part))) is None:
                self._say(
                    f"{part} has no class labels that auto could read, so it {effect}: give the"
                    " data set an attribute labels, one class per row"
                )
        if any(entry["seconds"] is None for entry in entries):
            self._say("arms ran in parallel, so that their seconds are not compared")
        places = [[entry.get("stamp", {}).get(name) for name in PLACE] for entry in entries]
        if any(place != places[0] for place in places):
            self._say(
                f"arms differ in {', '.join(PLACE[:-1])} or {PLACE[-1]} (see stamp in entries), so"
                " that their seconds are not comparable"
            )
        for label in self.policies:
            if all("failed" in entry for entry in entries if entry["policy"] == label):
                self._say(f"{label} failed with all seeds, so that it has no random control")
        dense = {entry["seed"]: entry for entry in entries if entry["policy"] == DENSE}
        for entry in entries:
            arm, spent = f"{entry['policy']}, seed {entry['seed']}", entry["flops"]
            if "failed" in entry:
                self._say(f"{arm}: {entry['failed']}")
            if not uncounted and spent > 1.1 * dense[entry["seed"]]["flops"]:
                share = spent / dense[entry["seed"]]["flops"]
                self._say(
                    f"{arm} cost {share:.2f} times the FLOPs of dense training: its helper models"
                    " are trained before the budget is checked; give a larger budget"
                )

    def _say(self, sentence: str) -> None:
        print(sentence)
        self.notes.append(sentence)


def _plain(policy: Chosen) -> Any:
    """A policy's settings without its seed, which the comparison sets."""
    settings = configuration(as_policy(policy))
    return {name: value for name, value in settings.items() if name != "seed"}
