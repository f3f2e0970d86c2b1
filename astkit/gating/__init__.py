"""Deciding which samples are trained on: scores, controllers, gates and policies."""

from astkit.gating.combine import WeightedSum, named_score
from astkit.gating.controllers import Controller, TopK
from astkit.gating.device import DeviceGate
from astkit.gating.disagreement import Disagreement
from astkit.gating.gate import Gate
from astkit.gating.losses import (
    Criterion,
    check_labels,
    cross_entropy_rows,
    row_losses,
    token_losses,
)
from astkit.gating.origin import OriginPI, OriginStochastic
from astkit.gating.policy import Cost, Policy, PolicyCard, Visit, as_policy
from astkit.gating.random_subset import RandomSubset
from astkit.gating.sample_memory import EL2N, LossAge
from astkit.gating.sampler import RunInfo
from astkit.gating.scored import Scored, ScoredBatches, evaluating
from astkit.gating.selection import Selection
from astkit.gating.significance import (
    ContextScore,
    Loss,
    LossAndContrast,
    LossContrastConstant,
    RelativeScore,
    Score,
)
from astkit.gating.tracking import (
    LogIntegral,
    QuantileEMA,
    VelocityPI,
    density,
    log_density,
)

__all__ = [
    "EL2N",
    "ContextScore",
    "Controller",
    "Cost",
    "Criterion",
    "DeviceGate",
    "Disagreement",
    "Gate",
    "LogIntegral",
    "Loss",
    "LossAge",
    "LossAndContrast",
    "LossContrastConstant",
    "OriginPI",
    "OriginStochastic",
    "Policy",
    "PolicyCard",
    "QuantileEMA",
    "RandomSubset",
    "RelativeScore",
    "RunInfo",
    "Score",
    "Scored",
    "ScoredBatches",
    "Selection",
    "TopK",
    "VelocityPI",
    "Visit",
    "WeightedSum",
    "as_policy",
    "check_labels",
    "cross_entropy_rows",
    "density",
    "evaluating",
    "log_density",
    "named_score",
    "row_losses",
    "token_losses",
]
