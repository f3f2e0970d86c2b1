"""Logic automaton: a cellular automaton of learnable gates, and four ways to its gradient."""

from astkit.systems.automaton.tasks import AutomatonTask as AutomatonTask
from astkit.systems.automaton.tasks import checkerboard as checkerboard
from astkit.systems.automaton.tasks import checkerboard_async as checkerboard_async
from astkit.systems.automaton.tasks import checkerboard_small as checkerboard_small
from astkit.systems.automaton.tasks import game_of_life as game_of_life
from astkit.systems.automaton.training import AutomatonTrainer as AutomatonTrainer
