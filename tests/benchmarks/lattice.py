"""What each way of running the lattice costs: `python -m tests.benchmarks.lattice` writes
lattice.json.

Forward and backward of one batch, as interleaved rounds on one thread:

- all flows at once, against chunks of 16 flows a call (what the original ran) and against the plain
  loop over flows;
- stopping early against all the steps allowed, where 5 % of the flows are stragglers: with a bound
  where the others go at 3 planes a step, and stated where they go at 1.5;
- the time of a step against the number of flows in it;
- bf16 against fp32, and words decoded sample by sample against the whole batch at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astkit.files import write_atomic
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice, LatticeOutput
from astkit.lattice.reference import run_reference
from astkit.lattice.text import TextBridge, Vocabulary
from astkit.profiling import interleaved
from astkit.stamp import describe, stamp
from tests.lattice.examples import inputs, two_speeds

RESULTS = Path(__file__).with_name("lattice.json")
BOUNDS = {"loop / at once": 40, "chunks of 16 / at once": 10, "all steps / early stop": 2}
SIZE = LatticeConfig(width=12, height=12, depth=6)
BOUNDED = ("at_once", "early_stop")
"""Parts of the report with a bound; the others are stated."""
STRAGGLERS, ERROR = 0.05, 0.01
DRIFTS = (1.0, 0.01, 0.0001)
BATCH = 16


def train(model: EnergyFlowLattice, run: Callable[[], LatticeOutput]) -> LatticeOutput:
    """Forward and backward, without an optimiser's step."""
    model.zero_grad()
    output = run()
    output.y.square().mean().backward()
    return output


def flows_at_once(rounds: int, loop_rounds: int, config: LatticeConfig, batch: int) -> Any:
    """The loop and the chunks over the vectorised steps; the slow loop in rounds of its own."""
    model, x = EnergyFlowLattice(config), inputs(batch, config.dim).float()
    arms = {
        "at once": lambda: train(model, lambda: model(x)),
        "chunks of 16": lambda: train(model, lambda: model(x, flows_per_call=16)),
    }
    loop = {
        "at once": arms["at once"],
        "loop": lambda: train(model, lambda: run_reference(model, x)),
    }
    chunked = interleaved(arms, rounds=rounds, warmup=1)
    looped = interleaved(loop, rounds=loop_rounds, warmup=0 if loop_rounds < 3 else 1)
    return {
        "config": asdict(config),
        "batch": batch,
        "seconds": {"chunks": dict(chunked.seconds), "loop": dict(looped.seconds)},
        "ratios": {
            "loop / at once": asdict(looped.ratio("loop", "at once")),
            "chunks of 16 / at once": asdict(chunked.ratio("chunks of 16", "at once")),
        },
    }


def early_stop(rounds: int, config: LatticeConfig, batch: int) -> dict[str, Any]:
    """All steps allowed over stopping early, and how far the two surfaces are apart.

    The stragglers all but keep their energy and course. How far the surfaces are apart where they
    do not is in ``errors``, by the share of a fresh lattice's changes that flows undergo.
    """
    x = inputs(batch, config.dim).float()
    errors = {}
    for drift in DRIFTS:
        model, share = _with_stragglers(config, x, drift)
        early, whole = model(x), model(x, adaptive=False)
        errors[str(drift)] = _distance(early, whole)
    arms = {
        "early stop": lambda: train(model, lambda: model(x)),
        "all steps": lambda: train(model, lambda: model(x, adaptive=False)),
    }
    timed = interleaved(arms, rounds=rounds, warmup=1)
    return {
        "config": asdict(config),
        "batch": batch,
        "stragglers": share,
        "steps": {"early stop": _mean(early.stats.steps), "all steps": _mean(whole.stats.steps)},
        "left": _mean(early.stats.left),
        "surface_error": errors[str(DRIFTS[-1])],
        "errors": errors,
        "seconds": dict(timed.seconds),
        "ratios": {"all steps / early stop": asdict(timed.ratio("all steps", "early stop"))},
    }


def _with_stragglers(
    config: LatticeConfig, x: Tensor, drift: float
) -> tuple[EnergyFlowLattice, float]:
    """A lattice whose flows of least energy go at z_min, and their share among those of ``x``."""
    model = EnergyFlowLattice(config)
    with torch.no_grad():
        energy = model.mapper(x)
        border = energy.quantile(STRAGGLERS).item()
    two_speeds(model, border, drift)
    return model, (energy < border).float().mean().item()


