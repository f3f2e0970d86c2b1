"""Names and the modules that define them, for lazy imports, the registries and the exporter.

The tables are literals, so they can be parsed without importing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PUBLIC: dict[str, str] = {
    "AdaptiveSparseTrainer": "astkit.trainers.dropin",
    "Budget": "astkit.trainers.state",
    "Checkpoints": "astkit.trainers.checkpoint",
    "Comparison": "astkit.runs.comparison",
    "Dashboard": "astkit.widgets.dashboard",
    "EnergyFlowLattice": "astkit.lattice.model",
    "Gate": "astkit.gating.gate",
    "GatedStep": "astkit.trainers.steps",
    "LatticeConfig": "astkit.lattice.config",
    "LiveBoard": "astkit.widgets.board",
    "Loader": "astkit.datasets.loaders",
    "LogicCA": "astkit.logic_ca.automaton",
    "LogicCAConfig": "astkit.logic_ca.config",
    "Metric": "astkit.trainers.evaluator",
    "Policy": "astkit.gating.policy",
    "RandomSubset": "astkit.gating.random_subset",
    "RunInfo": "astkit.gating.sampler",
    "SampleAdaptiveSparseTrainer": "astkit.trainers.dropin",
    "SampleStep": "astkit.trainers.sample_by_sample",
    "Scored": "astkit.gating.scored",
    "ScoredBatches": "astkit.gating.scored",
    "Selection": "astkit.gating.selection",
    "TrainConfig": "astkit.trainers.config",
    "Trainer": "astkit.trainers.trainer",
    "Visit": "astkit.gating.visits",
    "compare": "astkit.runs.comparison",
    "indexed": "astkit.datasets.foreign",
}

REGISTRIES: dict[str, dict[str, str]] = {
    "policy": {
        "gate": "astkit.gating.gate:Gate",
        "random": "astkit.gating.random_subset:RandomSubset",
        "auto": "astkit.gating.auto:Auto",
        "bls": "astkit.gating.bls:BatchLossScore",
        "cached_loss": "astkit.gating.cached_loss:CachedLoss",
        "class_balanced": "astkit.gating.class_balanced:ClassBalanced",
        "el2n_static": "astkit.gating.el2n_static:StaticEL2N",
        "gradnorm_is": "astkit.gating.gradnorm_is:GradNormIS",
        "infobatch": "astkit.gating.infobatch:InfoBatch",
        "kakurenbo": "astkit.gating.kakurenbo:Kakurenbo",
        "learned": "astkit.gating.learned:Learned",
        "proxy_topk": "astkit.gating.proxy_topk:ProxyTopK",
        "rcap": "astkit.gating.rcap:RCAP",
        "repb": "astkit.gating.repb:RePB",
        "rho": "astkit.gating.rho:Rho",
        "selective_backprop": "astkit.gating.selective_backprop:SelectiveBackprop",
        "seta": "astkit.gating.seta:SeTa",
    },
    "score": {
        "confidence": "astkit.gating.uncertainty:confidence",
        "contrast": "astkit.gating.significance:contrast",
        "el2n": "astkit.gating.sample_memory:EL2N",
        "entropy": "astkit.gating.uncertainty:entropy",
        "gradient_norm": "astkit.gating.uncertainty:gradient_norm",
        "loss": "astkit.gating.significance:Loss",
        "loss_and_contrast": "astkit.gating.significance:LossAndContrast",
        "loss_contrast_constant": "astkit.gating.significance:LossContrastConstant",
        "margin": "astkit.gating.uncertainty:margin",
    },
    "controller": {
        "log_integral": "astkit.gating.tracking:LogIntegral",
        "origin_pi": "astkit.gating.origin:OriginPI",
        "quantile_ema": "astkit.gating.tracking:QuantileEMA",
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
        "duplicates": "astkit.datasets.conditions:duplicates",
        "long_tail": "astkit.datasets.conditions:long_tail",
        "small": "astkit.datasets.conditions:small",
    },
    "task": {
        "digits": "astkit.tasks.images:digits",
        "cifar10": "astkit.tasks.images:cifar10",
        "language": "astkit.tasks.language:language",
        "text": "astkit.tasks.text:text",
        "regression": "astkit.tasks.tables:diabetes",
        "imbalanced": "astkit.tasks.tables:imbalanced",
        "series": "astkit.tasks.series:oscillations",
        "forecast": "astkit.tasks.series:forecast",
        "sound": "astkit.tasks.sound:sound",
    },
    "dataset": {
        "digits": "astkit.datasets.sources:load_digits",
        "cifar10": "astkit.datasets.cifar10:load_cifar10",
        "folders": "astkit.datasets.sources:load_folders",
    },
}


def resolve(kind: str, name: str) -> Any:
    """The object ``name`` of the table ``kind``; raises ``ValueError`` for an unknown name."""
    table = REGISTRIES[kind]
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}: choose one of {', '.join(sorted(table))}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
