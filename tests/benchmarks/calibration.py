"""How often verdicts are wrong: `python -m tests.benchmarks.calibration` writes calibration.json.

Arms with known effects are simulated and judged. The difference of a policy to dense for the same
seed is normal with the given effect as its mean and a standard deviation of 1; policies share their
dense arm, so their differences correlate with 0.5.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy import stats

from astkit.files import write_atomic
from astkit.rng import derive
from astkit.runs.verdict import ERROR, Verdict, judge
from astkit.stamp import describe, stamp

RESULTS = Path(__file__).with_suffix(".json")
EFFECTS, SEEDS, POLICIES = (0.0, 0.5, -0.5, 2.0, -2.0), (3, 5, 10), (1, 3, 6)
MIXED = (0.0, 2.0)
"""Effects of policies in turn: errors on the one must not depend on the other."""


def cell(effects: Sequence[float], n: int, trials: int) -> dict[str, Any]:
    """Verdicts on ``trials`` comparisons, each of policies with these ``effects`` for ``n`` seeds.

    ``wrong``: share of comparisons with an outcome that the effects contradict, "pays" or "costs"
    at an effect of 0 included. ``decided``: share of the policies with an effect that are
    decided. ``covered``: share of comparisons whose intervals contain all effects. ``asked``:
    median number of seeds that an undecided verdict on a policy with an effect asks for, from ``n``
    = 10 on any such verdict; ``asking``: their number; ``held``: share of their ranges that contain
    ``right``, the number for the last effect.
    """
    random = np.random.default_rng(derive(0, "calibration", *map(str, effects), n))
    wrong, decided, covered, asked, held = [], [], [], [], []
    right = seeds_for(effects[-1], ERROR / len(effects))
    for _ in range(trials):
        found = judge(arms(effects, n, random))
        judged = list(zip(found, effects, strict=True))
        wrong.append(any(is_wrong(each, effect) for each, effect in judged))
        decided += [not open_(each) for each, effect in judged if effect]
        covered.append(all(v.difference.low <= effect <= v.difference.high for v, effect in judged))
        asking = [v.needed for v, effect in judged if effect and (n >= 10 or open_(v))]
        asked += [needed.expected for needed in asking if needed]
        held += [needed.low <= right <= needed.high for needed in asking if needed and right]
    return {
        "effects": list(effects),
        "n": n,
        "trials": trials,
        "wrong": fmean(wrong),
        "decided": fmean(decided) if decided else None,
        "covered": fmean(covered),
        "asked": median(asked) if asked else None,
        "asking": len(asked),
        "right": right,
        "held": fmean(held) if held else None,
    }


def arms(effects: Sequence[float], n: int, random: np.random.Generator) -> list[dict[str, Any]]:
    """Entries of dense and of one policy for each effect."""
    spread = random.normal(0, np.sqrt(0.5), (1 + len(effects), n))
    values = random.normal(size=n) + spread + np.array([0.0, *effects])[:, None]
    names = ["dense", *(f"policy {place}" for place in range(len(effects)))]
    same = {"seconds": 1.0, "flops": 1.0, "trained": 1, "scored": 0, "rate": 1.0}
    return [
        {"policy": name, "seed": seed, "value": value, **same, "worst_class": None, "curve": []}
        for name, row in zip(names, values.tolist(), strict=True)
        for seed, value in enumerate(row)
    ]


def open_(verdict: Verdict) -> bool:
    """Whether the verdict is undecided."""
    return verdict.outcome == "undecided"


def is_wrong(verdict: Verdict, effect: float) -> bool:
    """Whether the outcome states another sign than that of the effect."""
    truth = {1: "pays", -1: "costs"}.get(int(np.sign(effect)), "undecided")
    return not open_(verdict) and verdict.outcome != truth


def seeds_for(effect: float, error: float, power: float = 0.8) -> int | None:
    """Smallest number of seeds with this power, tried one by one with `scipy.stats.nct`."""
    if not effect:
        return None
    n = 2
    while stats.nct.sf(stats.t.isf(error / 2, n - 1), n - 1, abs(effect) * n**0.5) < power:
        n += 1
    return n


def main(arguments: list[str] | None = None) -> None:
    """Simulate all cells and write them, with the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args(arguments)
    plans = [((effect,) * m, n) for effect, n, m in product(EFFECTS, SEEDS, POLICIES)]
    plans += [(MIXED * (m // 2), n) for n in SEEDS for m in (2, 6)]
    cells = []
    for effects, n in plans:
        cells.append(cell(effects, n, options.trials))
        print(cells[-1], flush=True)
    report = {"stamp": stamp(), "cells": cells}
    write_atomic(options.out, json.dumps(report, indent=1) + "\n")
    print(describe(report["stamp"]))


if __name__ == "__main__":
    main()
