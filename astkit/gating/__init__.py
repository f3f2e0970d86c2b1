"""Sample selection: scores, controllers, gates and policies."""

from astkit.gating.bls import BatchLossScore
from astkit.gating.cached_loss import CachedLoss
from astkit.gating.class_balanced import ClassBalanced
from astkit.gating.combine import WeightedSum, named_score
from astkit.gating.controllers import Controller, TopK
from astkit.gating.device import DeviceGate
from astkit.gating.el2n_static import StaticEL2N
from astkit.gating.gate import Gate
from astkit.gating.gradnorm_is import GradNormIS
from astkit.gating.infobatch import InfoBatch
from astkit.gating.kakurenbo import Kakurenbo
from astkit.gating.losses import (
    Criterion,
    check_labels,
    cross_entropy_rows,
    row_losses,
    token_losses,
)
from astkit.gating.origin import OriginPI
from astkit.gating.policy import Cost, Policy, PolicyCard, Visit, as_policy
from astkit.gating.proxy_topk import ProxyTopK
from astkit.gating.random_subset import RandomSubset
from astkit.gating.rcap import RCAP
from astkit.gating.repb import RePB
from astkit.gating.rho import Rho
from astkit.gating.sample_memory import EL2N
from astkit.gating.sampler import RunInfo
from astkit.gating.scored import Scored, ScoredBatches, evaluating
from astkit.gating.selection import Selection
from astkit.gating.selective_backprop import SelectiveBackprop
from astkit.gating.seta import SeTa
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
    density,
    log_density,
)

__all__ = [
    "EL2N",
    "RCAP",
    "BatchLossScore",
    "CachedLoss",
    "ClassBalanced",
    "ContextScore",
    "Controller",
    "Cost",
    "Criterion",
    "DeviceGate",
    "Gate",
    "GradNormIS",
    "InfoBatch",
    "Kakurenbo",
    "LogIntegral",
    "Loss",
    "LossAndContrast",
    "LossContrastConstant",
    "OriginPI",
    "Policy",
    "PolicyCard",
    "ProxyTopK",
    "QuantileEMA",
    "RandomSubset",
    "RePB",
    "RelativeScore",
    "Rho",
    "RunInfo",
    "Score",
    "Scored",
    "ScoredBatches",
    "SeTa",
    "Selection",
    "SelectiveBackprop",
    "StaticEL2N",
    "TopK",
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
