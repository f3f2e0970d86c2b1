"""How much memory a lattice will take, told before it is built."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from astkit.lattice.config import LatticeConfig
from astkit.lattice.flows import Flows, Stepper
from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.surface import Landing, deposit


def estimate_memory(
    config: LatticeConfig,
    batch_size: int,
    training: bool = True,
    *,
    flows: int | None = None,
    steps: int | None = None,
) -> int:
    """Bytes that one pass of a batch takes at its peak, parameters included, in float32.

    The pass is made on the meta device, where tensors have shapes but no memory, and the bytes that
    would be alive are counted. In training that is forward, backward and AdamW's two averages.
    What the allocator keeps for itself comes on top: little in a first pass, more after a few steps
    on a CPU with glibc, whose heap breaks up as its mmap threshold grows; with the environment
    variable ``MALLOC_MMAP_THRESHOLD_=65536`` that does not happen.

    Args:
        config: of the lattice.
        batch_size: samples a batch.
        training: False for a forward pass without gradients.
        flows: flows alive a sample in a mean step; None: those that start, ``width * height``. With
            spawning there are up to ``config.flows_per_sample``.
        steps: that a mean flow takes; None: those at the middle of z_min and z_max.

    Raises:
        ValueError: if ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: give at least 1 sample")
    speed = (config.z_min + config.z_max) / 2
    if steps is None:
        steps = min(config.steps_allowed, int((config.depth - 1) / speed) + 1)
    flows = config.cells if flows is None else flows
    with torch.device("meta"):
        model = EnergyFlowLattice(config)
    size = sum(parameter.nbytes for parameter in model.parameters())
    live = _Live(model)
    with live, torch.set_grad_enabled(training):
        x = torch.empty(batch_size, config.dim, device="meta")
        y = _rehearse(model, x, flows, steps)
        if training:
            y.square().mean().backward()
    return size * (3 if training else 1) + live.peak


def _rehearse(model: EnergyFlowLattice, x: Tensor, flows: int, steps: int) -> Tensor:
    """A forward pass in which ``flows`` a sample live for ``steps``: no value is ever looked at."""
    config, surface = model.config, model.mapper(x)
    if not config.lattice:
        return model.collector(surface)
    stepper = Stepper(config, model.neuron, model.carrier, model.extent)
    alive, _ = stepper.begin(surface)
    if flows != config.cells:
        rows = torch.arange(len(x) * flows, device="meta") % (len(x) * config.cells)
        alive = alive.take(rows)
    every = config.recompute_every if torch.is_grad_enabled() else 0
    for number in range(0, steps, every or 1):
        if every:
            alive = checkpoint(
                _moves, stepper, alive, min(every, steps - number),
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
        else:
            alive = _moves(stepper, alive, 1)
    sample = alive.slot // config.flows_per_sample
    landed = deposit([Landing(sample, alive.place, alive.age)], len(x), config.width, config.height)
    return model.collector(landed)


def _moves(stepper: Stepper, flows: Flows, count: int) -> Flows:
    for number in range(count):
        flows = stepper.move(flows, number).flows
    return flows


class _Live(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, for as long as they are alive."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        held = [*model.parameters(), *model.buffers()]
        self._known = {id(tensor.untyped_storage()) for tensor in held}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._track(tensor.untyped_storage())
        return made

    def _track(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key not in self._known:  # views share the storage of what they look at
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
