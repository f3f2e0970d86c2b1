"""Made histories: does a forecast take the decision that was right at each earlier moment?

``python -m benchmarks.histories`` writes histories.json. A history has a label that follows six
columns, by ``common`` as ever, and by a law of the first two columns that turns with time:

- *target*: it turns within months, and old rows hold all directions of it;
- *both x4*: the same, beside much that old rows know and few recent rows can tell (by 3 %: of eight
  moments the last has 24 times as many old rows as recent ones, of which four copies are few);
- *old*: it turns so fast that later rows follow the opposite of the recent ones, which trees that
  see the day believe;
- *both*: the label follows the day as well, so that more rows, and late ones, are better;
- *alike*: nothing changes.

Foretold is each of many draws; `measured` judges the decisions on fresh later rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from astkit.aim.forecast import forecast
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

    def draw(self, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Old rows and target."""
        random = np.random.default_rng([seed, 35])
        day = np.repeat(np.arange(self.days + self.recent), self.rows)
        x = random.normal(size=(len(day), 6))
        angle = 2 * np.pi * (day / self.turn + random.random())
        turning = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1]
        always = np.sin(2 * x[:, 2:]).sum(1)
        y = self.size * turning + self.common * always + self.drift * day
        frame = pd.DataFrame(x, columns=[f"x{place}" for place in range(6)])
        frame = frame.assign(day=day, y=y + 0.3 * random.normal(size=len(day)))
        old = day < self.days
        frame = frame if self.dated else frame.drop(columns="day")
        return frame[old], frame[~old].reset_index(drop=True)


KINDS = {
    "target": History(size=1.0, turn=60, common=0.0),
    "both x4": History(size=1.2, turn=60, common=2.0, recent=8, rows=40),
    "old": History(size=1.0, turn=14, common=0.0, dated=True),
    "both": History(size=0.0, turn=60, common=0.5, drift=0.01, dated=True),
    "alike": History(size=0.0, turn=60, common=0.5),
}
DRAWS = {"target": 200, "both x4": 200, "old": 200, "both": 1000, "alike": 1000}


def foretold(kind: str, seed: int) -> dict[str, Any]:
    """What was chosen, and the moments at which each decision was better than both, by 10 %."""
    history = KINDS[kind]
    old, target = history.draw(seed)
    options: dict[str, Any] = {"date": "day"} if history.dated else {"in_order": True}
    found = forecast(old, target, "y", seed=seed, **options)
    moments = found.moments
    means = {} if moments is None else moments.groupby("decision")["over_both"].mean().to_dict()
    return {"chosen": found.decision.name, "over_both": means, "sentence": found.sentence}


def main(draws: Callable[[str], int] = DRAWS.__getitem__) -> None:
    """Foretell the draws that the file lacks."""
    content = read_json(RESULTS) or {"stamp": stamp(), "draws": {}}
    print(describe(content["stamp"]))
    for kind in KINDS:
        done = content["draws"].setdefault(kind, [])
        for seed in range(len(done), draws(kind)):
            done.append(foretold(kind, seed))
            if seed % 20 == 19 or seed + 1 == draws(kind):
                write_json(RESULTS, content)
                print(kind, Counter(each["chosen"] for each in done), flush=True)


if __name__ == "__main__":
    main()
