"""Checks of recorded steps on a GPU: `python -m benchmarks.gpu_graphs --out FILE`.

`--only seconds,waits` chooses parts by words in their names.

Do graphs train as eager steps do, without a wait, with the same random numbers; does a NaN stop the
step; how many steps are replayed, and how long do they take; what happens to a model that cannot be
recorded, and is memory freed. The file is written after each part; a part that fails is recorded
with its traceback.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.datasets import Loader
from astkit.files import write_json
from astkit.profiling import interleaved
from astkit.stamp import describe, stamp
from astkit.trainers import TrainConfig, Trainer
from benchmarks import bench, gpu
from benchmarks.bench import BATCH, ENDLESS, advance
from benchmarks.gpu import COMPILED, Part, synchronising_raises
from benchmarks.measure import STATS, synthetic

STEPS, WARMUP, WAITING, ROUNDS, BATCHES = 200, 20, 40, 15, 250
LIMIT_S = 420.0  # no part begins after that
NETWORKS = ("simple_cnn", "simplified_vit", "resnet9")
POLICIES: dict[str, Any] = {
    "dense": None,
    "gate": {"name": "gate", "rate": 0.1, "controller": "top_k"},
}
MODES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16, channels_last": {"precision": "bf16", "channels_last": True},
}
AT_MOST = 1e-5  # of the largest weight
LR = 1e-4  # a larger one multiplies the rounding of sums in 200 steps on noise


images = cache(synthetic)


def made(
    model: str | nn.Module, way: str, record: bool = True, size: int = BATCH, **settings: Any
) -> Trainer:
    """A trainer of a network on noise, which reports once in 1,000 batches."""
    loader = Loader(images(BATCHES * size), size, normalize=STATS, resident=True)
    config = TrainConfig(report_every=1000, graphs=record, **settings)
    if isinstance(model, str):
        with rng.isolated("cpu", 0):
            model = gpu.network(model)
    own = {"policy": POLICIES[way], "budget": ENDLESS, "config": config, "device": gpu.DEVICE}
    return Trainer(model, loader, **own)


def batches_of(trainer: Any) -> Generator[Any]:
    """The records of training batches."""
    with closing(trainer.steps()) as records:
        yield from (each for each in records if each.phase == "train")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def exact() -> Iterator[None]:
    """Without TF32, and with deterministic kernels."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
        torch.backends.cudnn.deterministic = False
        torch.use_deterministic_algorithms(False)


