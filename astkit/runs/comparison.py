"""`compare`: does selecting samples pay for a model and its data? A verdict at equal FLOPs."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file
from torch import Tensor, nn

from astkit.files import write_atomic
from astkit.gating import Criterion
from astkit.runs import verdict
from astkit.runs.audit import Audit, audit
from astkit.runs.comparison_arguments import KINDS, checked_policies, checked_task, with_task
from astkit.runs.comparison_arm import VISITS, Entry
from astkit.runs.comparison_plan import Plan
from astkit.runs.comparison_task import Chosen
from astkit.runs.pilot import Pilot
from astkit.runs.record import read_json, write_json
from astkit.runs.samples import Samples, together
from astkit.trainers import Budget, TrainConfig
from astkit.trainers.config import check_kinds
from astkit.trainers.evaluator import Metrics

if TYPE_CHECKING:
    import pandas as pd

NAME = "comparison.json"


class Comparison:
    """Result of `compare`; in a notebook it displays the verdicts, the table and the figures.

    Attributes:
        entries: one mapping per arm and seed: ``policy`` ("dense", "random at 0.30", or the label
            of a policy), ``seed``, ``value`` of the metric on the test data, ``seconds`` of
            training (``None`` if arms ran in parallel), ``joules`` (or ``None``, with
            ``joules_reason``), ``flops`` (``None`` if they cannot be counted), ``trained`` and
            ``scored`` (samples), ``rate`` (share trained on), ``worst_class`` (lowest recall, or
            ``None``), ``curve``: lists ``[FLOPs, seconds, validation value]``, ``stamp``: where it
            was trained, and ``visits``, a file name.
        metric, higher: name of ``value``, and whether a higher one is better.
        notes: sentences on what was left out or could not be measured.
        pilot: the measurements before the comparison, or ``None``.
        settings: settings shared by all arms; ``stamp``: environment of the latest call.
        train: the training data; ``None`` for a loaded comparison.
    """

    def __init__(self, found: Mapping[str, Any], folder: Path, train: Any = None) -> None:
        self.entries: list[Entry] = list(found["entries"])
        self.metric, self.higher = found["metric"], found["higher"]
        self.notes: list[str] = list(found["notes"])
        self.pilot = Pilot.from_dict(found["pilot"]) if found["pilot"] else None
        self.settings, self.stamp = dict(found["settings"]), dict(found["stamp"])
        self.train = train
        self._folder = folder  # of the visits

    @cached_property
    def verdicts(self) -> list[verdict.Verdict]:
        """One verdict per policy."""
        return verdict.judge(self.entries, self.metric, self.higher)

    @property
    def verdict(self) -> str:
        """The sentences of all verdicts, one per line."""
        return "\n".join(f"{each.sentence}." for each in self.verdicts)

    def table(self) -> pd.DataFrame:
        """One row per arm: number of seeds, and means over them; joules if they were measured.

        Seeds without a finite value are left out, and counted as ``failed`` if there are any.
        """
        import numpy as np
        import pandas as pd

        kept = ["value", "flops", "seconds", "trained", "scored", "rate", "worst_class"]
        if any(entry.get("joules") is not None for entry in self.entries):
            kept.insert(3, "joules")
        frame = pd.DataFrame(self.entries)
        frame[kept] = frame[kept].apply(pd.to_numeric)
        good = np.isfinite(frame["value"])
        counts = good.groupby(frame["policy"], sort=False).agg(["sum", "size"])
        means = frame[good].groupby("policy")[kept].mean().reindex(counts.index)
        means.insert(0, "n", counts["sum"])
        if not good.all():
            means.insert(1, "failed", counts["size"] - counts["sum"])
        return means.rename(columns={"value": self.metric})

    def visits(self, policy: str, seed: int) -> dict[str, Tensor]:
        """``trained`` int32 ``[8, rows]`` and ``losses`` float32 ``[rows]`` of one arm.

        See `astkit.runs.visits.Visits`. Raises ``ValueError`` for an arm that was not trained.
        """
        for entry in self.entries:
            if (entry["policy"], entry["seed"]) == (policy, seed):
                return load_file(self._folder / Path(entry["visits"]).name)
        known = sorted({(entry["policy"], entry["seed"]) for entry in self.entries})
        raise ValueError(f"no arm {policy!r} with seed {seed}: choose one of {known}")

    def samples(
        self,
        policy: str,
        *,
        labels: Tensor | None = None,
        show: Callable[[int], Any] | None = None,
    ) -> Samples:
        """Which samples an arm trained on, over all seeds; see `Samples` for the arguments.

        Raises ``ValueError`` for an arm that was not trained.
        """
        visits = self._together(policy)
        return Samples(**visits, data=self.train, labels=labels, show=show, name=policy)

    def audit(self, policy: str, wrong: Tensor) -> Audit:
        """How well an arm's losses, averaged over seeds, find the rows ``wrong`` (bool ``[N]``).

        See `astkit.runs.audit.audit` for the errors raised.
        """
        return audit(**self._together(policy), wrong=wrong)

    def _together(self, policy: str) -> dict[str, Tensor]:
        seeds = [entry["seed"] for entry in self.entries if entry["policy"] == policy]
        return together([self.visits(policy, seed) for seed in seeds or [0]])

    def to_markdown(self) -> str:
        """Verdicts and table."""
        from astkit.runs import comparison_page

        return comparison_page.markdown(self)

    def to_html(self, path: str | Path) -> Path:
        """Write a page with verdicts, table and figures; it needs no other files."""
        return write_atomic(path, self._repr_html_())

    def _repr_html_(self) -> str:
        from astkit.runs import comparison_page

        return comparison_page.html(self)

    def __repr__(self) -> str:
        return "\n".join([self.verdict, "", self.table().to_string(), *self.notes])

    def save(self, path: str | Path) -> Path:
        """Write everything to a JSON file, and the visits to a folder beside it."""
        path = Path(path)
        folder = path.with_name(f"{path.stem}_visits")
        for name in (Path(entry["visits"]).name for entry in self.entries):
            if folder != self._folder and (self._folder / name).exists():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._folder / name, folder / name)
        names = ("entries", "metric", "higher", "notes", "settings", "stamp")
        measured = None if self.pilot is None else asdict(self.pilot)
        return write_json(path, {**{k: getattr(self, k) for k in names}, "pilot": measured})

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """A comparison from a file written by `save`, or from the folder ``out`` of `compare`.

        Raises ``ValueError`` for another file, ``FileNotFoundError`` for a missing one.
        """
        path = Path(path)
        path = path / NAME if path.is_dir() else path
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist: give a file that `save` wrote")
        found = read_json(path, entries=list, metric=str, higher=bool, settings=dict)
        needed = {"policy", "seed", "value", "flops", "seconds", "curve", "visits"}
        if not found.get("entries"):
            raise ValueError(f"{path} is no comparison: it has no entries")
        if lacking := {name for entry in found["entries"] for name in needed - entry.keys()}:
            raise ValueError(f"{path} is no comparison: its entries lack {', '.join(lacking)}")
        return cls(
            {"notes": [], "stamp": {}, "pilot": None, **found},
            path.with_name(f"{path.stem}_visits"),
        )


def compare(
    make_model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
    *,
    policies: Sequence[str | Chosen] | str | Chosen = "auto",
    dataset: str | None = None,
    budget: Budget | None = None,
    seeds: Iterable[int] = range(5),
    minutes: float | None = None,
    criterion: Criterion | None = None,
    metrics: Metrics = None,
    config: TrainConfig | None = None,
    batch_size: int | None = None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    all_policies: bool = False,
    device: str = "auto",
) -> Comparison:
    """Compare policies with dense training and random selection at equal FLOPs.

    Arms (an arm is one policy and seed) take turns: for each seed dense training spends the budget,
    then each policy spends as many FLOPs as dense did, then random selection does so at each
    policy's realised rate (of the first seed, in two decimals). Scoring and helper models count;
    every learning rate schedule ends with the budget. Test data are evaluated once per arm. ::

        report = astkit.compare(make_model, train, validation, test, policies=["infobatch"])
        print(report.verdict)

    Args:
        make_model: returns a new model; called with seeded generators, so that all arms of a seed
            start from the same weights.
        train, validation, test: data sets or loaders, see `Trainer`. Training rows must be
            selectable: a map-style data set, a `Loader`, or a DataLoader without its own sampler.
        policies: names, mappings ``{"name": ..., argument: value}`` or `Policy` objects; each arm
            uses a copy.
        dataset: name of a task in place of the data, such as "digits" or "language", see
            `astkit.tasks`; it supplies the other arguments too, where they are not given.
        budget: of dense training, in epochs, steps or FLOPs; 5 epochs by default. If FLOPs cannot
            be counted, the other arms train for dense's seconds.
        seeds: at least 2 for an interval, 5 for a table.
        minutes: add seeds 0, 1, ... while the next one fits into this time; replaces ``seeds``.
        criterion: ``(outputs, targets)`` -> one loss per row, or losses and mask per token;
            cross-entropy by default.
        metrics: functions ``(outputs, targets) -> [rows]`` by name, higher is better, or `Metric`
            objects; the first one is compared. By default the accuracy for integer labels, else
            the mean loss.
        config: learning rate, precision and so on; its seed is replaced.
        batch_size: rows per batch; 128 for data sets by default.
        make_optimizer: builds the optimizer of a model; AdamW from ``config`` by default.
        out: folder of the results; the same call continues an interrupted comparison there. By
            default nothing is kept after the process.
        jobs: number of processes; above 1, seconds are not compared.
        all_policies: train also the policies that cannot pay according to the pilot.
        device: "auto" uses the available accelerator.

    Raises ``ValueError`` for invalid arguments, for a folder with results of other settings, and
    for one in use by another process; ``FloatingPointError`` if dense training diverges.
    """
    given = {
        "make_model": make_model,
        "train": train,
        "validation": validation,
        "test": test,
        "criterion": criterion,
        "metrics": metrics,
        "config": config,
        "batch_size": batch_size,
        "make_optimizer": make_optimizer,
        "device": device,
        "budget": budget,
    }
    given = given if dataset is None else with_task(dataset, given)
    check_kinds({**given, "seeds": seeds, "minutes": minutes, "jobs": jobs}, KINDS)
    budget = given.pop("budget") or Budget(epochs=5)
    task = checked_task(given)
    plan = Plan(task, checked_policies(policies), budget, list(seeds), minutes, jobs)
    with _opened(out) as folder:
        found = plan.run(folder, resumable=out is not None, all_policies=all_policies)
        report = Comparison(found, folder / VISITS, task.train)
        report.save(folder / NAME)
        if out is None:
            weakref.finalize(report, shutil.rmtree, folder, ignore_errors=True)
        return report


@contextmanager
def _opened(out: str | Path | None) -> Iterator[Path]:
    """The locked folder of a comparison; without ``out`` a temporary one, removed if it fails."""
    if out is None:
        made = Path(tempfile.mkdtemp(prefix="astkit-"))
        try:
            yield made
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield folder
    except Timeout as error:
        raise ValueError(
            f"out is {folder}, which another process is using: wait, or choose another folder"
        ) from error
