"""`astkit.compare`: what does selecting samples gain for a model and its data, at equal cost?

The arguments are checked here and become a `Plan`; `train_plan` trains what its folder lacks, and a
`Comparison` judges and shows the results.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from astkit.aim.auto import Auto
from astkit.aim.forecast import Forecast
from astkit.aim.policy import Aim
from astkit.checks import ABOVE_0, check_number, check_types
from astkit.comparison.plan import (
    Chosen,
    Method,
    Plan,
    Task,
    controls_on_target,
    label_of,
    selectable,
)
from astkit.comparison.progress import Live
from astkit.comparison.report import NAME, Comparison
from astkit.comparison.runs import train_plan
from astkit.comparison.statistics import DENSE
from astkit.comparison.tables import epochs_of, with_table, with_target
from astkit.comparison.training import RECORDS
from astkit.datasets import Loader
from astkit.datasets.facts import paired_groups, row_groups
from astkit.gating.losses import Criterion
from astkit.gating.policy import Policy, as_policy
from astkit.gating.selection import same_values
from astkit.names import spelled
from astkit.profiling.flops import RowFlops
from astkit.progress import announce
from astkit.trainers import Budget, TrainConfig
from astkit.trainers.config import choose_config
from astkit.trainers.evaluation import Metrics, as_metrics
from astkit.trainers.fingerprint import plain

PARTS = ("make_model", "train", "validation", "test", "target", "criterion", "metrics")
READING: tuple[str, ...] = ("label", "task", "drop", "date", "groups", "in_order", "keep")
READING += ("encoding", "dtypes")


def compare(
    make_model: Any = None,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
    *,
    target: Any = None,
    label: str | None = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    date: str | None = None,
    groups: str | None = None,
    in_order: bool = False,
    keep: Sequence[str] = (),
    encoding: str | None = None,
    dtypes: Mapping[Any, Any] | None = None,
    policies: Sequence[str | Chosen] | str | Chosen = "auto",
    forecast: Forecast | None = None,
    epochs: float | None = None,
    budget: Budget | None = None,
    seeds: int | Iterable[int] = 5,
    criterion: Criterion | None = None,
    metrics: Metrics = None,
    lr: float | None = None,
    config: TrainConfig | None = None,
    batch_size: int | None = None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    flops: RowFlops | None = None,
    out: str | Path | None = None,
    smallest_gain: float | None = None,
    check_baseline: bool = True,
    device: str = "auto",
) -> Comparison:
    """Compare policies with dense training and random selection at equal FLOPs.

    Methods take turns: for each seed dense training spends the budget, then each policy spends as
    many FLOPs, then random selection does so at each policy's realised rate (of the first seed).
    Scoring counts, and what a policy's numbers took to compute; every learning rate schedule ends
    with the budget. Test data are evaluated once per run. ::

        report = astkit.compare(make_model, train, validation, test, policies=["infobatch"])
        print(report.verdict)
        report = astkit.compare("prices.csv", label="price")  # or a DataFrame

    Args:
        make_model: returns a new model; called with seeded generators, so that all runs of a seed
            start from the same weights. A table in its place means a small network.
        train, validation, test: data sets or loaders, see `Trainer`. Training rows must be
            selectable: a map-style data set, a `Loader`, or a DataLoader without its own sampler.
            With a ``label`` tables: paths of CSV or parquet files, or DataFrames; where validation
            or test are missing, rows of the training table are held back.
        target: rows like those that count, which may be trained on, of the kind of ``train``, see
            `astkit.joined`; at ``validation`` one may only look. Two controls are added: training
            on old and target rows alike, and on the target's alone. Where validation data are
            missing, a fifth of the target is set aside for them, of a table also for the test.
        label: column of the table to be predicted. A model of your own, without a ``criterion``,
            predicts a number in standard deviations from the mean of the training rows.
        task, drop, date, groups, in_order, keep, encoding, dtypes: how the table is read and
            divided, see `astkit.datasets.table_parts.divide_table`.
        policies: names, mappings ``{"name": ..., argument: value}`` or `Policy` objects; each run
            uses a copy.
        forecast: one of `astkit.forecast` for the same old rows, which "aim" and "auto" carry out;
            by default they make their own.
        epochs: of dense training; shorthand for ``budget=Budget(epochs=...)``; 5 by default, of a
            table up to 20, until there are 1,000 steps.
        budget: of dense training, in epochs, steps or FLOPs. If FLOPs cannot be counted and are not
            given, the other methods train for as many seconds.
        seeds: how many, ``5`` for 0 to 4, or which; at least 2 for an interval, 5 for a table.
        criterion: ``(outputs, targets)`` -> one loss per row, or losses and mask per token;
            cross-entropy by default.
        metrics: a `Metric`, or several, of which the first is compared; also a mapping of names to
            objects that say ``higher_is_better`` themselves, such as those of torchmetrics. By
            default the accuracy for integer labels, else the mean loss.
        lr: learning rate of AdamW; shorthand for ``config=TrainConfig(lr=...)``.
        config: learning rate, precision and so on; its seed is replaced.
        batch_size: rows per batch; 128 for data sets by default.
        make_optimizer: builds the optimizer of a model, or a pair of it and a torch scheduler, for
            the steps of dense training; AdamW from ``config`` by default.
        flops: your own figure for the FLOPs of training on one row, see `Trainer`; by default they
            are counted.
        out: folder of the results; the same call continues an interrupted comparison there, and
            more seeds or policies may be asked for. By default nothing is kept after the process.
        smallest_gain: gains below it are called none, in units of the metric; by default 0.005
            (0.5 points) for accuracies.
        check_baseline: try dense training at several learning rates first, each for half of the
            budget. Without ``lr``, also in ``config``, and without ``make_optimizer``, the best one
            is taken for all methods, but "aim" and "auto" have their own where the forecast
            expects a gain; else the report says what another one would gain.
        device: "auto" uses the available accelerator.

    Raises ``ValueError`` for invalid arguments, for a folder with results of other settings, and
    for one in use by another process; ``FloatingPointError`` if dense training diverges.
    """
    given = locals()  # the arguments
    reading = {name: given[name] for name in READING}
    data = with_table({name: given[name] for name in PARTS}, **reading)
    check_types(
        budget=(budget, Budget | None),
        config=(config, TrainConfig | None),
        out=(out, str | Path | None),
        forecast=(forecast, Forecast | None),
    )
    budget = _checked_budget(epochs, budget, epochs_of(data["train"], batch_size))
    data, notes = with_target(data)
    if isinstance(make_optimizer, type | torch.optim.Optimizer):
        raise ValueError(
            f"make_optimizer is {make_optimizer!r:.60}: pass a function of a model that returns a"
            " new optimizer of it"
        )
    numbers = _checked_seeds(seeds)
    if smallest_gain is not None:
        check_number("smallest_gain", smallest_gain, ABOVE_0)
    shared = checked_task(
        {
            **data,
            "config": choose_config(config, lr, None, make_optimizer),
            "batch_size": batch_size,
            "make_optimizer": make_optimizer,
            "flops": flops,
            "device": device,
        }
    )
    methods = checked_methods(policies)
    _check_groups(shared, methods)
    temporary = tempfile.TemporaryDirectory(prefix="astkit-") if out is None else None
    folder = Path(str(out) if temporary is None else temporary.name).expanduser()
    with _locked(folder):
        plan = Plan(
            task=shared,
            policies=methods,
            target_controls=controls_on_target(shared.train),
            selects=hasattr(selectable(shared.train, 0), "order"),
            budget=budget,
            seeds=numbers,
            folder=folder,
            resumable=out is not None,
            forecast=forecast,
        )
        live = Live()
        contents = {**train_plan(plan, check_baseline, notes, live), "smallest_gain": smallest_gain}
        report = Comparison(contents, folder / RECORDS, shared.train)
        report.save(folder / NAME)
        live.show(report)
        for line in [*report.gains, ""]:
            announce(line)
        for each in report.verdicts:
            announce(f"{each.sentence}.", bold=True)
        announce(f"{report.next_step}.")
        if temporary is not None:
            weakref.finalize(report, temporary.cleanup)
        return report


def _locked(folder: Path) -> AbstractContextManager[object]:
    """The ``folder`` for results, made and locked; ``ValueError`` if another process uses it."""
    if folder.is_file():
        raise ValueError(f"out is {folder}, which is a file: name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout as error:
        raise ValueError(
            f"out is {folder}, which another process is using: wait, or choose another folder"
        ) from error


def _checked_budget(epochs: float | None, budget: Budget | None, usual: int) -> Budget:
    """``budget``, or that of ``epochs``, or of the ``usual`` ones.

    Raises ``ValueError`` for both, and for seconds.
    """
    if budget is None:
        return Budget(epochs=usual if epochs is None else epochs)
    if epochs is not None:
        raise ValueError(f"epochs is {epochs!r}, and budget is {budget}: give one of them")
    if budget.seconds is not None:
        raise ValueError(
            "budget is in seconds, which depend on the load of the machine: give epochs, steps or"
            " FLOPs"
        )
    return budget


def _checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, Integral) and not isinstance(seeds, bool) and int(seeds) > 0:
        return list(range(int(seeds)))
    numbers = list(seeds) if isinstance(seeds, Iterable) else []
    whole = all(isinstance(seed, Integral) and seed >= 0 for seed in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        shown = numbers if isinstance(seeds, Iterable) else seeds
        raise ValueError(f"seeds is {shown}: give how many, such as 5, or different whole numbers")
    return list(map(int, numbers))


# --- the task ---


def checked_task(arguments: Mapping[str, Any]) -> Task:
    """The `Task` with the fields ``arguments``, those that are not ``None``.

    Raises ``ValueError`` for missing parts, and for a ``make_model`` whose runs would not start
    from the same weights.
    """
    for part in ("make_model", "train", "validation", "test"):
        if arguments[part] is None:
            raise ValueError(f"{part} is missing: pass it, or compare(**astkit.tasks.task(name))")
    named = {name: value for name, value in arguments.items() if value is not None}
    task = Task(**{**named, "metrics": as_metrics(arguments["metrics"])})
    _check_model(task)
    return task


def _check_model(task: Task) -> None:
    make = task.make_model
    if isinstance(make, nn.Module) or not callable(make):
        raise ValueError(
            f"make_model is a {type(make).__name__}: pass a function without arguments that returns"
            " a new model"
        )
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ValueError(
            f"make_model cannot be called without arguments ({error}): pass a function, such as"
            " functools.partial of this one"
        ) from None
    except ValueError:  # no signature is known
        pass
    one, other = task.model(0), task.model(0)
    if not isinstance(one, nn.Module):
        raise ValueError(f"make_model returns a {type(one).__name__}: return a torch module")
    addresses = _addresses(one).values()
    if shared := [name for name, address in _addresses(other).items() if address in addresses]:
        raise ValueError(
            f"make_model returns models that share {shared[0]}, so that one run would train"
            " another's weights: build the whole model in each call, or copy the shared part"
        )
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    known = [(first, second) for first, second in pairs if isinstance(first, Tensor)]
    if not all(same_values(first, second) for first, second in known):
        raise ValueError(
            "make_model returns different weights for the same seed: draw them with torch's default"
            " generator only"
        )


def _addresses(model: nn.Module) -> dict[str, int]:
    """Where the tensors lie that training changes: those with gradients, and running statistics."""
    return {
        name: value.data_ptr()
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor)
        and value.numel()
        and (value.requires_grad or name.endswith("running_mean"))
    }


# --- the policies ---


def checked_methods(policies: Any) -> dict[str, Method]:
    """The policies by label, without "dense"; raises ``ValueError`` for invalid ones."""
    one = isinstance(policies, str | Mapping | Policy)
    methods: dict[str, Method] = {}
    for each in [policies] if one else policies or []:
        if each == DENSE:  # always trained
            continue
        chosen = spelled(each) if isinstance(each, str) else each
        label = label_of(chosen)
        if label in methods:
            raise ValueError(f"policies holds {label} twice: give each policy other arguments")
        if isinstance(chosen, Policy) and _used(chosen):
            raise ValueError(
                f"policies holds a {label} with what it observed in another run: pass a new one, or"
                " its name"
            )
        methods[label] = Method(label, chosen)
    if not methods:
        raise ValueError(
            f"policies is {policies!r}: name at least one beside dense training, such as"
            " 'infobatch'"
        )
    return methods


def _used(policy: Policy) -> bool:
    """Whether the state of ``policy`` is no longer that of a new one."""
    try:
        new = type(policy)(**policy.config())
    except (TypeError, ValueError):  # a constructor that does not store its arguments
        return False
    # of a copy, as asking may draw what depends on a seed that is not set yet
    return bool(plain(copy.deepcopy(policy).state_dict()) != plain(new.state_dict()))


def _check_groups(task: Task, methods: Mapping[str, Method]) -> None:
    """Raise ``ValueError`` for groups of rows that cannot be used; see `row_groups`."""
    for part in ("train", "validation"):
        row_groups(getattr(task, part), f"{part} data")
    if any(isinstance(as_policy(method.policy), Aim | Auto) for method in methods.values()):
        paired_groups(task.train, task.validation)
    grouped = row_groups(task.test, "test data") is not None
    if grouped and not isinstance(task.source("test"), Loader):
        raise ValueError(
            "test has groups, but its loader orders or changes the rows itself, so that it is not"
            " known whose rows it yields: pass the data set"
        )
