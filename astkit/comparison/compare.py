"""`astkit.compare`: what does selecting samples gain for a model and its data, at equal cost?"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file
from torch import Tensor, nn

from astkit.comparison import verdict
from astkit.comparison.arguments import (
    KINDS,
    check_numbers,
    checked_methods,
    checked_task,
    with_task,
)
from astkit.comparison.samples import Samples, Suspects, explorer, together
from astkit.comparison.schedule import Schedule
from astkit.comparison.training import RECORDS, Chosen, Entry
from astkit.files import read_json, write_atomic, write_json
from astkit.gating.forecast import Forecast
from astkit.gating.losses import Criterion
from astkit.names import refuse_removed
from astkit.trainers import Budget, TrainConfig
from astkit.trainers.config import check_kinds
from astkit.trainers.evaluation import Metrics

if TYPE_CHECKING:
    import pandas as pd

    from astkit.widgets.explore import Explorer

NAME = "comparison.json"


class Comparison:
    """Result of `compare`; in a notebook it displays the verdicts, the tables and the figures.

    Attributes:
        entries: one mapping per method and seed: ``policy`` ("dense", "random at 0.3", or the label
            of a policy), ``seed``, ``value`` of the metric on the test data, ``seconds`` of
            training (``None`` if runs took place in parallel), ``joules`` (or ``None``, with
            ``joules_reason``), ``flops`` (``None`` if they cannot be counted), ``trained`` and
            ``scored`` (samples), ``rate`` (share trained on), ``worst_class`` (lowest recall, or
            ``None``), ``curve``: lists ``[FLOPs, seconds, validation value]``, ``stamp``: where it
            was trained, and ``visits``, a file name.
        metric, higher: name of ``value``, and whether a higher one is better.
        forecast: what choosing by the validation data was expected to gain, before any training;
            ``None`` if no policy does so.
        baseline: sentences on an untuned or short baseline, shown before the verdicts.
        notes: sentences on what was left out, could not be measured, or has to be known.
        settings: what the runs share; ``stamp``: environment of the latest call.
        smallest_gain: gains below it are called none; see `verdict.judge`.
        train: the training data; ``None`` for a loaded comparison.
    """

    def __init__(self, contents: Mapping[str, Any], folder: Path, train: Any = None) -> None:
        self.entries: list[Entry] = list(contents["entries"])
        self.metric, self.higher = contents["metric"], contents["higher"]
        self.notes: list[str] = list(contents["notes"])
        self.baseline: list[str] = list(contents.get("baseline", []))
        forecast = contents.get("forecast")
        self.forecast = None if forecast is None else Forecast(**forecast)
        self.settings, self.stamp = dict(contents["settings"]), dict(contents["stamp"])
        self.smallest_gain: float | None = contents.get("smallest_gain")
        self.train = train
        self._folder = folder  # of the arrays

    @cached_property
    def verdicts(self) -> list[verdict.Verdict]:
        """One verdict per policy."""
        return verdict.judge(
            self.entries,
            self.metric,
            self.higher,
            rows=self.test_rows,
            resampled=self.resampled,
            smallest_gain=self.smallest_gain,
        )

    @property
    def verdict(self) -> str:
        """`before`, and the sentences of all verdicts; a line each."""
        sentences = [*self.before, *(each.sentence for each in self.verdicts)]
        return "\n".join(f"{sentence}." for sentence in sentences)

    @property
    def before(self) -> list[str]:
        """The forecast, and what has to be known of the baseline."""
        return [*([] if self.forecast is None else [self.forecast.sentence]), *self.baseline]

    @property
    def resampled(self) -> bool:
        """Whether the metric is no mean over rows, so that bootstrap samples of it are kept."""
        return any("resampled" in self._arrays(entry) for entry in self.entries[:1])

    def test_rows(self, entry: Mapping[str, Any]) -> Tensor | None:
        """Results of a run on the test rows, or on bootstrap samples of them; ``None``: unknown."""
        arrays = self._arrays(entry)
        return arrays.get("resampled", arrays.get("test"))

    def _arrays(self, entry: Mapping[str, Any]) -> dict[str, Tensor]:
        path = self._folder / Path(entry["visits"]).name
        return load_file(path) if path.exists() else {}

    def table(self) -> pd.DataFrame:
        """One row per method: number of seeds, and means over them; joules if they were measured.

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
        """What one run trained on: ``trained`` and ``losses`` ``[8, rows]``, ``predicted``.

        See `astkit.comparison.training.Record`. Raises ``ValueError`` for a run that does not
        exist.
        """
        for entry in self.entries:
            if (entry["policy"], entry["seed"]) == (policy, seed):
                return self._arrays(entry)
        known = sorted({(entry["policy"], entry["seed"]) for entry in self.entries})
        raise ValueError(f"no run of {policy!r} with seed {seed}: choose one of {known}")

    def samples(
        self,
        policy: str,
        *,
        labels: Tensor | None = None,
        show: Callable[[int], Any] | None = None,
    ) -> Samples:
        """Which samples a method trained on, over all seeds; see `Samples` for the arguments.

        Raises ``ValueError`` for a method that was not trained.
        """
        seeds = [entry["seed"] for entry in self.entries if entry["policy"] == policy]
        records = together([self.visits(policy, seed) for seed in seeds or [0]])
        return Samples(**records, data=self.train, labels=labels, show=show, name=policy)

    def suspects(self, k: int = 50, policy: str = "dense") -> Suspects:
        """The ``k`` rows that most likely have a wrong label; see `Suspects`."""
        return self.samples(policy).suspects(k)

    def explore(self, most: int = 600) -> Explorer:
        """A widget: choose a method, a class and a group, see samples, their losses and visits.

        ``.save("explore.html")`` writes a page of the same that needs no kernel; see `explorer`.
        """
        policies = dict.fromkeys(entry["policy"] for entry in self.entries)
        return explorer({policy: self.samples(policy) for policy in policies}, most)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, see `astkit.comparison.report.to_json`."""
        from astkit.comparison import report

        return report.to_json(self)

    def to_markdown(self) -> str:
        """Verdicts and tables."""
        from astkit.comparison import report

        return report.markdown(self)

    def to_html(self, path: str | Path) -> Path:
        """Write a page with verdicts, tables and figures; it needs no other files."""
        return write_atomic(path, self._repr_html_())

    def _repr_html_(self) -> str:
        from astkit.comparison import report

        return report.html(self)

    def __repr__(self) -> str:
        return "\n".join([self.verdict, "", self.table().to_string(), *self.notes])

    def save(self, path: str | Path) -> Path:
        """Write everything to a JSON file, and the arrays to a folder beside it."""
        path = Path(path)
        folder = path.with_name(f"{path.stem}_visits")
        for name in (Path(entry["visits"]).name for entry in self.entries):
            if folder != self._folder and (self._folder / name).exists():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._folder / name, folder / name)
        names = (
            "entries",
            "metric",
            "higher",
            "notes",
            "baseline",
            "settings",
            "stamp",
            "smallest_gain",
        )
        contents = {name: getattr(self, name) for name in names}
        forecast = None if self.forecast is None else self.forecast._asdict()
        return write_json(path, {**contents, "forecast": forecast})

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
            {"notes": [], "stamp": {}, **found},
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
    smallest_gain: float | None = None,
    check_baseline: bool = True,
    device: str = "auto",
    **removed: Any,
) -> Comparison:
    """Compare policies with dense training and random selection at equal FLOPs.

    Methods take turns: for each seed dense training spends the budget, then each policy spends as
    many FLOPs, then random selection does so at each policy's realised rate (of the first seed).
    Scoring and helper models count; every learning rate schedule ends with the budget. Test data
    are evaluated once per run. ::

        report = astkit.compare(make_model, train, validation, test, policies=["infobatch"])
        print(report.verdict)

    Args:
        make_model: returns a new model; called with seeded generators, so that all runs of a seed
            start from the same weights.
        train, validation, test: data sets or loaders, see `Trainer`. Training rows must be
            selectable: a map-style data set, a `Loader`, or a DataLoader without its own sampler.
        policies: names, mappings ``{"name": ..., argument: value}`` or `Policy` objects; each run
            uses a copy.
        dataset: name of a task in place of the data, such as "digits" or "language", see
            `astkit.tasks`; it supplies the other arguments too, where they are not given.
        budget: of dense training, in epochs, steps or FLOPs; 5 epochs by default. If FLOPs cannot
            be counted, the other methods train for as many seconds.
        seeds: at least 2 for an interval, 5 for a table.
        minutes: add seeds 0, 1, ... while the next one fits into this time; replaces ``seeds``.
        criterion: ``(outputs, targets)`` -> one loss per row, or losses and mask per token;
            cross-entropy by default.
        metrics: functions ``(outputs, targets) -> [rows]`` by name, or objects with ``update`` and
            ``compute``, where higher is better, or `Metric` objects; the first one is compared. By
            default the accuracy for integer labels, else the mean loss.
        config: learning rate, precision and so on; its seed is replaced.
        batch_size: rows per batch; 128 for data sets by default.
        make_optimizer: builds the optimizer of a model, or a pair of it and a torch scheduler;
            AdamW from ``config`` by default.
        out: folder of the results; the same call continues an interrupted comparison there. By
            default nothing is kept after the process.
        jobs: number of processes; above 1, seconds are not compared.
        smallest_gain: gains below it are called none, in units of the metric; by default 0.005
            (0.5 points) for accuracies.
        check_baseline: try dense training at several learning rates first, each for half of the
            budget. Without a learning rate in ``config``, and without ``make_optimizer``, the best
            one is taken for all methods; else the report says what another one would gain.
        device: "auto" uses the available accelerator.

    Raises ``ValueError`` for invalid arguments, for a folder with results of other settings, and
    for one in use by another process; ``FloatingPointError`` if dense training diverges.
    """
    refuse_removed("compare", removed)
    values = {
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
    values = values if dataset is None else with_task(dataset, values)
    check_kinds({**values, "seeds": seeds, "minutes": minutes, "jobs": jobs}, KINDS)
    budget, seeds = values.pop("budget") or Budget(epochs=5), list(seeds)
    check_numbers(seeds, minutes, jobs, budget)
    task, methods = checked_task(values), checked_methods(policies)
    with _opened(out) as folder:
        if minutes is not None:
            seeds = _finished_seeds(folder)
        schedule = Schedule(
            task,
            methods,
            budget,
            seeds,
            folder,
            minutes=None if seeds else minutes,
            jobs=jobs,
            resumable=out is not None,
            check_baseline=check_baseline,
        )
        contents = {**schedule.train(), "smallest_gain": smallest_gain}
        report = Comparison(contents, folder / RECORDS, task.train)
        report.save(folder / NAME)
        if out is None:
            weakref.finalize(report, shutil.rmtree, folder, ignore_errors=True)
        return report


def _finished_seeds(folder: Path) -> list[int]:
    """The seeds of a comparison that has ended here: more minutes are not added to it."""
    finished = read_json(folder / NAME) or {"entries": []}
    return sorted({entry["seed"] for entry in finished["entries"]})


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
