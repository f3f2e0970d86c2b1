"""The logic automaton: a cellular automaton of learnable gates, and four ways to its gradient.

The four ways are `astkit.logic_ca.gradients.gradients`; here that name is the module.
"""

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.gradients import first_channel_loss, per_sample_gradients
from astkit.logic_ca.masks import fire_masks
from astkit.logic_ca.tasks import (
    Task,
    checkerboard,
    checkerboard_async,
    checkerboard_small,
    game_of_life,
    life_step,
)
from astkit.logic_ca.training import logic_trainer

__all__ = [
    "LogicCA",
    "LogicCAConfig",
    "Task",
    "checkerboard",
    "checkerboard_async",
    "checkerboard_small",
    "fire_masks",
    "first_channel_loss",
    "game_of_life",
    "life_step",
    "logic_trainer",
    "per_sample_gradients",
]
