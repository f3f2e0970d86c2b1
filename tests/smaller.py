"""Smaller estimators of `aim`, for tests whose data are simple: they take most of the time."""

import math
from typing import Any

import pytest

from astkit.aim import differ, explain, forecast, proxies, sides
from astkit.comparison import training


def trees(patch: pytest.MonkeyPatch, judges: int = 20, rounds: int = 15, bins: int = 16) -> None:
    """Fewer trees in proxies that judge and in estimators of weights, and coarser ones."""
    patch.setitem(proxies.TREES, "max_iter", judges)
    patch.setitem(differ.TREES, "max_iter", rounds)
    patch.setitem(differ.TREES, "max_bins", bins)


def pages(patch: pytest.MonkeyPatch) -> None:
    """For pages and notebooks, which show what is called: rows of as many others judged once."""
    trees(patch, judges=3, rounds=10, bins=8)
    patch.setattr(differ, "FOLDS", 2)
    patch.setattr(differ, "COMPARED", 1000)
    patch.setattr(explain, "ROWS", 1000)
    patch.setattr(sides, "OF_TABLES", 2000)
    patch.setattr(training, "POINTS", 3)
    foretell = forecast.foretell
    found: dict[tuple[int, ...], Any] = {}

    def foretell_once(both: Any, train_on_target: bool, most: float = math.inf, **more: Any) -> Any:
        key = (len(both.old), len(both.target), both.seed, train_on_target)
        if key not in found:
            found[key] = foretell(both, train_on_target, most, **more)
        return found[key]

    patch.setattr(forecast, "foretell", foretell_once)