def step_time(rounds: int, config: LatticeConfig, batches: list[int]) -> dict[str, Any]:
    """Seconds of a pass over the flows in a step: batches of more samples, the same steps."""
    model = EnergyFlowLattice(config)
    arms = {}
    for batch in batches:
        x = inputs(batch, config.dim).float()
        arms[str(batch * config.cells)] = lambda x=x: train(model, lambda: model(x))
    timed = interleaved(arms, rounds=rounds, warmup=1)
    names = list(arms)
    growth = [
        {"flows": int(b), "times_the_flows": int(b) / int(a), **asdict(timed.ratio(b, a))}
        for a, b in pairwise(names)
    ]
    return {"config": asdict(config), "seconds": dict(timed.seconds), "growth": growth}


def precision(rounds: int, config: LatticeConfig, batch: int) -> dict[str, Any]:
    """fp32 over bf16 autocast, in which places and energies keep their precision."""
    model, x = EnergyFlowLattice(config), inputs(batch, config.dim).float()

    def bf16() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            train(model, lambda: model(x))

    timed = interleaved(
        {"bf16": bf16, "fp32": lambda: train(model, lambda: model(x))}, rounds=rounds
    )
    return {
        "config": asdict(config),
        "batch": batch,
        "seconds": dict(timed.seconds),
        "ratios": {"fp32 / bf16": asdict(timed.ratio("fp32", "bf16"))},
    }


def words(rounds: int, config: LatticeConfig, batch: int, size: int = 2000) -> dict[str, Any]:
    """Decoding the surfaces of a batch one by one, over all of them at once."""
    vocabulary = Vocabulary([f"word{number}" for number in range(size)], size)
    bridge = TextBridge(vocabulary, config.dim, config.cells)
    surface = inputs(batch, config.cells).float()
    timed = interleaved(
        {
            "a batch": lambda: bridge.decode(surface),
            "a sample": lambda: [bridge.decode(row[None]) for row in surface],
        },
        rounds=rounds,
    )
    return {
        "batch": batch,
        "vocabulary": len(vocabulary),
        "seconds": dict(timed.seconds),
        "ratios": {"a sample / a batch": asdict(timed.ratio("a sample", "a batch"))},
    }


def _mean(counter: Tensor) -> float:
    return counter.double().mean().item()


def _distance(a: LatticeOutput, b: LatticeOutput) -> float:
    return ((a.surface - b.surface).norm() / b.surface.norm()).item()


def main(arguments: list[str] | None = None) -> None:
    """Measure all of them and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--loop-rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=12, help="along each side of the surface")
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    size = replace(SIZE, width=options.cells, height=options.cells)
    # at z_min, the stragglers take all 50 steps allowed; tau leaves samples that have more of them
    deep = replace(size, depth=20, z_min=19 / 50, max_steps=50, spawn_threshold=1.0, tau=0.9)
    report = {
        "stamp": stamp(),
        "threads": torch.get_num_threads(),
        "bounds": BOUNDS,
        "at_once": flows_at_once(options.rounds, options.loop_rounds, size, options.batch),
        "early_stop": early_stop(options.rounds, replace(deep, z_max=3.0), options.batch),
        "early_stop_slower": early_stop(options.rounds, replace(deep, z_max=1.5), options.batch),
        "step_time": step_time(options.rounds, size, [options.batch * k // 2 for k in (1, 2, 4)]),
        "precision": precision(options.rounds, size, options.batch),
        "words": words(options.rounds, size, options.batch),
    }
    write_atomic(options.out, json.dumps(report, indent=1) + "\n")
    print(describe(report["stamp"]))
    for part in (*BOUNDED, "early_stop_slower", "precision", "words"):
        for name, ratio in report[part]["ratios"].items():
            print(part, name, ratio, "bound", BOUNDS[name] if part in BOUNDED else None)
    for part in ("early_stop", "early_stop_slower"):
        case = report[part]
        print(part, *(f"{key} {case[key]}" for key in list(case)[2:7]))
    print("growth", report["step_time"]["growth"])


if __name__ == "__main__":
    main()
