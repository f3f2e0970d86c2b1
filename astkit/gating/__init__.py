"""Deciding which samples are trained on: scores, controllers, gates, and samplers."""

from astkit.gating.controllers import Controller, LogIntegral, OriginPI, TopK
from astkit.gating.gate import Gate, evaluating
from astkit.gating.samplers import RandomSubset, Sampler
from astkit.gating.selection import Selection
from astkit.gating.significance import (
    Criterion,
    Loss,
    LossAndContrast,
    LossContrastConstant,
    RelativeScore,
    Score,
    cross_entropy_rows,
    row_losses,
)

__all__ = [
    "Controller",
    "Criterion",
    "Gate",
    "LogIntegral",
    "Loss",
    "LossAndContrast",
    "LossContrastConstant",
    "OriginPI",
    "RandomSubset",
    "RelativeScore",
    "Sampler",
    "Score",
    "Selection",
    "TopK",
    "cross_entropy_rows",
    "evaluating",
    "row_losses",
]
