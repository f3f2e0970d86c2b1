"""astkit: sample selection for training neural networks, and measurement of its cost and benefit.

Names are imported lazily, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from astkit.names import PUBLIC

if TYPE_CHECKING:
    from astkit.aim.auto import Auto as Auto
    from astkit.aim.explain import explain as explain
    from astkit.aim.forecast import forecast as forecast
    from astkit.aim.policy import Aim as Aim
    from astkit.comparison.compare import compare as compare
    from astkit.comparison.report import Comparison as Comparison
    from astkit.comparison.suspects import suspects as suspects
    from astkit.datasets.foreign import indexed as indexed
    from astkit.datasets.joined import joined as joined
    from astkit.datasets.loader import Loader as Loader
    from astkit.datasets.table import Table as Table
    from astkit.gating.epoch import RunInfo as RunInfo
    from astkit.gating.gate import Gate as Gate
    from astkit.gating.policies.cached_loss import CachedLoss as CachedLoss
    from astkit.gating.policies.class_balanced import ClassBalanced as ClassBalanced
    from astkit.gating.policies.infobatch import InfoBatch as InfoBatch
    from astkit.gating.policies.learned import Learned as Learned
    from astkit.gating.policies.random_subset import RandomSubset as RandomSubset
    from astkit.gating.policies.weighted import Weighted as Weighted
    from astkit.gating.policy import Policy as Policy
    from astkit.gating.selection import Scored as Scored
    from astkit.gating.selection import Selection as Selection
    from astkit.gating.visits import Visit as Visit
    from astkit.trainers.checkpoint import Checkpoints as Checkpoints
    from astkit.trainers.config import Budget as Budget
    from astkit.trainers.config import TrainConfig as TrainConfig
    from astkit.trainers.evaluation import Metric as Metric
    from astkit.trainers.sample_by_sample import SampleBySampleTrainer as SampleBySampleTrainer
    from astkit.trainers.trainer import Trainer as Trainer
    from astkit.widgets.dashboard import Dashboard as Dashboard
    from astkit.widgets.loop import Board as Board

__all__ = list(PUBLIC)
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'astkit' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
