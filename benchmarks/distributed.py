"""Bytes that selection adds in several processes: `python -m benchmarks.distributed`.

Counts the tensors that a process hands to `torch.distributed`, and those that it gets back, in
runs with a policy less a run without one, in 2 and 3 processes of a gloo group on the CPU. The
gradients that DistributedDataParallel averages are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from astkit import Trainer
from astkit.gating import Gate, Policy, as_policy
from benchmarks import bench
from tests.trainers.worlds import in_world, network, numbers

RESULTS = bench.HERE / "distributed.json"
ROWS = 32  # per process
STEPS = 12  # per epoch
EPOCHS = 5
TYPICAL = 128  # rows per process, of the figures by formula
NAMES = ("gate", "quantile_ema", "top_k", "infobatch", "cached_loss", "auto", "random")
MEANING = (
    "bytes per step and process, without gradients. What is exchanged once, such as the scores of"
    " the first batch, is spread over the steps"
)


def policy(name: str) -> Policy | None:
    """A policy whose plans have `STEPS` batches where it plans, and nothing else decides."""
    if name in ("gate", "quantile_ema", "top_k"):
        return Gate(0.5, controller="log_integral" if name == "gate" else name, fallback=0)
    options = {"infobatch": {"rate": 1.0}, "cached_loss": {"rate": 1.0}, "random": {"rate": 1.0}}
    return as_policy({"name": name, **options.get(name, {})})


def formula(name: str, rows: int, world: int, steps: float) -> tuple[float, float]:
    """Bytes per step that a process sends and receives; ``steps`` per round."""
    if name in ("gate", "quantile_ema", "top_k"):
        sums = 8.0 if name == "top_k" else 40.0
        gathered = 0 if name == "top_k" else 8 + 4 * rows
        return sums + gathered, sums + world * gathered
    if name == "random":
        return 0.0, 0.0
    sent = 16 + (21 if name == "auto" else 12) * rows + 48 / steps
    return sent, world * sent


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count the bytes of the collectives that Python code calls."""
    counts = {"sent": 0, "received": 0}
    reduce, gather = dist.all_reduce, dist.all_gather

    def all_reduce(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        counts["sent"] += tensor.nbytes
        counts["received"] += tensor.nbytes
        return reduce(tensor, *args, **options)

    def all_gather(parts: list[torch.Tensor], tensor: torch.Tensor, **options: Any) -> Any:
        counts["sent"] += tensor.nbytes
        counts["received"] += sum(part.nbytes for part in parts)
        return gather(parts, tensor, **options)

    with mock.patch.multiple(dist, all_reduce=all_reduce, all_gather=all_gather):
        yield counts


def run(name: str | None, epochs: int) -> tuple[dict[str, int], int]:
    """Bytes and steps of a run, in one of the processes."""
    world = dist.get_world_size()
    data = numbers(ROWS * STEPS * world, torch.float32)
    trainer = Trainer(
        network(torch.float32),
        data,
        policy=None if name is None else policy(name),
        epochs=epochs,
        batch_size=ROWS * world,
        device="cpu",
    )
    with counting() as counts:
        trainer.run()
    return counts, trainer.step


def measured(name: str, world: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """Counted bytes per step beside those of the formula."""
    plain, steps = in_world(world, run, None, epochs)[0]
    found, same = in_world(world, run, name, epochs)[0]
    assert steps == same
    rounds = getattr(policy(name), "rounds", 1) if policy(name).plans else 1
    expected = formula(name, ROWS, world, STEPS / rounds)
    return {
        "policy": name,
        "world": world,
        "rows": ROWS,
        "steps": steps,
        "counted": {part: (found[part] - plain[part]) / steps for part in found},
        "formula": dict(zip(("sent", "received"), expected, strict=True)),
    }


def line(row: dict[str, Any]) -> str:
    """A row in one line."""
    counted, formula = row["counted"], row["formula"]
    return f"{row['policy']}, {row['world']} processes: {counted} bytes a step, formula {formula}"


def main() -> None:
    """Count the bytes of every policy in 2 and 3 processes and write the results."""
    rows = (measured(name, world) for name in NAMES for world in (2, 3))
    bench.record(bench.options(main.__doc__, RESULTS).out, rows, line, meaning=MEANING)


if __name__ == "__main__":
    main()
