"""Each notebook answers its question in a sentence, which follows the figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np

from astkit.comparison.statistics import Interval, mean_interval

GAIN = Interval(0.1, 0.05, 0.2, 5)
LOSS = Interval(-0.1, -0.2, -0.05, 5)
NONE = Interval(0, -1, 1, 5)

FIGURES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "00": [
        (
            {
                "rate": 0.25,
                "trained": trained,
                "scored": 200,
                "often": range(often),
                "y": range(100),
            },
            f"Asked for 25 %, the gate selects {share} % of the samples, those of highest loss;"
            f" {often} % of the images make up half of all selections.",
        )
        for trained, often, share in ((40, 10, 20), (100, 30, 50))
    ],
    "01": [
        (
            {
                "of_dense": flops,
                "ratio": SimpleNamespace(median=0.87, low=0.84, high=0.94),
                "dataset": "digits",
                "by_gating": gain,
                "by_chance": "0.3 [-0.4, 1.2]",
            },
            f"On digits gated epochs take {share} % of the FLOPs, 87 % [84, 94] of the time; at"
            f" equal FLOPs they gain {gain} points over dense, random subsets 0.3 [-0.4, 1.2].",
        )
        for flops, share, gain in ((0.43, 43, "0.8 [0.1, 1.4]"), (0.6, 60, "-1.2"))
    ],
    "02": [
        (
            {
                "rate": target,
                "shares": {
                    "top_k": SimpleNamespace(mean=100 * target),
                    "log_integral": SimpleNamespace(mean=share),
                },
                "gap": gap,
            },
            f"For a target of {100 * target:g} % top_k trains on {100 * target:.1f} %, the default,"
            f" log_integral, on {share} %; its accuracy minus top_k's: {words}.",
        )
        for target, share, gap, words in (
            (0.1, 8.3, NONE, "+0.0 [-1.0, +1.0] points, cannot tell yet"),
            (0.2, 17.6, LOSS, "-0.1 [-0.2, -0.1] points, lower"),
        )
    ],
    "03": [
        (
            {
                "fastest": {"speedup": speed, "speedup_low": 1.84, "speedup_high": 2.4},
                "best": {"arm": name, "speedup": 1.78, "speedup_low": 1.7, "speedup_high": 1.9},
                "gaps": {"dense": Interval(0.06, -0.1, 0.21, 5)},
            },
            f"Here `TrainConfig.fast()` trains {speed} [1.8, 2.4] times as fast as the plain"
            f" settings, {name} alone 1.8 [1.7, 1.9]; bf16 changes accuracy by +0.1 [-0.1, +0.2]"
            " points.",
        )
        for speed, name in ((2.3, "bf16"), (1.9, "channels_last"))
    ],
    "04": [
        (
            {
                "minus": lambda name, other, gaps=gaps: gaps.get(other, GAIN),
                "mrr": Interval(mrr, mrr - 0.01, mrr + 0.01, 5),
                "copied": 0.35,
                "ratio": SimpleNamespace(median=8.6, low=5.6, high=8.7),
            },
            f"It learns: MRR {mrr} [{mrr - 0.01:.2f}, {mrr + 0.01:.2f}], {beside} a copied"
            f" input's 0.35; without flows it is {words}; all at once they are 9 [6, 9] times as"
            " fast.",
        )
        for mrr, gaps, beside, words in (
            (0.19, {"copy input": LOSS, "bypass": NONE}, "below", "no worse"),
            (0.25, {"copy input": NONE, "bypass": LOSS}, "near", "better"),
        )
    ],
    "05": [
        (
            {
                "solved": solved,
                "drawn": 3,
                "seeds": range(5),
                "most": 80,
                "ratio": SimpleNamespace(median=speed, low=speed - 2, high=speed + 3),
                "gap": gap,
            },
            f"{solved} of 5 circuits play Life without error, 3 of 5 draw the checkerboard;"
            f" batches of 80 are {speed} [{speed - 2}, {speed + 3}] times as fast as loops.",
        )
        for solved, speed, gap in ((5, 29, GAIN), (4, 12, NONE))
    ],
    "06": [
        (
            {
                "pays": ["texts", "tables", "long tails"],
                "losses": losses,
                "shifts_gained": range(gained),
                "shifts": range(10),
            },
            f"`aim` gains in {gained} of 10 natural shifts, on texts, tables and long tails;"
            f" {lost}.",
        )
        for gained, losses, lost in (
            (5, 0, "no significant loss"),
            (6, 2, "2 losses are significant"),
        )
    ],
    "07": [
        (
            {
                "of_table": SimpleNamespace(dense=0.5, difference=Interval(gap, -0.45, -0.1, 5)),
                "of_texts": SimpleNamespace(dense=2.0, difference=Interval(-0.14, -0.16, -0.12, 5)),
                "of_images": SimpleNamespace(outcome=outcome, words=outcome),
            },
            f"The loss of `aim` is {lower} % [20, 90] below dense training's on a table with"
            f" swapped columns, 7 % [6, 8] on mixed texts; wrong labels: {words}.",
        )
        for gap, lower, outcome, words in (
            (-0.4, 80, "cannot tell yet", "cannot tell yet"),
            (-0.2, 40, "worse", "a loss"),
        )
    ],
    "08": [
        (
            {
                "trees": {0: np.full(5, 65.0), 1: np.array([49.0, 52, 52, 52, 55])},
                "gain": gain,
                "mean_interval": mean_interval,
                "in_percent": lambda mean, low, high: f"{mean:.0f} % [{low:.0f}, {high:.0f}]",
            },
            f"Training on both lowers the error of boosted trees by 20 % [16, 24], of a network by"
            f" {words}.",
        )
        for gain, words in (
            ((8.4, -24.2, 40.9), "8 % [-24, 41], which is uncertain"),
            ((12, 4, 20), "12 % [4, 20]"),
        )
    ],
}
"""Of each notebook, figures that its answer may be computed from, and what it then says."""


def test_the_answer_follows_its_figures(notebook: Path) -> None:
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    (source,) = (cell.source for cell in cells if "nb.answer(" in cell.source)
    cases = FIGURES[notebook.stem[:2]]
    assert len({sentence for _, sentence in cases}) > 1
    for figures, sentence in cases:
        said: list[str] = []
        exec(source, {"nb": SimpleNamespace(answer=said.append), **figures})
        assert [" ".join(each.split()) for each in said] == [sentence]