def trained(name: str, way: str, record: bool, steps: int, **settings: Any) -> Part:
    """Weights and losses after ``steps`` steps, and the share of steps that were replayed."""
    trainer = made(name, way, record, **settings)
    steps_of, losses = batches_of(trainer), []
    before = copy.deepcopy(trainer.model.state_dict())
    for _ in range(steps):
        losses.append(next(steps_of).metrics["loss"])
    work = trainer.optimisation
    weights = {name: part.detach().clone() for name, part in trainer.model.state_dict().items()}
    reason = None if work.passes.graphs is None else work.passes.graphs.reason
    found = {
        "before": before,
        "weights": weights,
        "losses": torch.stack([torch.as_tensor(each).float().cpu() for each in losses]),
        "share": work.replayed / steps,
        "recorded": work.passes.graphs is not None and reason is None,
        "reason": reason,
    }
    steps_of.close()
    return found


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of weights, over the largest weight."""
    floats = [name for name, each in one.items() if each.is_floating_point()]
    largest = max(float(one[name].abs().max()) for name in floats)
    return max(float((one[name] - other[name]).abs().max()) for name in floats) / largest


def unrecorded() -> Any:
    """The step written for graphs, launched kernel by kernel: the same optimizer."""
    return mock.patch("astkit.trainers.graphs.WARMUP", STEPS + 1)


def equal(name: str, way: str) -> Part:
    """Weights after `STEPS` replayed steps, and after the same steps that are not recorded.

    Usual steps differ by the rounding of the learning rate to float32, which AdamW on noise
    multiplies; so does the order of sums, which two runs of usual steps show.
    """
    with exact():
        recorded = trained(name, way, True, STEPS, lr=LR)
        with unrecorded():
            same = trained(name, way, True, STEPS, lr=LR)
        usual, again = (trained(name, way, False, STEPS, lr=LR) for _ in range(2))
    apart = recorded["losses"] != same["losses"]
    found = difference(same["weights"], recorded["weights"])
    return {
        "difference": found,
        "from usual steps": difference(usual["weights"], recorded["weights"]),
        "usual steps twice": difference(usual["weights"], again["weights"]),
        "moved": difference(usual["before"], usual["weights"]),
        "first steps apart": apart.nonzero().flatten()[:3].tolist(),
        "share": recorded["share"],
        "reason": recorded["reason"],
        "kept": found <= AT_MOST and recorded["share"] >= 0.9,
    }


def other_modes(name: str, way: str) -> Part:
    """Losses of bf16, and of compiled steps, recorded and not."""
    found: Part = {}
    for mode, settings in {
        "bf16": MODES["bf16, channels_last"],
        "bf16, compiled": COMPILED,
    }.items():
        usual, recorded = (trained(name, way, each, 60, **settings) for each in (False, True))
        means = [float(each["losses"][-20:].mean()) for each in (usual, recorded)]
        found[mode] = {
            "losses": means,
            "share": recorded["share"],
            "reason": recorded["reason"],
        }
    found["kept"] = all(each["share"] >= 0.75 for each in found.values())
    return found


def waits(name: str, way: str) -> Part:
    """`WAITING` steps in which a wait for the device is an error."""
    trainer = made(name, way)
    steps = batches_of(trainer)
    advance(steps, 2 * WARMUP)
    replayed = trainer.optimisation.replayed
    with synchronising_raises():
        advance(steps, WAITING)
    share = (trainer.optimisation.replayed - replayed) / WAITING
    steps.close()
    return {"steps": WAITING, "waits": 0, "share": share, "kept": share == 1}


def not_finite(name: str, way: str) -> Part:
    """A batch of NaN leaves the weights as they are, and the report raises."""
    trainer = made(name, way)
    steps = batches_of(trainer)
    advance(steps, 2 * WARMUP)
    work = trainer.optimisation
    with torch.no_grad():  # all that follows is NaN, but for weights that are not changed
        first = next(iter(trainer.model.parameters()))
        kept = first.detach().clone()
        first.fill_(math.nan)
    before = {name: part.detach().clone() for name, part in trainer.model.named_parameters()}
    replayed = work.replayed
    advance(steps, 2)
    after = dict(trainer.model.named_parameters())
    same = all(torch.equal(before[each].nan_to_num(), after[each].nan_to_num()) for each in before)
    with torch.no_grad():
        first.copy_(kept)
    raised = ""
    try:
        steps.close()
        trainer.optimisation.finite.read()
    except FloatingPointError as error:
        raised = str(error)
    return {
        "unchanged": same,
        "replayed": work.replayed - replayed,
        "raised": raised,
        "kept": same and work.replayed - replayed == 2 and bool(raised),
    }


def seconds(name: str, size: int = BATCH) -> Part:
    """Seconds of a step, recorded and not, and the share of steps that were replayed."""
    arms, trainers = {}, {}
    for way in POLICIES:
        for mode, settings in MODES.items():
            for kind, record in {"eager": False, "graphs": True}.items():
                key = f"{way}, {mode}, {kind}"
                trainer = made(name, way, record, size, **settings)
                trainers[key], steps = trainer, batches_of(trainer)
                advance(steps, 2 * WARMUP)
                arms[key] = partial(advance, steps, 10)
    times = interleaved(arms, rounds=ROUNDS, warmup=1, synchronize=synchronize)
    table = {}
    for key, trainer in trainers.items():
        work = trainer.optimisation
        share, reason = work.replayed / work.steps, work.passes.graphs and work.passes.graphs.reason
        table[key] = {"ms": times.median(key) * 100, "share": share, "reason": reason}
    return {"table": table}


class Asks(nn.Module):
    """Cannot be recorded: its step reads a number, or waits for the device unseen."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = gpu.network("simple_cnn"), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "reads" and self.training:
            assert float(x.detach().abs().max()) < 1e9
        elif self.training:
            torch.cuda.current_stream().synchronize()
        outputs: Tensor = self.inner(x)
        return outputs


