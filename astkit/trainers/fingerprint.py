"""Is this the same run? Numbers that a changed run changes, compared within rounding.

A hash of source code misses what it does not read: helpers of helpers, weights loaded from a file,
data scaled by a generator. So a run is described by what it computes: checksums of sampled data,
losses and gradient of the model on a first batch, the optimizer's first step, and what the policy
selects in four rounds of invented losses. Code that acts only late in a run is not seen.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset, default_collate

from astkit import rng
from astkit.datasets import BatchSource
from astkit.datasets.batch import Batch, tensors
from astkit.datasets.facts import class_labels
from astkit.gating.epoch import RunInfo
from astkit.gating.losses import row_losses
from astkit.gating.policy import Policy, overrides
from astkit.gating.selection import Scored, Selection, evaluating
from astkit.gating.visits import Visit
from astkit.trainers.batches import Batches
from astkit.trainers.config import Budget, TrainConfig
from astkit.trainers.evaluation import Evaluation, Metric
from astkit.trainers.optimisation import Optimisation

Part = list[float] | None
"""Numbers of one part of a run; ``None`` if they differ from one evaluation to the next."""

FIRST = 32  # rows that the model is evaluated on
SAMPLED = 64  # rows of each split in its checksum
ROWS = 256  # rows of the policy's rounds
ROUNDS, CLASSES, BATCH = 4, 10, 64
FREE = ("threads", "keep_memory", "report_every")  # settings that a resumed run may change
TOLERANCE = 1e-4  # relative; float32 sums differ by less between processors
HALF_TOLERANCE = 3e-2  # in bf16 and fp16


class Run(Protocol):
    """The attributes of a trainer that describe its run."""

    config: TrainConfig
    budget: Budget
    policy: Policy | None
    train_data: BatchSource
    validation: BatchSource | None
    batches: Batches
    optimisation: Optimisation
    metrics: tuple[Metric, ...]
    device: torch.device

    @property
    def first_batches(self) -> tuple[Batch | None, Batch | None]: ...

    def forward(self, model: nn.Module, batch: Batch) -> Any: ...


def describe(run: Run) -> dict[str, Any]:
    """Settings of a run as plain values, and the parts of its fingerprint without the weights."""
    policy, optimisation = run.policy, run.optimisation
    model, optimizer = optimisation.model, optimisation.optimizer
    groups = [
        {**group, "lr": lr, "params": len(group["params"])}
        for group, lr in zip(optimizer.param_groups, optimisation.base_lr, strict=True)
    ]
    settings = {
        **{name: value for name, value in run.config.to_dict().items() if name not in FREE},
        "lr": run.config.peak_lr,
        "lr_factors": [run.config.lr_factor(place / 7) for place in range(8)],
        "budget": asdict(run.budget),
        "policy": None if policy is None else plain(policy),
        "optimizer": {"class": type(optimizer).__name__, "groups": plain(groups)},
        "scheduler": plain(optimisation.scheduler),
        "model": [[name, list(part.shape)] for name, part in model.state_dict().items()],
        "criterion": _name(optimisation.criterion),
        **{f"data.{name}": value for name, value in _layout(run.train_data).items()},
    }
    functions = [each.function for each in run.metrics]
    first = run.first_batches[0]  # shuffled and augmented
    return {
        "settings": settings,
        "training data": data_part(run.train_data),
        "first training batch": None if first is None else checksum(tensors((first.x, first.y))),
        "validation data": data_part(run.validation),
        "optimizer": optimizer_part(model, optimizer),
        "policy": None if policy is None else policy_part(run, policy),
        "half": run.config.precision != "fp32",
        "code": code_hash(model, policy, optimisation.criterion, *functions),
    }


def describe_weights(run: Run) -> dict[str, Any]:
    """What the model computes now: losses and gradient on a first batch, and the metrics."""
    model, criterion = run.optimisation.model, run.optimisation.criterion
    train, held = run.first_batches
    parameters = [p for p in model.parameters() if p.requires_grad]

    def mean_loss(batch: Batch) -> Tensor:
        return row_losses(criterion, run.forward(model, batch), batch.y).mean()

    def learning(batch: Batch) -> Iterable[float]:
        with evaluating(model, run.device), torch.enable_grad():
            loss = mean_loss(batch)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            norms = [float(g.double().square().sum()) for g in gradients if g is not None]
            losses = [loss] if held is None else [loss, mean_loss(held)]
        return [math.sqrt(sum(norms)), *(float(each.detach()) for each in losses)]

    def measured(batch: Batch) -> Iterable[float]:
        evaluation = Evaluation(criterion, run.metrics, classes=False)
        with evaluating(model, run.device):
            evaluation.add(batch, run.forward(model, batch))
        values = evaluation.result().values()
        return [values[each.name] for each in run.metrics]

    return {
        "model and criterion": None if train is None else repeated(lambda: learning(train)),
        "metrics": None if held is None else repeated(lambda: measured(held)),
    }


def first_batches(
    batches: Batches, validation: BatchSource | None
) -> tuple[Batch | None, Batch | None]:
    """The first `FIRST` rows of both splits; ``None`` where they differ between two loads.

    To be called while no epoch is under way.
    """

    def steady(load: Callable[[], Batch]) -> Batch | None:
        loaded: list[Batch] = []

        def compute() -> Iterable[float]:
            loaded.append(load().take(slice(0, FIRST)))
            return checksum(tensors((loaded[-1].x, loaded[-1].y)))

        return None if repeated(compute) is None else loaded[-1]

    held = None if validation is None else steady(lambda: next(iter(validation.batches(0))))
    return steady(batches.peek), held


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], where: object) -> None:
    """Raise ``ValueError``, naming what differs, unless two descriptions are of the same run."""
    different = same(then, now)
    if not different:
        return
    if "settings" in different:
        before, after = _flat(then["settings"]), _flat(now["settings"])
        names = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
        changes = [
            f"{' '.join(n.split()):.80} was {before.get(n)!r:.80} and is {after.get(n)!r:.80}"
            for n in names
        ]
        different[different.index("settings")] = f"settings ({', '.join(changes[:8])})"
    raise ValueError(
        f"{where} was made with another {', another '.join(different)}: restore it to continue, or"
        " choose another folder for a new run"
    )


def repeated(compute: Callable[[], Iterable[float]]) -> Part:
    """The numbers that ``compute`` gives twice, with generators seeded equally; else ``None``.

    ``None`` also if it fails, since the run itself reports why.
    """
    found = []
    for _ in range(2):
        with rng.restored():
            random.seed(0)
            np.random.seed(0)
            try:
                with rng.isolated("cpu", "fingerprint"):
                    found.append([float(number) for number in compute()])
            except Exception:
                return None
    return found[0] if _equal(found[0], found[1], TOLERANCE) else None


def same(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of the parts that differ; a part that is ``None`` on one side is not compared."""
    tolerance = HALF_TOLERANCE if now.get("half") else TOLERANCE
    different = []
    for name in [*then, *(name for name in now if name not in then)]:
        before, after = then.get(name), now.get(name)
        if name in ("half", "code") or before is None or after is None:
            continue
        numbers = isinstance(before, list) and isinstance(after, list)
        if not (_equal(before, after, tolerance) if numbers else before == after):
            different.append(name)
    if not different and then.get("code") != now.get("code"):
        warnings.warn(
            "the code of the model, the policy, the criterion or a metric has changed since, but"
            " not its numbers: the earlier results are used",
            stacklevel=3,
        )
    return different


