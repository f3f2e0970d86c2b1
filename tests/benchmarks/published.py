"""Published gains that no other benchmark measures: `python -m tests.benchmarks.published`.

Ratios of interleaved arms in one process on the CPU, and peak memory in processes of their own.
Writes published.json.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader
from tqdm import tqdm

from astkit import models, rng
from astkit.datasets import Loader, open_mapped, write_mapped
from astkit.profiling import interleaved, peak_memory
from astkit.system import allowed_cpus
from astkit.systems.lattice.model import EnergyFlowLattice
from tests.benchmarks.lattice import SIZE, train
from tests.benchmarks.measure import (
    BATCH,
    STATS,
    Figure,
    Photographs,
    figure,
    line,
    record,
    synthetic,
)
from tests.systems.lattice.examples import inputs

RESULTS = Path(__file__).with_name("published.json")
ROUNDS, STEPS, LATTICE_ROWS = 11, 8, 256
HEADS, TOKENS, WIDTH = 8, 65, 32  # attention of the original's vision transformer, a head's width
Work = Callable[[], object]


def ratio(
    name: str, arms: dict[str, Work], over: tuple[str, str], rounds: int, said: str
) -> Figure:
    """Seconds of arm ``over[0]`` over those of ``over[1]``."""
    times = interleaved(arms, rounds=rounds, warmup=1)
    values = [a / b for a, b in zip(*(times.seconds[arm] for arm in over), strict=True)]
    seconds = {arm: times.median(arm) for arm in arms}
    return figure(name, values, "at least", None, said, seconds=seconds)


class Training:
    """A call takes ``STEPS`` training steps on one batch of noise; ``shown`` follows each."""

    def __init__(self, model: str, batch: int, compiled: bool = False, shown: Work = int) -> None:
        shape = (1, 8, 8) if model == "digits_cnn" else (3, 32, 32)
        self.data = synthetic(batch, shape)
        self.x = self.data.images / 255
        self.model: nn.Module = models.build(model, shape, 10, seed=0)
        self.run = torch.compile(self.model) if compiled else self.model
        self.adamw = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.shown = shown

    def __call__(self) -> None:
        for _ in range(STEPS):
            self.step(self.x, self.data.labels)
            self.shown()

    def step(self, x: Tensor, y: Tensor) -> None:
        self.adamw.zero_grad(set_to_none=True)
        F.cross_entropy(self.run(x), y).backward()
        self.adamw.step()


def progress(rounds: int) -> Figure:
    """A bar that is drawn after each step, over one that is drawn ten times an epoch of 400."""

    def bar(every: int) -> Work:
        drawn = tqdm(total=10**9, file=io.StringIO(), mininterval=0, miniters=every)
        return drawn.update

    arms = {name: Training("digits_cnn", 32, shown=bar(n)) for name, n in (("all", 1), ("ten", 40))}
    said = (
        f"{STEPS} training steps of 32 digits, the shortest steps of the notebooks; tqdm to memory"
    )
    return ratio("progress drawn each step / 10 times an epoch", arms, ("all", "ten"), rounds, said)


def compiled(rounds: int) -> Figure:
    """torch.compile of SimpleCNN."""
    if shutil.which("g++") is None:
        raise LookupError("torch.compile needs a C++ compiler: install g++")
    arms = {
        name: Training("simple_cnn", BATCH, name == "compiled") for name in ("eager", "compiled")
    }
    said = f"{STEPS} training steps of {BATCH} images, SimpleCNN, fp32; compiling is not counted"
    return ratio("eager / torch.compile", arms, ("eager", "compiled"), rounds, said)


def attention(rounds: int) -> Figure:
    """The fused kernel of scaled_dot_product_attention over the one that stores all weights."""
    drawn = rng.generator(0, "attention")
    parts = [torch.randn(32, HEADS, TOKENS, WIDTH, generator=drawn) for _ in range(3)]
    q, k, v = (part.requires_grad_() for part in parts)

    def attend(kernel: SDPBackend) -> None:
        with sdpa_kernel(kernel):
            for _ in range(STEPS):
                F.scaled_dot_product_attention(q, k, v).sum().backward()

    kernels = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
    arms: dict[str, Work] = {name: partial(attend, kernel) for name, kernel in kernels.items()}
    said = f"forward and backward, 32 images, {HEADS} heads, {TOKENS} tokens, fp32"
    return ratio("attention: math / flash kernel", arms, ("math", "flash"), rounds, said)


def threads(rounds: int) -> Figure:
    """One thread over one a CPU, and that over four a CPU."""
    before, cpus = torch.get_num_threads(), allowed_cpus()
    work = Training("simple_cnn", BATCH)

    def with_threads(count: int) -> None:
        torch.set_num_threads(count)
        work()

    counts = {"one": 1, "CPUs": cpus, "four a CPU": 4 * cpus}
    arms: dict[str, Work] = {name: partial(with_threads, n) for name, n in counts.items()}
    try:
        said = f"{STEPS} training steps of {BATCH} images, SimpleCNN, fp32, {cpus} CPUs"
        return ratio("one thread / one a CPU", arms, ("one", "CPUs"), rounds, said)
    finally:
        torch.set_num_threads(before)


def streaming(rounds: int) -> Figure:
    """Images decoded one by one over memory-mapped ones, with training."""
    rows, work, passes = STEPS * BATCH, Training("simple_cnn", BATCH), iter(range(10**9))
    data = synthetic(rows)
    with tempfile.TemporaryDirectory() as folder:
        write_mapped(Path(folder) / "images", data, data.classes)
        mapped = open_mapped(Path(folder) / "images")
        stream = Loader(mapped, BATCH, augment=("crop", "flip"), normalize=STATS)
        plain = DataLoader(Photographs(data), BATCH, shuffle=True)

        def items() -> None:
            for x, y in plain:
                work.step(x, y)

        def batches() -> None:
            for batch in stream.batches(next(passes)):
                work.step(batch.x, batch.y)

        arms: dict[str, Work] = {"DataLoader": items, "mapped": batches}
        said = f"training on {rows} images with crop and flip, SimpleCNN; DataLoader in the process"
        return ratio("items one by one / mapped", arms, ("DataLoader", "mapped"), rounds, said)


def lattice_peak(precision: str) -> int:
    """Bytes that a training pass of the lattice adds to the memory of its process."""
    torch.set_num_threads(1)
    config = SIZE
    model, x = EnergyFlowLattice(config), inputs(LATTICE_ROWS, config.dim).float()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            train(model, lambda: model(x))

    before = peak_memory()
    step()
    step()  # the first one makes the gradients
    after = peak_memory()
    if before is None or after is None:
        raise LookupError("this system keeps no peak memory of a process")
    return after - before


def lattice_memory(rounds: int) -> Figure:
    """Memory of the lattice in fp32 over that in bf16 autocast."""
    values, kept = [], {"fp32": 0, "bf16": 0}
    for _ in range(min(5, rounds)):
        for precision in kept:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                kept[precision] = pool.submit(lattice_peak, precision).result()
        values.append(kept["fp32"] / kept["bf16"])
    said = (
        f"peak of two training passes of {LATTICE_ROWS} samples above what the process held before"
    )
    return figure("lattice memory: fp32 / bf16", values, "at least", None, said, bytes=kept)


FIGURES = {
    "progress": progress,
    "compile": compiled,
    "attention": attention,
    "threads": threads,
    "streaming": streaming,
    "lattice_memory": lattice_memory,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts and write the results in one piece."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--parts", nargs="+", choices=FIGURES, default=[*FIGURES])
    options = parser.parse_args(arguments)
    record(options.out, (FIGURES[part](options.rounds) for part in options.parts), line)


if __name__ == "__main__":
    main()
