"""The packed circuit beside the soft rollout: `python -m tests.benchmarks.packed` prints a line.

Interleaved arms in one process on one CPU thread. Two circuits: one of random gates that all need
both of their inputs, of which pruning can remove next to nothing, so that the packed rollout has
the most to do; and, with ``--circuit``, one that was exported and saved.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from astkit import rng
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.circuit import Circuit, from_automaton
from astkit.logic_ca.packed import PackedCircuit
from astkit.logic_ca.tasks import game_of_life
from astkit.profiling import interleaved
from astkit.stamp import describe, stamp
from tests.logic_ca.circuits import drawn

MEANING = (
    "wall seconds of the soft rollout (float32, fused layers, no gradients) over those of the"
    " packed one, from the same tensor to a tensor: packing and unpacking are in it, pruning is not"
)


def ratio(
    model: LogicCA,
    circuit: Circuit | None = None,
    *,
    size: int = 128,
    steps: int = 100,
    soft_steps: int | None = None,
    rounds: int = 7,
) -> dict[str, Any]:
    """Seconds a step of the soft rollout over seconds a step of the packed one, ``size`` squared.

    Args:
        model: the automaton of the soft rollout; synchronous.
        circuit: what to run packed; that of ``model`` by default.
        soft_steps: steps of the soft arm, fewer where ``steps`` of them take too long; its seconds
            are scaled up, which does it no wrong: what it does once a rollout is worked out anew.
        rounds: rounds, each with both arms.
    """
    packed = PackedCircuit(from_automaton(model) if circuit is None else circuit)
    shape = (1, model.config.channels, size, size)
    x = torch.randint(2, shape, generator=rng.generator("packed")).float()
    taken = steps if soft_steps is None else soft_steps

    def soft() -> None:
        with torch.no_grad():
            model(x, taken)

    times = interleaved({"soft": soft, "packed": lambda: packed.rollout(x, steps)}, rounds=rounds)
    found, scale = times.ratio("soft", "packed"), steps / taken
    return {
        "name": f"soft / packed rollout, {size} x {size}, {steps} steps",
        "median": found.median * scale,
        "low": found.low * scale,
        "high": found.high * scale,
        "n": found.n,
        "bound": 50,
        "sense": "at least",
        "meaning": MEANING,
        "soft_steps": taken,
        "gates": model.config.gates_per_cell,
        "pruned_gates": packed.circuit.gates,
        "seconds": {"soft": times.median("soft") * scale, "packed": times.median("packed")},
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--circuit", type=Path, help="JSON of an exported circuit of Game of Life")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--soft-steps", type=int, default=5)
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        print(describe(stamp()))
        model = drawn(game_of_life().config)
        circuit = (
            None if options.circuit is None else Circuit.from_json(options.circuit.read_text())
        )
        print(ratio(model, circuit, rounds=options.rounds, soft_steps=options.soft_steps))
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    main()
