"""Is this the same run? Its settings, and numbers that a changed run changes, within rounding.

A hash of source code misses what it does not read: helpers of helpers, weights loaded from a file,
data scaled by a generator. So a run is described by its settings and by what it computes: checksums
of data, losses and metrics of a few rows, and what the policy selects by invented losses. Code that
acts only late in a run is not seen, and neither is the code of an optimizer.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

from astkit import distributed, rng
from astkit.datasets import BatchSource
from astkit.datasets.batch import Batch, tensors
from astkit.datasets.facts import class_labels
from astkit.datasets.foreign import drawn_alike
from astkit.gating.epoch import Epoch
from astkit.gating.policy import Policy, overrides
from astkit.gating.selection import Scored, evaluating
from astkit.gating.visits import Visit
from astkit.trainers.evaluation import Evaluation

if TYPE_CHECKING:
    from astkit.trainers.trainer import Trainer

Part = list[float] | None
"""Numbers of one part of a run; ``None`` if they differ from one evaluation to the next."""

FIRST = 32  # rows that the model is evaluated on
ROWS, ROUNDS, CLASSES, BATCH = 256, 4, 10, 64  # what a policy selects from
FREE = ("threads", "keep_memory", "report_every")  # settings that a resumed run may change
TOLERANCE = 1e-4  # relative; float32 sums differ by less between processors
HALF_TOLERANCE = 3e-2  # in bf16 and fp16


def describe(run: Trainer) -> dict[str, Any]:
    """Settings of a run as plain values, and the parts of its fingerprint without the weights."""
    policy, optimisation = run.policy, run.optimisation
    optimizer, data = optimisation.optimizer, run.train_data
    state, config = run.model.state_dict(), getattr(run.model, "config", None)
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    groups = [  # the optimizer's state has the numbers of parameters, so their order counts
        {**group, "lr": lr, "params": [names[each] for each in group["params"]]}
        for group, lr in zip(optimizer.param_groups, optimisation.base_lr, strict=True)
    ]
    layout = ("num_samples", "batch_size", "seed", "shuffle", "drop_last")
    settings = {
        "trainer": type(run).__name__,
        "processes": distributed.world(),
        "update": getattr(run, "update", None),  # of a SampleBySampleTrainer
        **{name: value for name, value in run.config.to_dict().items() if name not in FREE},
        "lr": run.config.peak_lr,
        "lr_factors": [run.config.lr_factor(place / 7) for place in range(8)],
        "budget": asdict(run.budget),
        "flops": plain(run.flops),
        "policy": plain(policy),
        "optimizer": {"class": type(optimizer).__name__, "groups": plain(groups)},
        "scheduler": plain(optimisation.scheduler),
        "model": [[name, list(getattr(part, "shape", ()))] for name, part in state.items()],
        "model config": plain(config) if is_dataclass(config) else None,
        "replay": plain(run.steering.replay),
        "criterion": plain(run.criterion),
        **{f"data.{name}": plain(getattr(data, name, None)) for name in layout},
    }
    train, held = run.first_batches
    return {
        "settings": settings,
        "training data": data_part(data, train),
        "validation data": data_part(run.validation, held),
        "policy": policy_part(policy),
        "half": run.config.precision != "fp32",
    }


def describe_weights(run: Trainer) -> dict[str, Any]:
    """What the model computes now: losses and metrics of a few rows."""

    def compute() -> Iterator[float]:
        for batch in run.first_batches:
            if batch is not None:
                evaluation = Evaluation(run.criterion, run.metrics, classes=False)
                with evaluating(run.model, run.device):
                    evaluation.add(batch, run.forward(run.model, batch))
                values = evaluation.result().values()
                del values["samples"]  # of all processes, which evaluate the same rows
                yield from (value for value in values.values() if value is not None)

    return {"model, criterion or metric": repeated(compute)}


def first_batch(
    source: BatchSource | None, load: Callable[[Tensor | None], Batch] | None = None
) -> Batch | None:
    """At most `FIRST` rows of ``source``; ``None`` where they differ between two loads.

    They are spread over all rows, or are the first ones of a loader with an order of its own.
    ``load`` takes the rows to load and returns a first batch. No epoch may be under way.
    """
    if source is None:
        return None
    rows, size = None, getattr(source, "batch_size", None) or FIRST
    if hasattr(source, "order"):
        last = (source.num_samples or 1) - 1
        rows = torch.linspace(0, last, min(FIRST, size, last + 1)).round().long()
        rows = rows.repeat(-(-size // len(rows)))[:size]  # a full batch, which drop_last keeps
    loaded: list[Batch] = []

    def compute() -> Iterable[float]:
        with drawn_alike(source):
            batch = next(iter(source.batches(0, rows))) if load is None else load(rows)
        loaded.append(batch.take(slice(0, FIRST)))
        return checksum((loaded[-1].x, loaded[-1].y))

    return None if repeated(compute) is None else loaded[-1]


def data_part(source: BatchSource | None, first: Batch | None) -> Part:
    """Checksum of the ``first`` batch and of all class labels, where they are known."""
    if source is None or first is None:
        return None
    data = getattr(source, "data", getattr(source, "loader", None))
    return repeated(lambda: checksum((first.x, first.y, class_labels(data))))


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], where: object) -> None:
    """Raise ``ValueError``, naming what differs, unless two descriptions are of the same run.

    A part that is ``None`` on one side is not compared.
    """
    tolerance = HALF_TOLERANCE if now.get("half") else TOLERANCE
    different = []
    for name, before in then.items():
        after = now.get(name)
        if name == "half" or before is None or after is None or _equal(before, after, tolerance):
            continue
        if isinstance(after, Mapping):
            old, new = _flat(before), _flat(after)
            names = sorted(key for key in old | new if old.get(key) != new.get(key))
            changes = [
                f"{' '.join(key.split()):.80} was {old.get(key)!r:.80} and is {new.get(key)!r:.80}"
                for key in names
            ]
            name = f"{name} ({', '.join(changes[:8])})"
        different.append(name)
    if different:
        raise ValueError(
            f"{where} was made with another {', another '.join(different)}: restore it to continue,"
            " or choose another folder for a new run"
        )


def repeated(compute: Callable[[], Iterable[float]]) -> Part:
    """The numbers that ``compute`` gives twice, with generators seeded equally; else ``None``.

    ``None`` also if it fails, since the run itself reports why.
    """
    values = []
    for _ in range(2):
        with rng.restored():
            random.seed(0)
            np.random.seed(0)
            try:
                with rng.isolated("cpu", "fingerprint"):
                    values.append([float(number) for number in compute()])
            except Exception:
                return None
    return values[0] if _equal(values[0], values[1], TOLERANCE) else None


def _equal(first: Any, second: Any, tolerance: float) -> bool:
    """Whether two values are equal, or lists of numbers that differ by ``tolerance`` at most."""
    if not isinstance(first, list) or not isinstance(second, list):
        return bool(first == second)
    if len(first) != len(second):
        return False
    try:
        pair = np.array([first, second], dtype=float)
    except (TypeError, ValueError):  # of a damaged file
        return False
    return np.allclose(pair[0], pair[1], rtol=tolerance, atol=1e-9, equal_nan=True)


def checksum(values: Any) -> list[float]:
    """Size, sum, and a sum weighted by position of each tensor in ``values``, in float64."""
    numbers: list[float] = []
    for tensor in tensors(values):
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        flat = real.detach().cpu().double().flatten()
        position = torch.arange(len(flat), dtype=torch.float64)
        numbers += [len(flat), float(flat.sum()), float((flat * (position * 0.7548).sin()).sum())]
    return numbers


def policy_part(policy: Policy) -> Part:
    """What copies of ``policy`` select from invented data in two epochs, or `ROUNDS` rounds.

    The target is unlike the data, then like them, since a policy may ask about it first. ``None``
    for a policy that is given numbers of its own data: of these, settings alone are compared.
    """
    rows = torch.arange(2 * ROWS)
    images = rng.uniform(torch.arange(len(rows) * 16), "fingerprint").reshape(-1, 1, 4, 4)
    labels = rows * 7 % CLASSES
    data = TensorDataset(images[:ROWS], labels[:ROWS])
    unlike = TensorDataset(images[ROWS:].square(), labels[ROWS:] * (rows[ROWS:] % 3 > 0))
    like = TensorDataset(images[ROWS:], labels[ROWS:])

    def selected(target: TensorDataset) -> Iterator[float]:
        twin = copy.deepcopy(policy)
        epoch = Epoch(twin, ROWS, data, target)
        rounds = max(ROUNDS, 2 * twin.rounds)
        for number in range(rounds):
            if number % twin.rounds == 0:
                epoch.start(number // twin.rounds)
            before = len(epoch.rows)
            epoch.plan(rng.permutation(ROWS, "fingerprint", epoch.number), number / rounds)
            yield from checksum((epoch.rows, epoch.scale))
            for part in epoch.rows[before:].split(BATCH):
                if overrides(twin, "choose"):
                    x, y = data[part]
                    logits = [rng.uniform(part, "logits", number, each) for each in range(CLASSES)]
                    chosen = twin.choose(Scored(4 * torch.stack(logits, 1), y, x, part))
                    if chosen is not None:
                        part = part[chosen.index]
                        yield from checksum((part, chosen.weight))
                twin.observe(_visit(part, number))

    return repeated(lambda: [number for target in (unlike, like) for number in selected(target)])


def _visit(rows: Tensor, number: int) -> Visit:
    """An invented visit: losses fall from round to round, at a pace of each row's own."""
    first, pace = (rng.uniform(rows, "fingerprint", name) for name in ("loss", "pace"))
    losses = 4 * first * 0.5 ** (number * pace)
    probability = 0.5 ** (losses * 1.5)
    confidence = torch.maximum(probability, 1 - probability)
    right = probability > 0.5
    label = torch.where(right, probability, (1 - confidence) / (CLASSES - 1))  # else a random one
    return Visit(rows, losses, right, confidence, label)


def plain(value: Any) -> Any:
    """``value`` as numbers, strings, lists and mappings; objects by class and configuration."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if value == value else "nan"  # which is equal to itself
    if isinstance(value, Tensor):
        return checksum(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Policy):
        return {"class": type(value).__name__, **plain(value.config())}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        return {"class": type(value).__name__, **parts}
    if isinstance(value, LRScheduler):
        return {"class": type(value).__name__, **plain(value.state_dict())}
    return str(getattr(value, "__qualname__", type(value).__qualname__))


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