def unrecordable(how: str) -> Part:
    """Such a model trains on, dropout included, and one sentence says why it is not recorded."""
    run = made(Asks(how), "dense")
    steps = batches_of(run)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        advance(steps, WARMUP)
    sentences = [str(each.message) for each in said if "graphs" in str(each.message)]
    losses = [float(record["loss"]) for record in run.history.steps]
    taken = run.optimisation.steps
    steps.close()
    later = made("simple_cnn", "dense")  # other graphs, and dropout, are as before
    after = batches_of(later)
    advance(after, WARMUP)
    replayed = later.optimisation.replayed
    after.close()
    return {
        "sentences": sentences,
        "losses": losses[-3:],
        "replayed afterwards": replayed,
        "kept": taken == WARMUP and len(sentences) == 1 and replayed > 10,
    }


def memory(name: str, runs: int = 8) -> Part:
    """Memory that the allocator holds after each of several runs in turn."""
    held = []
    for number in range(runs):
        steps = batches_of(made(name, "dense" if number % 2 else "gate"))
        advance(steps, WARMUP)
        steps.close()
        del steps
        gc.collect()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved() / 2**20)
    return {"MiB": held, "kept": held[-1] <= held[1] + 64}


def attempt(part: Callable[[], Part]) -> Part:
    """What ``part`` returns with the seconds it took, or its traceback, which is printed."""
    start = time.perf_counter()
    try:
        found = part()
    except Exception as error:  # the other parts must still run
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {**found, "part_seconds": time.perf_counter() - start}


def parts() -> dict[str, Callable[[], Part]]:
    """What is checked, by name; the most telling first."""
    found: dict[str, Callable[[], Part]] = {}
    for name in NETWORKS:
        for way in POLICIES:
            found[f"equal, {name}, {way}"] = partial(equal, name, way)
    for name in NETWORKS[:2]:
        for way in POLICIES:
            found[f"waits, {name}, {way}"] = partial(waits, name, way)
            found[f"NaN, {name}, {way}"] = partial(not_finite, name, way)
    found |= {f"seconds, {name}": partial(seconds, name) for name in NETWORKS}
    found["memory"] = partial(memory, "simple_cnn")
    found["bf16 and compiled"] = partial(other_modes, "simple_cnn", "gate")
    found["reads a number"] = partial(unrecordable, "reads")
    found["waits unseen"] = partial(unrecordable, "waits")  # the last, since it may break the rest
    return found


def main(arguments: list[str] | None = None) -> None:
    """Check every part and write the results after each of them."""
    asked = bench.options(main.__doc__, None, arguments, only="", limit=LIMIT_S)
    if not torch.cuda.is_available():
        raise SystemExit("not run: torch sees no CUDA GPU")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    command = "python -m benchmarks.gpu_graphs"
    content: Part = {"command": command, "stamp": stamp(), "parts": {}}
    print(describe(content["stamp"]))
    start = time.perf_counter()
    for name, part in parts().items():
        wanted = any(word in name for word in asked.only.split(","))
        if not wanted or time.perf_counter() - start > asked.limit:
            continue
        found = content["parts"][name] = attempt(part)
        shown = {key: value for key, value in found.items() if key != "traceback"}
        print(f"{name}: {shown}", flush=True)
        write_json(asked.out, content)


if __name__ == "__main__":
    main()
