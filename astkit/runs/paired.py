"""Entries of a comparison, see `astkit.Comparison`: arms paired with a control by seed.

"dense" is the control; "random at 0.30" a control that trains on random samples at that rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

Entry = Mapping[str, Any]
Arm = dict[int, Entry]
"""The entries of one arm by seed."""

COSTS = {"flops": "FLOPs", "seconds": "seconds"}
DENSE, RANDOM = "dense", "random at "
NEAR = 0.02  # largest difference between the mean rates of a policy and of its random control


def by_arm(entries: Sequence[Entry]) -> dict[str, Arm]:
    """The arms in their order. Raises ``ValueError`` for two entries of one arm and seed."""
    arms: dict[str, Arm] = {}
    for entry in entries:
        arm = arms.setdefault(entry["policy"], {})
        if entry["seed"] in arm:
            raise ValueError(
                f"entries hold {entry['policy']!r} twice for seed {entry['seed']}: keep one of them"
            )
        arm[entry["seed"]] = entry
    return arms


def is_control(name: str) -> bool:
    """Whether the arm of this name is dense training or a random control."""
    return name == DENSE or name.startswith(RANDOM)


def random_control(arm: Arm, arms: Mapping[str, Arm]) -> Arm:
    """Entries of random controls with the arm's rate for the same seed; those absent are left out.

    Rates may differ by `NEAR`.
    """
    found, controls = {}, [each for name, each in arms.items() if name.startswith(RANDOM)]
    for seed, run in arm.items():
        runs = [each[seed] for each in controls if seed in each]
        nearest = min(runs, key=lambda other: abs(other["rate"] - run["rate"]), default=None)
        if nearest is not None and abs(nearest["rate"] - run["rate"]) <= NEAR:
            found[seed] = nearest
    return found


def wants_control(name: str, arms: Mapping[str, Arm]) -> bool:
    """Whether a random control belongs to the arm of a comparison that has such controls.

    Random selection needs none, and for an arm that trains on all samples dense is the control.
    """
    selects = any(run["rate"] < 0.995 for run in arms[name].values())
    controlled = any(each.startswith(RANDOM) for each in arms)
    return selects and controlled and not name.startswith("random")


def finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a number that is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def differences(arm: Arm, control: Arm, key: str) -> list[float]:
    """``key`` of the arm minus that of the control, for the seeds at which both are finite."""
    pairs = [(run[key], other[key]) for run, other in _pairs(arm, control)]
    return [value - other for value, other in pairs if finite(value) and finite(other)]


def _pairs(arm: Arm, control: Arm) -> list[tuple[Entry, Entry]]:
    """Entries of the arm and of the control, for the seeds at which both values are finite."""
    pairs = [(run, control[seed]) for seed, run in arm.items() if seed in control]
    return [pair for pair in pairs if all(finite(run["value"]) for run in pair)]


def known(values: Iterable[float | None]) -> list[float]:
    """The finite values."""
    return list(filter(finite, values))


def ratios(arm: Arm, control: Arm, key: str) -> list[float | None]:
    """``key`` as a share of the control's, by seed as in `differences`; None if unknown."""
    return [share(run[key], other[key]) for run, other in _pairs(arm, control)]


def share(cost: float | None, whole: float | None) -> float | None:
    """``cost`` as a share of ``whole``; None unless both are known and positive."""
    if cost is None or whole is None or not (0 < cost < math.inf and 0 < whole < math.inf):
        return None
    return cost / whole


def reach(arm: Arm, dense: Arm, key: str, higher: bool) -> list[float | None]:
    """Cost of reaching dense's final validation value, as a share of dense's whole run, by seed.

    ``key``: "flops" or "seconds". None for a seed at which it is not reached or not known.
    """
    place, found = list(COSTS).index(key), list[float | None]()
    for run, control in _pairs(arm, dense):
        target, known = _last(control), finite(run[key])
        points = [(p[place], p[2] if finite(p[2]) else math.nan) for p in run["curve"] if known]
        cost = reached_at(points, target, higher) if finite(target) else None
        found.append(share(cost, control[key]))
    return found


def _last(run: Entry) -> float | None:
    return run["curve"][-1][2] if run["curve"] else None


def reached_at(
    points: Sequence[tuple[float, float]], target: float, higher: bool = True
) -> float | None:
    """Cost from which on all values are at least as good as ``target``, or None.

    ``points`` are (cost, value) by increasing cost, with values linear in between. The first time
    of reaching a value (as in DAWNBench, Coleman et al. 2017) would be earlier for noisier curves.
    """
    kept = [value >= target if higher else value <= target for _, value in points]
    if not kept or not kept[-1]:
        return None
    first = max((place + 1 for place, good in enumerate(kept) if not good), default=0)
    cost, value = points[first]
    if first == 0 or not math.isfinite(points[first - 1][1]):
        return cost
    before, worse = points[first - 1]
    return before + (cost - before) * (target - worse) / (value - worse)


def at_equal_seconds(arm: Arm, dense: Arm) -> list[float | None]:
    """Validation value after dense's seconds minus dense's final one, by seed; None if unknown.

    A run that is shorter than dense counts with its final value.
    """
    found = list[float | None]()
    for run, control in _pairs(arm, dense):
        target, value = _last(control), None
        if run["curve"] and finite(run["seconds"]) and control["seconds"]:
            _, seconds, values = np.array(run["curve"], dtype=float).T  # None becomes NaN
            value = float(np.interp(control["seconds"], seconds, values))
        found.append(value - target if finite(value) and finite(target) else None)
    return found