def _equal(first: Sequence[float], second: Sequence[float], tolerance: float) -> bool:
    def close(a: object, b: object) -> bool:
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            return False  # of a damaged file
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9) or (a != a and b != b)

    return len(first) == len(second) and all(map(close, first, second))


def checksum(values: Iterable[Tensor]) -> list[float]:
    """Size, sum, and a sum weighted by position of each tensor, in float64."""
    numbers: list[float] = []
    for tensor in values:
        flat = tensor.detach().cpu().double().flatten()
        position = torch.arange(len(flat), dtype=torch.float64)
        numbers += [len(flat), float(flat.sum()), float((flat * (position * 0.7548).sin()).sum())]
    return numbers


def data_part(source: BatchSource | None) -> Part:
    """Checksum of `SAMPLED` rows and of all class labels; ``None`` for data read in order only."""
    loader: Any = getattr(source, "loader", source)
    data: Any = getattr(loader, "data", getattr(loader, "dataset", None))
    if isinstance(loader, list | tuple):
        return repeated(lambda: checksum(tensors(loader[0])))
    if data is None or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        return None
    rows = len(data)
    collate = getattr(loader, "collate_fn", None) or default_collate
    picked = sorted({round(place) for place in np.linspace(0, rows - 1, min(SAMPLED, rows))})

    def compute() -> Iterable[float]:
        labels = class_labels(data)
        known = [] if labels is None else checksum([labels])
        return [rows, *known, *checksum(tensors(collate([data[row] for row in picked])))]

    return repeated(compute)


