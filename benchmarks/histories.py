"""Made histories: does a forecast take the decision that was right at each earlier moment?

``python -m benchmarks.histories`` writes histories.json. A history has a label that follows six
columns, by ``common`` as ever, and by a law of the first two columns that turns with time:

- *target*: it turns within months, and old rows hold all directions of it;
- *both x4*: the same, beside much that old rows know and few recent rows can tell (by 3 %: of eight
  moments the last has 24 times as many old rows as recent ones, of which four copies are few);
- *old*: it turns so fast that later rows follow the opposite of the recent ones, which trees that
  see the day believe;
- *both*: the label follows the day as well, so that more rows, and late ones, are better;
- *alike*: nothing changes; *constant*: nor here, and what is foretold of both is judged by
  `MANY` fresh rows;
- *drift*: the condition of that name, by law, in order of time; *dated drift*: its hundred rows a
  day have a day, which is an input as well, so that trees of old rows know of the change.

Foretold is each of many draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from astkit import Table
from astkit.aim.decisions import BOTH, OLD, gain
from astkit.aim.fit import fitted
from astkit.aim.forecast import forecast
from astkit.aim.proxies import RMSE
from astkit.datasets.conditions import condition
from astkit.files import read_json, write_json
from astkit.stamp import describe, stamp
from benchmarks import bench

RESULTS = bench.HERE / "histories.json"
Array = np.ndarray


@dataclass(frozen=True)
class History:
    """Days of old rows and of the target, rows of a day, and the law.

    ``turn``: days of a whole turn of the law of the first two columns, which has the size ``size``;
    ``common``: size of what is always true; ``drift``: what a day adds; ``dated``: whether the day
    is a column.
    """

    size: float
    turn: float
    common: float
    drift: float = 0.0
    dated: bool = False
    days: int = 120
    recent: int = 6
    rows: int = 20

    def draw(self, seed: int, later: int = 0) -> list[pd.DataFrame]:
        """Old rows, target, and rows of so many days ``later``."""
        random = np.random.default_rng([seed, 35])
        day = np.repeat(np.arange(self.days + self.recent + later), self.rows)
        x = random.normal(size=(len(day), 6))
        angle = 2 * np.pi * (day / self.turn + random.random())
        turning = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1]
        always = np.sin(2 * x[:, 2:]).sum(1)
        y = self.size * turning + self.common * always + self.drift * day
        frame = pd.DataFrame(x, columns=[f"x{place}" for place in range(6)])
        frame = frame.assign(day=day, y=y + 0.3 * random.normal(size=len(day)))
        frame = frame if self.dated else frame.drop(columns="day")
        borders = np.searchsorted(day, [self.days, self.days + self.recent])
        parts = np.split(np.arange(len(day)), borders)
        return [frame.iloc[part].reset_index(drop=True) for part in parts]


KINDS = {
    "target": History(size=1.0, turn=60, common=0.0),
    "both x4": History(size=1.2, turn=60, common=2.0, recent=8, rows=40),
    "old": History(size=1.0, turn=14, common=0.0, dated=True),
    "both": History(size=0.0, turn=60, common=0.5, drift=0.01, dated=True),
    "alike": History(size=0.0, turn=60, common=0.5),
    "constant": History(size=0.0, turn=60, common=0.5, dated=True),
}
DRAWS = {"target": 200, "both x4": 200, "old": 200, "both": 1000, "alike": 1000}
DRAWS |= {"constant": 200, "drift": 20, "dated drift": 20}
MANY = 5000
Z = 1.96


def drifted(seed: int) -> list[pd.DataFrame]:
    """Old rows and target of the condition "drift", by law."""
    made = condition("drift", None, seed=seed, kind="law")
    parts = []
    for data, first in ((made.train, 0), (made.validation, len(made.train))):
        x, y = (each.numpy() for each in data.tensors)
        frame = pd.DataFrame(x, columns=[f"x{place}" for place in range(x.shape[1])])
        parts.append(frame.assign(day=(first + np.arange(len(x))) // 100, y=y[:, 0]))
    return parts


def contradicted(lines: Sequence[Mapping[str, Any]], parts: Sequence[pd.DataFrame]) -> bool:
    """Whether fresh rows show the other sign of what folds say of both, where each is sure."""
    both = next((each for each in lines if each["decision"] == "both"), None)
    if both is None or both["low"] <= 0 <= both["high"]:
        return False
    old = Table(parts[0], "y", task="regression")
    target, fresh = (Table(part, like=old) for part in parts[1:])
    errors = []
    for weights in (None, torch.ones(len(old) + len(target), dtype=torch.float64)):
        trees = fitted([old, target], BOTH if weights is not None else OLD, weights)
        errors.append((trees.predict(fresh) - fresh.values.numpy()) ** 2)
    value, error = gain(errors[0], errors[1], RMSE, np.arange(len(fresh)))
    return abs(value) > Z * error and (value > 0) != (both["gain"] > 0)


def foretold(kind: str, seed: int) -> dict[str, Any]:
    """What was chosen, and the moments at which each decision was better than both, by 10 %."""
    options: dict[str, Any] = {"date": "day"}
    if kind.endswith("drift"):
        parts = drifted(seed)
        if kind == "drift":
            parts = [each.drop(columns="day") for each in parts]
            options = {"in_order": True}
    else:
        history = KINDS[kind]
        parts = history.draw(seed, MANY // history.rows if kind == "constant" else 0)
        options = options if history.dated else {"in_order": True}
    found = forecast(parts[0], parts[1], "y", seed=seed, **options)
    moments = found.moments
    means = {} if moments is None else moments.groupby("decision")["over_both"].mean().to_dict()
    made = {"chosen": found.decision.name, "over_both": means, "sentence": found.sentence}
    return made | ({"opposite": contradicted(found.lines, parts)} if kind == "constant" else {})


def main(draws: Callable[[str], int] = DRAWS.__getitem__) -> None:
    """Foretell the draws that the file lacks."""
    content = read_json(RESULTS) or {"stamp": stamp(), "draws": {}}
    print(describe(content["stamp"]))
    for kind in DRAWS:
        done = content["draws"].setdefault(kind, [])
        for seed in range(len(done), draws(kind)):
            done.append(foretold(kind, seed))
            if seed % 20 == 19 or seed + 1 == draws(kind):
                write_json(RESULTS, content)
                print(kind, Counter(each["chosen"] for each in done), flush=True)


if __name__ == "__main__":
    main()
