"""Memory for time: activations computed a second time, and the choice of an attention kernel.

Checkpointing keeps the inputs of a block only, and runs its forward once more in the backward
(Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174). It spends the FLOPs
that a gate saves, and a gate saves activation memory already: it is for a batch that does not fit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
ATTENTION = ("auto", *KERNELS)


class Checkpointed:
    """A context in which forward passes of ``model`` keep only the inputs of its blocks.

    Gradients, dropout and buffers (the running statistics of a BatchNorm) are those of the plain
    pass. Parameters, ``state_dict`` and module names stay. The backward may run after the context,
    passes without gradients run as ever, hooks of inner modules run twice, and FLOPs counted within
    the context hold the second forward. May be entered again; a compiled model may be called in it.

    Blocks are elements of an ``nn.ModuleList`` or ``nn.Sequential`` that have children of their own
    (transformer layers, residual blocks), and elsewhere the innermost modules that have children; a
    Sequential of plain layers is run in stages, the square root of its length in number.

    Raises ``ValueError`` for a model without blocks.
    """

    def __init__(self, model: nn.Module) -> None:
        blocks = list(_blocks(model))
        if not blocks:
            raise ValueError(
                f"{type(model).__name__} has no inner blocks to checkpoint: leave"
                " activation_checkpointing off"
            )
        # made once: a compiled model would take new objects for new code
        self._forwards: list[tuple[nn.Module, _Block | _Stages]] = [
            (module, _Stages(module) if _staged(module) else _Block(module)) for module in blocks
        ]
        self._before: list[list[Any]] = []

    def __enter__(self) -> None:
        self._before.append([module.__dict__.get("forward") for module, _ in self._forwards])
        for module, forward in self._forwards:
            module.forward = forward

    def __exit__(self, *error: object) -> None:
        for (module, _), forward in zip(self._forwards, self._before.pop(), strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    lists = (nn.ModuleList, nn.Sequential)
    inner = [
        child
        for child in module.children()
        if any(True for _ in child.children()) and any(True for _ in child.parameters())
    ]
    for child in inner:
        whole = isinstance(module, lists) and not isinstance(child, lists)
        yield from ([] if whole else list(_blocks(child))) or [child]
    if not inner and _staged(module):
        yield module


def _staged(module: nn.Module) -> bool:
    plain = getattr(module.forward, "__func__", None) is nn.Sequential.forward
    return plain and len(list(module.children())) > 1


class _Block:
    """The forward pass of a module, as one checkpoint."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self.forward or type(self.module).forward.__get__(self.module)
        return _recomputed([self.module], run, *args, **kwargs)


class _Stages:
    """The forward pass of a Sequential, in about as many checkpoints as each has layers."""

    def __init__(self, module: nn.Module) -> None:
        layers = list(module.children())
        number = math.isqrt(len(layers) - 1) + 1  # the square root, rounded up
        size, longer = divmod(len(layers), number)
        starts = [i * size + min(i, longer) for i in range(number + 1)]
        self.stages = [layers[a:b] for a, b in pairwise(starts)]

    def __call__(self, x: Any) -> Any:
        for layers in self.stages:
            x = _recomputed(layers, lambda x, layers=layers: _run(layers, x), x)
        return x


def _run(layers: list[nn.Module], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _recomputed(
    modules: list[nn.Module], run: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """``run`` as a checkpoint; its second run finds what its first found."""
    if not torch.is_grad_enabled():
        return run(*args, **kwargs)
    if torch.compiler.is_compiling():  # takes no context; a graph changes buffers once anyway
        return checkpoint(run, *args, use_reentrant=False, **kwargs)
    as_before = _AsBefore(modules)
    return checkpoint(
        run, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), as_before), **kwargs
    )


class _AsBefore:
    """The buffers and attention kernels of the time it was made; left, the later buffers are back.

    A class, because a backward through a retained graph enters it again.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._buffers = [
            (module, name, buffer.detach().clone())
            for part in modules
            for module in part.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._kernels = _kernels_allowed()
        self._around = ExitStack()

    def __enter__(self) -> None:
        if _kernels_allowed() != self._kernels:
            self._around.enter_context(sdpa_kernel(self._kernels))
        for module, name, values in self._buffers:
            self._around.callback(module._buffers.__setitem__, name, module._buffers[name])
            module._buffers[name] = values.clone()

    def __exit__(self, *error: object) -> None:
        self._around.close()


def _kernels_allowed() -> list[SDPBackend]:
    allowed = {
        SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled(),
    }
    return [kernel for kernel, enabled in allowed.items() if enabled]


@contextmanager
def attention(
    kernel: str = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Iterator[None]:
    """Scaled dot product attention in the block runs on one kernel; "auto" leaves torch's choice.

    Args:
        kernel: "auto", "math" (plain matrix products), "flash" or "efficient".
        device: where the model runs.
        dtype: of the attention's inputs, under autocast the lower one.

    Raises:
        ValueError: for a kernel that does not exist, or not on ``device`` in ``dtype``.
        RuntimeError: from the block, when the kernel refuses the model's attention: flash takes no
            dropout on the CPU, and on CUDA only half precision and heads of up to 256.
    """
    if kernel not in ATTENTION:
        raise ValueError(f"attention is {kernel!r}: choose one of {', '.join(ATTENTION)}")
    if kernel == "auto":
        yield
        return
    device = torch.device(device)
    if not _runs(kernel, device.type, dtype):
        able = ", ".join(["auto", *(name for name in KERNELS if _runs(name, device.type, dtype))])
        raise ValueError(
            f"attention is {kernel!r}, which {device.type} does not have for"
            f" {str(dtype).removeprefix('torch.')}: choose one of {able}"
        )
    with _explained(kernel), sdpa_kernel(KERNELS[kernel]):
        yield


@cache
def _runs(kernel: str, device: str, dtype: torch.dtype) -> bool:
    probe = torch.zeros(1, 1, 16, 16, device=device, dtype=dtype)
    try:
        with warnings.catch_warnings(), sdpa_kernel(KERNELS[kernel]):
            warnings.simplefilter("ignore")  # torch's reasons, one warning each
            F.scaled_dot_product_attention(probe, probe, probe)
    except RuntimeError:
        return False
    return True


@contextmanager
def _explained(kernel: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise RuntimeError(
            f"attention is {kernel!r}, which refused this model's attention (its dropout, mask or"
            " head width): set attention to 'auto', or the dropout to 0"
        ) from error
