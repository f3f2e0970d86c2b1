"""The logic automaton: a cellular automaton of learnable gates, and four ways to its gradient.

The four ways are `astkit.logic_ca.gradients.gradients`; here that name is the module.
"""

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.gated import arm_trainer, compare_arms
from astkit.logic_ca.gradients import first_channel_loss, per_sample_gradients
from astkit.logic_ca.masks import fire_masks
from astkit.logic_ca.tasks import (
    TASKS,
    Task,
    checkerboard,
    checkerboard_async,
    checkerboard_small,
    game_of_life,
    life_step,
)
from astkit.logic_ca.training import logic_trainer

__all__ = [
    "TASKS",
    "LogicCA",
    "LogicCAConfig",
    "Task",
    "arm_trainer",
    "checkerboard",
    "checkerboard_async",
    "checkerboard_small",
    "compare_arms",
    "fire_masks",
    "first_channel_loss",
    "game_of_life",
    "life_step",
    "logic_trainer",
    "per_sample_gradients",
]