def optimizer_part(model: nn.Module, optimizer: torch.optim.Optimizer) -> Part:
    """Checksum of weights after one step of a copy of ``optimizer`` from invented gradients."""

    def compute() -> Iterable[float]:
        twin, stepper = copy.deepcopy((model, optimizer))
        stepper.state.clear()
        for number, parameter in enumerate(twin.parameters()):
            if parameter.requires_grad:
                fill(parameter.data, number)
                parameter.grad = torch.empty_like(parameter)
                fill(parameter.grad, "gradient", number)
        stepper.step()
        return checksum(parameter for parameter in twin.parameters() if parameter.requires_grad)

    return repeated(compute)


def fill(tensor: Tensor, *key: int | str) -> None:
    """Fill ``tensor`` with numbers between -0.1 and 0.1 that depend on ``key`` only."""
    if tensor.is_floating_point():
        numbers = rng.uniform(torch.arange(tensor.numel()), "fingerprint", *key)
        tensor.copy_((numbers * 0.2 - 0.1).reshape(tensor.shape))


def policy_part(run: Run, policy: Policy) -> Part:
    """What copies of ``policy`` select on `ROWS` rows with invented losses, in `ROUNDS` or more.

    One that plans has a target unlike the training data, then one alike, since it may ask about the
    target first. A policy that uses a model gets a copy with invented weights, and rows of the
    training data.
    """
    model = run.optimisation.model

    def compute() -> Iterable[float]:
        kinds = (True, False) if overrides(policy, "plan") else (True,)
        return [number for unlike in kinds for number in selected(unlike)]

    def selected(unlike: bool) -> list[float]:
        twin, helper = copy.deepcopy((policy, model))
        for number, parameter in enumerate(helper.parameters()):
            fill(parameter.data, number)
        numbers: list[float] = []
        parts: list[Batch] = []
        if overrides(twin, "prepare") or overrides(twin, "choose"):
            parts = _first_rows(run.train_data)

        def scored(part: Batch) -> Scored:
            criterion = run.optimisation.criterion
            known = (None, part.y, part.x, part.index, helper)
            return Scored(*known, criterion=criterion, forward=run.forward)

        if overrides(twin, "prepare"):
            twin.prepare(lambda: copy.deepcopy(helper), [scored(part) for part in parts])
        rounds = max(ROUNDS, 2 * twin.rounds)  # two epochs, at least
        for number in range(rounds):
            if overrides(twin, "plan"):
                numbers += _planned(twin, number, number / rounds, unlike)
            for part in parts if overrides(twin, "choose") else ():
                numbers += _chosen(twin, number, scored(part))
        return numbers

    return repeated(compute)


