"""Smaller estimators of `aim`, for tests whose data are simple: they take most of the time."""

from typing import Any

import pytest

from astkit.aim import estimators, explain, forecast, policy, proxies, ratio
from astkit.comparison import training


def trees(patch: pytest.MonkeyPatch, judges: int = 20, rounds: int = 15, bins: int = 16) -> None:
    """Fewer trees in proxies that judge and in estimators of weights, and coarser ones."""
    patch.setitem(proxies.TREES, "max_iter", judges)
    patch.setitem(estimators.TREES, "max_iter", rounds)
    patch.setitem(estimators.TREES, "max_bins", bins)


def pages(patch: pytest.MonkeyPatch) -> None:
    """For pages and notebooks, which show what is called: rows of as many others weighed once."""
    trees(patch, judges=3, rounds=10, bins=8)
    patch.setattr(ratio, "FOLDS", 2)
    patch.setattr(explain, "ROWS", 1000)
    patch.setattr(forecast, "FITTED", 2000)
    patch.setattr(training, "POINTS", 3)
    weigh = policy._weights_and_forecast
    found: dict[tuple[int, ...], Any] = {}

    def weigh_once(pair: Any, *rest: Any) -> Any:
        key = (len(pair.train), len(pair.target), pair.seed)
        if key not in found:
            found[key] = weigh(pair, *rest)
        return found[key]

    patch.setattr(policy, "_weights_and_forecast", weigh_once)
