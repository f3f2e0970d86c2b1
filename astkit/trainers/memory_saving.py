"""Activation checkpointing and selection of the attention kernel.

Checkpointing stores only the inputs of a block and recomputes its forward pass during backward
(Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174). It increases FLOPs,
and a gate already reduces activation memory, so use it only for batches that do not fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
ATTENTION = ("auto", *KERNELS)
_LISTS = (nn.ModuleList, nn.Sequential)


@contextmanager
def attention(kernel: str = "auto") -> Iterator[None]:
    """Context that selects the scaled dot product attention kernel; "auto" leaves it to torch.

    "math" uses plain matrix products. Raises ``RuntimeError`` from the block if the kernel does not
    support the model's attention: flash does not support dropout on the CPU, and on CUDA requires
    half precision and a head dimension of at most 256.
    """
    if kernel == "auto":
        yield
        return
    try:
        with sdpa_kernel(KERNELS[kernel]):
            yield
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise RuntimeError(
            f"attention is {kernel!r}, which does not support this model's attention here (device,"
            " precision, dropout, mask or head width): set attention to 'auto', or the dropout to 0"
        ) from error


class Checkpointed:
    """A context in which forward passes of ``model`` store only the inputs of its blocks.

    Gradients, dropout and buffers (such as BatchNorm statistics) equal those of a plain pass;
    parameters, ``state_dict`` and module names do not change. Backward may run after the context,
    once per forward pass. Passes without gradients are not checkpointed; FLOPs counted within the
    context include the recomputation.

    Blocks are elements of an ``nn.ModuleList`` or ``nn.Sequential`` with submodules (transformer
    layers, residual blocks). In models without such elements, each Sequential of n plain layers is
    split into about sqrt(n) stages.

    Args:
        model: may be compiled.
        kernel: attention kernel for the recomputation.

    Raises ``ValueError`` for a model without blocks.
    """

    def __init__(self, model: nn.Module, kernel: str = "auto") -> None:
        run = partial(_recomputed, kernel)
        # created once: new objects would trigger recompilation
        self._forwards: list[tuple[nn.Module, Callable[..., Any]]] = [
            (block, partial(run, block, block.forward)) for block in _blocks(model)
        ]
        if not self._forwards:
            plain = [part for part in model.modules() if _is_plain(part)]
            self._forwards = [(part, _in_stages(part, run)) for part in plain]
        if not self._forwards:
            raise ValueError(
                f"{type(model).__name__} has no inner blocks to checkpoint: leave"
                " activation_checkpointing off"
            )
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before = [module.__dict__.get("forward") for module, _ in self._forwards]
        for module, forward in self._forwards:
            module.forward = forward

    def __exit__(self, *error: object) -> None:
        for (module, _), forward in zip(self._forwards, self._before, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        element = isinstance(module, _LISTS) and not isinstance(child, _LISTS)
        if element and next(child.children(), None) is not None:
            yield child
        else:
            yield from _blocks(child)


def _is_plain(module: nn.Module) -> bool:
    """Whether ``module`` is a Sequential of several plain layers with the default forward."""
    if getattr(module.forward, "__func__", None) is not nn.Sequential.forward:
        return False
    layers = list(module.children())
    return len(layers) > 1 and not any(list(layer.children()) for layer in layers)


def _in_stages(module: nn.Module, run: Callable[..., Any]) -> Callable[[Any], Any]:
    layers = list(module.children())
    size = math.isqrt(len(layers))
    stages = [nn.Sequential(*layers[i : i + size]) for i in range(0, len(layers), size)]

    def forward(x: Any) -> Any:
        for stage in stages:
            x = run(stage, stage.forward, x)
        return x

    return forward


def _recomputed(
    kernel: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Checkpointed ``forward``; the recomputation uses the original buffer values."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling():  # no context_fn support; a graph updates buffers once
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    before = [
        (part, name, buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    contexts = nullcontext(), _second_run(before, kernel)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: contexts, **kwargs)


@contextmanager
def _second_run(before: list[tuple[nn.Module, str, Tensor]], kernel: str) -> Iterator[None]:
    later = [module._buffers[name] for module, name, _ in before]
    for module, name, values in before:
        module._buffers[name] = values
    try:
        with attention(kernel):
            yield
    finally:
        for (module, name, _), buffer in zip(before, later, strict=True):
            module._buffers[name] = buffer