def _first_rows(source: BatchSource) -> list[Batch]:
    """The first `ROWS` rows of the data in batches, numbered from 0."""
    batches: list[Batch] = []
    for batch in source.batches(0):
        first = sum(each.rows for each in batches)
        index = torch.arange(first, first + batch.rows)
        batches.append(batch._replace(index=index).take(slice(0, ROWS - first)))
        if first + batch.rows >= ROWS:
            break
    return batches


def _planned(policy: Policy, number: int, progress: float, unlike: bool) -> list[float]:
    epoch, place = divmod(number, policy.rounds)
    order = rng.permutation(ROWS, "fingerprint", epoch)
    first, last = (ROWS * each // policy.rounds for each in (place, place + 1))
    labels = torch.arange(ROWS) * 7 % CLASSES
    others = torch.cat([labels, labels[labels < 3]]) if unlike else labels
    size = len(labels) + len(others)
    pixels = rng.uniform(torch.arange(size * 16), "fingerprint", "images")
    images, seen = pixels.reshape(-1, 1, 4, 4).split([len(labels), len(others)])
    info = RunInfo(
        samples=ROWS,
        rows=order[first:last],
        epoch=epoch,
        round=place,
        progress=progress,
        labels=labels,
        seed=policy.seed,
        data=TensorDataset(images, labels),
        target=TensorDataset(seen.square() if unlike else seen, others),
    )
    selection = policy.plan(info) or Selection(info.rows)
    for rows in selection.index.split(BATCH):
        policy.observe(_visit(rows, number, trained=True))
    if selection.score_only is not None and len(selection.score_only):
        policy.observe(_visit(selection.score_only, number, trained=False))
    return [*checksum([selection.index, selection.scale]), selection.lr_factor]


def _visit(rows: Tensor, number: int, trained: bool) -> Visit:
    """An invented visit: losses fall from round to round, at a pace of each row's own."""
    first, pace = (rng.uniform(rows, "fingerprint", name) for name in ("loss", "pace"))
    losses = 4 * first * 0.5 ** (number * pace)
    probability = 0.5 ** (losses * 1.5)
    confidence = torch.maximum(probability, 1 - probability)
    right = probability > 0.5
    label = torch.where(right, probability, (1 - confidence) / (CLASSES - 1))  # else a random one
    return Visit(rows, losses, right, confidence, label, trained)


def _chosen(policy: Policy, number: int, seen: Scored) -> list[float]:
    rows = torch.arange(seen.rows)
    if not policy.has_helper:  # otherwise it reads the inputs
        logits = [rng.uniform(rows, "fingerprint", number, each) * 4 for each in range(CLASSES)]
        labels = rows * 7 % CLASSES
        seen = Scored(torch.stack(logits, 1), labels, seen.inputs, seen.index, seen.model)
    selection = policy.choose(seen)
    if selection is None:
        return [-1.0]
    assert seen.index is not None
    index = seen.index[selection.index.cpu()]
    policy.observe(_visit(index, number, trained=True))
    return checksum([index, selection.weight])


def code_hash(*objects: Any) -> str:
    """A hash of the source of the user's own classes and functions among ``objects``."""
    digest = hashlib.sha256()
    for each in objects:
        kind = each if inspect.isroutine(each) or inspect.isclass(each) else type(each)
        if str(getattr(kind, "__module__", "astkit")).split(".")[0] in ("astkit", "torch"):
            continue
        try:
            digest.update(inspect.getsource(kind).encode())
        except (OSError, TypeError):  # typed in a session, or built in
            continue
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """``value`` as numbers, strings, lists and mappings; objects by class and configuration."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return checksum([value])
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Policy):
        return {"class": type(value).__name__, **plain(value.config())}
    if isinstance(value, LRScheduler):
        return {"class": type(value).__name__, "base_lrs": plain(value.base_lrs)}
    return _name(value)


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _layout(source: BatchSource) -> dict[str, Any]:
    names = ("num_samples", "batch_size", "seed", "shuffle", "drop_last")
    return {name: plain(getattr(source, name, None)) for name in names}


def _flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names."""
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    if not isinstance(settings, Mapping):
        return {name: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{name}.{key}" if name else str(key))
    return flat
