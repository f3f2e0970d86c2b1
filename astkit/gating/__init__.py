"""Deciding which samples are trained on: scores, controllers, gates, and samplers."""

from astkit.gating.combine import WeightedSum, named_score
from astkit.gating.controllers import Controller, LogIntegral, TopK
from astkit.gating.density import density, log_density
from astkit.gating.device import DeviceGate
from astkit.gating.gate import Gate, evaluating
from astkit.gating.origin import OriginPI, OriginStochastic
from astkit.gating.samplers import RandomSubset, Sampler
from astkit.gating.selection import Selection
from astkit.gating.significance import (
    ContextScore,
    Contrast,
    Criterion,
    Loss,
    LossAndContrast,
    LossContrastConstant,
    RelativeScore,
    Score,
    Scored,
    cross_entropy_rows,
    row_losses,
    score_rows,
)
from astkit.gating.teacher import Disagreement
from astkit.gating.tracking import QuantileEMA, VelocityPI
from astkit.gating.uncertainty import Confidence, Entropy, GradientNorm, Margin
from astkit.gating.visits import EL2N, LossAge

__all__ = [
    "EL2N",
    "Confidence",
    "ContextScore",
    "Contrast",
    "Controller",
    "Criterion",
    "DeviceGate",
    "Disagreement",
    "Entropy",
    "Gate",
    "GradientNorm",
    "LogIntegral",
    "Loss",
    "LossAge",
    "LossAndContrast",
    "LossContrastConstant",
    "Margin",
    "OriginPI",
    "OriginStochastic",
    "QuantileEMA",
    "RandomSubset",
    "RelativeScore",
    "Sampler",
    "Score",
    "Scored",
    "Selection",
    "TopK",
    "VelocityPI",
    "WeightedSum",
    "cross_entropy_rows",
    "density",
    "evaluating",
    "log_density",
    "named_score",
    "row_losses",
    "score_rows",
]
