"""What each score costs beyond the loss: `python -m benchmarks.score_costs` writes JSON.

For each registered score and each of two networks: extra FLOPs a sample, and seconds of scoring a
batch over seconds of scoring it by loss, as interleaved arms in one process on one CPU thread.
FLOPs are 2 per multiply-add of matrix products and convolutions, as everywhere in the kit; a
score's own elementwise work is not in them and shows in the seconds alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from astkit import models
from astkit.datasets import Images, load
from astkit.gating import Gate, evaluating
from astkit.gating.selection import Scored
from astkit.names import REGISTRIES
from astkit.profiling import FlopCounter, interleaved
from benchmarks import bench
from benchmarks.bench import BATCH
from benchmarks.measure import synthetic

RESULTS = bench.HERE / "score_costs.json"
ROUNDS = 61
MEANING = (
    "extra_flops: a sample, beyond the model's forward pass; seconds: of scoring a batch by this"
    " score over scoring it by loss, forward pass included. The row 'loss' times a second arm that"
    " scores by loss: it shows what the measurement can tell"
)


def networks(rows: int) -> dict[str, Images]:
    """A batch for each network; what a pixel shows does not change what it costs."""
    return {"simple_cnn": synthetic(rows), "digits_cnn": load("digits")[0].subset(range(rows))}


def costs(network: str, data: Images, rounds: int) -> list[dict[str, Any]]:
    """One row for each registered score, on ``network``."""
    model = models.build(network, data.shape, data.num_classes)
    x, y, index = data.images / 255, data.labels, torch.arange(len(data))

    def scoring(name: str) -> Callable[[], Tensor]:
        gate = Gate(score=name)
        return lambda: gate.scores(Scored(None, y, x, index, model))

    arms = {name: scoring(name) for name in REGISTRIES["score"]}
    times = interleaved({"by loss": scoring("loss"), **arms}, rounds=rounds)
    with FlopCounter() as counted, evaluating(model):
        model(x)
    forward = counted.get_total_flops() / len(data)
    rows = []
    for name, score in arms.items():
        with FlopCounter() as counted:
            score()
        ratio = times.ratio(name, "by loss")
        rows.append(
            {
                "network": network,
                "score": name,
                "forward_flops": forward,
                "extra_flops": counted.get_total_flops() / len(data) - forward,
                "uncounted": sorted(counted.uncounted()),
                "seconds": {"median": ratio.median, "low": ratio.low, "high": ratio.high},
                "n": ratio.n,
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    """A row in one line."""
    cost = f"{row['extra_flops']:+,.0f} FLOPs a sample, seconds {row['seconds']} of by loss"
    return f"{row['network']}, {row['score']}: {cost}, n = {row['n']}"


def main(arguments: list[str] | None = None) -> None:
    """Measure every score on both networks and write the results in one piece."""
    asked = bench.options(main.__doc__, RESULTS, arguments, rounds=ROUNDS, rows=BATCH)
    with bench.one_thread():
        found = (costs(*each, asked.rounds) for each in networks(asked.rows).items())
        rows = (row for rows in found for row in rows)
        bench.record(asked.out, rows, line, meaning=MEANING, batch=asked.rows)


if __name__ == "__main__":
    main()
