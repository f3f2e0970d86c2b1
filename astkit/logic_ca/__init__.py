"""Logic automaton: a cellular automaton of learnable gates, and four ways to its gradient."""

from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.tasks import (
    Task,
    checkerboard,
    checkerboard_async,
    checkerboard_small,
    game_of_life,
)
from astkit.logic_ca.training import logic_trainer

__all__ = [
    "LogicCA",
    "LogicCAConfig",
    "Task",
    "checkerboard",
    "checkerboard_async",
    "checkerboard_small",
    "game_of_life",
    "logic_trainer",
]
