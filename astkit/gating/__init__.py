"""Sample selection: scores, controllers, gates and policies."""

from astkit.gating.controllers import Controller as Controller
from astkit.gating.controllers import LogIntegral as LogIntegral
from astkit.gating.controllers import OriginPI as OriginPI
from astkit.gating.controllers import QuantileEMA as QuantileEMA
from astkit.gating.controllers import TopK as TopK
from astkit.gating.epoch import RunInfo as RunInfo
from astkit.gating.gate import Gate as Gate
from astkit.gating.losses import Criterion as Criterion
from astkit.gating.losses import cross_entropy_rows as cross_entropy_rows
from astkit.gating.losses import row_losses as row_losses
from astkit.gating.losses import token_losses as token_losses
from astkit.gating.policy import Policy as Policy
from astkit.gating.policy import Visit as Visit
from astkit.gating.policy import as_policy as as_policy
from astkit.gating.scores import ContextScore as ContextScore
from astkit.gating.scores import LossAndContrast as LossAndContrast
from astkit.gating.scores import RelativeScore as RelativeScore
from astkit.gating.scores import Score as Score
from astkit.gating.selection import Scored as Scored
from astkit.gating.selection import Selection as Selection
from astkit.gating.selection import evaluating as evaluating
