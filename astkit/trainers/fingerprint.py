"""Is this the same run? Its settings, shapes and lengths, counts of labels, and the user's code.

Not seen: other values in the data, what a model computes beyond its parameters' shapes, values that
a function closes over, and code in site-packages or that other functions call; a comparison looks
at these values and functions too, see `astkit.comparison.reads`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from astkit import distributed
from astkit.datasets.facts import class_labels
from astkit.files import LIBRARIES
from astkit.gating.policy import Policy
from astkit.trainers.batches import Batches
from astkit.trainers.evaluation import Validator
from astkit.trainers.optimisation import Optimisation

CHANGEABLE = ("threads", "keep_memory", "report_every")  # settings that a resumed run may change
LAYOUT = ("num_samples", "batch_size", "seed", "shuffle", "drop_last")
TOLERANCE = 1e-3  # of losses, relative, from 1 on; absolute below
LOSSES = "first losses"


def describe_run(
    optimisation: Optimisation, policy: Policy, batches: Batches, validator: Validator
) -> dict[str, Any]:
    """What identifies these parts of a run, as plain values."""
    model, optimizer, rates = optimisation.model, optimisation.optimizer, optimisation.rates
    config, criterion = optimisation.passes.config, optimisation.criterion
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [  # the optimizer's state has the numbers of parameters, so their order counts
        {**group, "lr": lr, "params": [names[each] for each in group["params"]]}
        for group, lr in zip(optimizer.param_groups, rates.base, strict=True)
    ]
    own = getattr(model, "config", None)
    data, validation = batches.undivided, validator.source
    return {
        "processes": distributed.world(),
        **{name: value for name, value in config.to_dict().items() if name not in CHANGEABLE},
        "lr": config.peak_lr,
        "lr_factors": [config.lr_factor(place / 7) for place in range(8)],
        "policy": {**plain(policy), "code": source_code(policy)},
        "optimizer": {"class": type(optimizer).__name__, "groups": plain(groups)},
        "scheduler": plain(rates.scheduler),
        "model": [[n, list(getattr(part, "shape", ()))] for n, part in model.state_dict().items()],
        "model config": plain(own) if is_dataclass(own) else None,
        "criterion": {"name": plain(criterion), "code": source_code(criterion)},
        "metrics": {each.name: source_code(each.function) for each in validator.metrics},
        **{f"data.{name}": plain(getattr(data, name, None)) for name in LAYOUT},
        "data.old": getattr(getattr(data, "data", None), "old_rows", None),
        "data.labels": label_counts(data),
        "validation": [getattr(validation, "num_samples", None), label_counts(validation)],
    }


def label_counts(source: Any) -> dict[str, int] | None:
    """How often each class occurs in a source of batches, where that is known."""
    labels = class_labels(getattr(source, "data", getattr(source, "loader", None)))
    if labels is None:
        return None
    values, counts = labels.unique(return_counts=True)
    return dict(zip(map(str, values.tolist()), counts.tolist(), strict=True))


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], where: object) -> None:
    """Raise ``ValueError``, naming what differs, unless two descriptions are of the same run."""
    then, now = dict(then), dict(now)
    pairs = zip(then.get(LOSSES) or (), now.get(LOSSES) or (), strict=False)
    if all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in pairs):
        then.pop(LOSSES, None), now.pop(LOSSES, None)
    old, new = _flat(then), _flat(now)
    names = sorted(name for name in old | new if old.get(name) != new.get(name))
    changes = [
        f"{' '.join(name.split()):.80} was {old.get(name)!r:.80} and is {new.get(name)!r:.80}"
        for name in names[:8]
    ]
    if changes:
        raise ValueError(
            f"{where} was made with other settings ({', '.join(changes)}): restore them to"
            " continue, or choose another folder for a new run"
        )


def source_code(value: Any) -> list[Any]:
    """The user's code behind a function or an object, without comments.

    A hash of the syntax tree of the function, or of each class of the object that lies outside the
    kit and site-packages; the name of what has no source.
    """
    if isinstance(value, partial):
        return [source_code(value.func), plain(value.args), plain(value.keywords)]
    found = []
    for kind in [value] if inspect.isroutine(value) else type(value).__mro__:
        try:
            path = Path(inspect.getsourcefile(kind) or "").resolve()
            if any(path.is_relative_to(library) for library in LIBRARIES):
                continue
            tree = ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
            found.append(hashlib.sha256(tree.encode()).hexdigest()[:16])
        except (OSError, SyntaxError, TypeError):
            found.append(str(kind.__qualname__))
    return found


def plain(value: Any) -> Any:
    """``value`` as numbers, strings, lists and mappings; objects by class and configuration."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # as which NaN is equal to itself
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return [*value.shape, hashlib.sha256(content).hexdigest()[:16]]
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


def _flat(settings: Any) -> dict[str, Any]:
    """Values of nested settings by their dotted names."""
    found, _ = pytree.tree_flatten_with_path(settings)
    return {
        ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path): value
        for path, value in found
    }
