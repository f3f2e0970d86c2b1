"""Logic automaton: a cellular automaton of learnable gates, and four ways to its gradient."""

from astkit.logic_ca.automaton import LogicCA as LogicCA
from astkit.logic_ca.config import LogicCAConfig as LogicCAConfig
from astkit.logic_ca.tasks import Task as Task
from astkit.logic_ca.tasks import checkerboard as checkerboard
from astkit.logic_ca.tasks import checkerboard_async as checkerboard_async
from astkit.logic_ca.tasks import checkerboard_small as checkerboard_small
from astkit.logic_ca.tasks import game_of_life as game_of_life
from astkit.logic_ca.training import logic_trainer as logic_trainer
