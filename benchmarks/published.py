"""Published gains that no other benchmark measures: `python -m benchmarks.published`.

Ratios of interleaved arms in one process on the CPU, and peak memory in processes of their own.
Writes published.json.
"""

from __future__ import annotations

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
from astkit.profiling import interleaved
from astkit.system import allowed_cpus
from astkit.systems.lattice.model import EnergyFlowLattice
from benchmarks import bench
from benchmarks.bench import BATCH, Figure
from benchmarks.lattice import SIZE, train
from benchmarks.measure import STATS, Photographs, synthetic
from tests.systems.lattice.examples import inputs

RESULTS = bench.HERE / "published.json"
ROUNDS, STEPS, LATTICE_ROWS = 11, 8, 256
HEADS, TOKENS, WIDTH = 8, 65, 32  # attention of the original's vision transformer, a head's width
Work = Callable[[], object]


def ratio(name: str, arms: dict[str, Work], rounds: int, said: str) -> Figure:
    """Seconds of the first arm over those of the second one."""
    first, second, *_ = arms
    return bench.ratio(name, interleaved(arms, rounds=rounds, warmup=1), first, second, said)


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
        return tqdm(total=10**9, file=io.StringIO(), mininterval=0, miniters=every).update

    arms = {name: Training("digits_cnn", 32, shown=bar(n)) for name, n in (("all", 1), ("ten", 40))}
    said = (
        f"{STEPS} training steps of 32 digits, the shortest steps of the notebooks; tqdm to memory"
    )
    return ratio("progress drawn each step / 10 times an epoch", arms, rounds, said)


def compiled(rounds: int) -> Figure:
    """torch.compile of SimpleCNN."""
    if shutil.which("g++") is None:
        raise LookupError("torch.compile needs a C++ compiler: install g++")
    ways = {"eager": False, "compiled": True}
    arms = {name: Training("simple_cnn", BATCH, way) for name, way in ways.items()}
    said = f"{STEPS} training steps of {BATCH} images, SimpleCNN, fp32; compiling is not counted"
    return ratio("eager / torch.compile", arms, rounds, said)


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
    return ratio("attention: math / flash kernel", arms, rounds, said)


def threads(rounds: int) -> Figure:
    """One thread over one a CPU; four a CPU take their turn."""
    before, cpus = torch.get_num_threads(), allowed_cpus()
    work = Training("simple_cnn", BATCH)

    def with_threads(count: int) -> None:
        torch.set_num_threads(count)
        work()

    counts = {"one": 1, "CPUs": cpus, "four a CPU": 4 * cpus}
    arms: dict[str, Work] = {name: partial(with_threads, n) for name, n in counts.items()}
    try:
        said = f"{STEPS} training steps of {BATCH} images, SimpleCNN, fp32, {cpus} CPUs"
        return ratio("one thread / one a CPU", arms, rounds, said)
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
        return ratio("items one by one / mapped", arms, rounds, said)


def high_water() -> int:
    """Peak bytes of this process; that of getrusage begins with its parent's."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def lattice_peak(precision: str) -> int:
    """Bytes that a training pass of the lattice adds to the memory of its process."""
    torch.set_num_threads(1)
    model, x = EnergyFlowLattice(SIZE), inputs(LATTICE_ROWS, SIZE.dim).float()
    before = high_water()
    for _ in range(2):  # the first pass makes the gradients
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            train(model, lambda: model(x))
    return high_water() - before


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
    return bench.figure("lattice memory: fp32 / bf16", values, said, bytes=kept)


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
    asked = bench.options(main.__doc__, RESULTS, arguments, rounds=ROUNDS, parts=[*FIGURES])
    bench.record(asked.out, (FIGURES[part](asked.rounds) for part in asked.parts))


if __name__ == "__main__":
    main()
