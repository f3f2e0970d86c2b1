"""Names and the modules that define them, for lazy imports and the registries; values as words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

PUBLIC: dict[str, str] = {
    "Board": "astkit.widgets.loop",
    "Budget": "astkit.trainers.config",
    "Checkpoints": "astkit.trainers.checkpoint",
    "Comparison": "astkit.comparison.report",
    "Dashboard": "astkit.widgets.dashboard",
    "Loader": "astkit.datasets.loader",
    "Metric": "astkit.trainers.evaluation",
    "Policy": "astkit.gating.policy",
    "RunInfo": "astkit.gating.epoch",
    "SampleBySampleTrainer": "astkit.trainers.sample_by_sample",
    "Scored": "astkit.gating.selection",
    "Selection": "astkit.gating.selection",
    "Table": "astkit.datasets.table",
    "TrainConfig": "astkit.trainers.config",
    "Trainer": "astkit.trainers.trainer",
    "Visit": "astkit.gating.visits",
    "compare": "astkit.comparison.compare",
    "explain": "astkit.aim.explain",
    "forecast": "astkit.aim.forecast",
    "indexed": "astkit.datasets.foreign",
    "joined": "astkit.datasets.joined",
    "suspects": "astkit.comparison.suspects",
}

REGISTRIES: dict[str, dict[str, str]] = {
    "policy": {
        "gate": "astkit.gating.gate:Gate",
        "random": "astkit.gating.policies.random_subset:RandomSubset",
        "aim": "astkit.aim.policy:Aim",
        "auto": "astkit.aim.auto:Auto",
        "cached_loss": "astkit.gating.policies.cached_loss:CachedLoss",
        "class_balanced": "astkit.gating.policies.class_balanced:ClassBalanced",
        "infobatch": "astkit.gating.policies.infobatch:InfoBatch",
        "learned": "astkit.gating.policies.learned:Learned",
        "weighted": "astkit.gating.policies.weighted:Weighted",
    },
    "score": {
        "confidence": "astkit.gating.scores:confidence",
        "contrast": "astkit.gating.scores:contrast",
        "entropy": "astkit.gating.scores:entropy",
        "gradient_norm": "astkit.gating.scores:gradient_norm",
        "loss": "astkit.gating.scores:Loss",
        "loss_and_contrast": "astkit.gating.scores:LossAndContrast",
        "loss_contrast_constant": "astkit.gating.scores:LossContrastConstant",
        "margin": "astkit.gating.scores:margin",
    },
    "controller": {
        "log_integral": "astkit.gating.controllers:LogIntegral",
        "origin_pi": "astkit.gating.controllers:OriginPI",
        "quantile_ema": "astkit.gating.controllers:QuantileEMA",
        "top_k": "astkit.gating.controllers:TopK",
    },
    "model": {
        "digits_cnn": "astkit.models:DigitsCNN",
        "simple_cnn": "astkit.models:SimpleCNN",
        "simplified_vit": "astkit.models:SimplifiedViT",
    },
    "condition": {
        "clean": "astkit.datasets.conditions:clean",
        "wrong_labels": "astkit.datasets.conditions:wrong_labels",
        "long_tail": "astkit.datasets.conditions:long_tail",
        "drift": "astkit.datasets.conditions:drift",
    },
    "task": {
        "digits": "astkit.tasks.images:digits",
        "cifar10": "astkit.tasks.images:cifar10",
        "fashion_mnist": "astkit.tasks.images:fashion_mnist",
    },
    "dataset": {
        "bikes": "astkit.datasets.sources:load_bikes",
        "digits": "astkit.datasets.sources:load_digits",
        "cifar10": "astkit.datasets.sources:load_cifar10",
        "fashion_mnist": "astkit.datasets.sources:load_fashion_mnist",
        "folders": "astkit.datasets.sources:load_folders",
    },
}

IN_A_CELL = ("bls", "gradnorm_is", "rho", "selective_backprop", "seta", "subset")
"""Policies that a page of docs has in place of the package."""

for _place in REGISTRIES["policy"].values():
    _module, _, _name = _place.partition(":")
    PUBLIC[_name] = _module


def resolve(kind: str, name: str) -> Any:
    """The object ``name`` of the table ``kind``; raises ``ValueError`` for an unknown name."""
    table = REGISTRIES[kind]
    if kind == "policy" and name in IN_A_CELL:
        raise ValueError(
            f"policy {name!r} is not part of astkit: docs/recipes.md has its rule as a"
            " class of about 20 lines, which a file of yours gives by name, as in 'mine.py:Mine'"
        )
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"unknown {kind} {name!r}: choose one of {', '.join(sorted(table))}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def registered(kind: str, made: type) -> str:
    """The name of a class in the table ``kind``; of one that is not there, its own."""
    names = {place: name for name, place in REGISTRIES[kind].items()}
    return names.get(f"{made.__module__}:{made.__qualname__}", made.__name__)


def literal(text: str) -> Any:
    """The value of a JSON or Python literal, or ``text`` itself, stripped, if it is none."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text.strip())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return text.strip()


def assignments(options: Sequence[str], flag: str = "-p") -> dict[str, str]:
    """``name=value`` options as a mapping; raises ``ValueError`` for invalid or repeated ones."""
    values: dict[str, str] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ValueError(f"{flag} is {option!r}: give name=value")
        if name.strip() in values:
            raise ValueError(f"{flag} gives {name.strip()} twice: give it once")
        values[name.strip()] = text
    return values


def spelled(text: str) -> dict[str, Any]:
    """The policy in "name:argument=value,argument=value"; the name may be "mine.py:Rule"."""
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        kind, _, rest = rest.partition(":")
        name = f"{name}:{kind}"
    parts = re.split(r",(?=\s*\w+=)", rest.rstrip(",")) if rest else []  # a list may contain commas
    arguments = assignments([f"name={name}", *parts], f"policy {text}")
    return {key: value if key == "name" else literal(value) for key, value in arguments.items()}
