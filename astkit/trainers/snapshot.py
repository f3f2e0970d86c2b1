"""Copies of a training state, taken between two steps, to be written in the background."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """A state as it was when it was taken; ``state`` waits for what is still being copied."""

    def __init__(self, state: Any, copied: list[torch.cuda.Event]) -> None:
        self._state, self._copied = state, copied

    def state(self) -> Any:
        """The copied state, all tensors on the CPU. May be called from any thread."""
        for event in self._copied:
            event.synchronize()
        return self._state


def snapshot(state: Any) -> Snapshot:
    """Copy ``state``: nested mappings, lists and tuples that hold tensors and plain values.

    Tensors are detached and copied to the CPU with their strides; equal views of one memory, such
    as tied weights, are copied once and shared again. From CUDA the copies go into pinned memory
    on the current stream without holding the host: kernels launched later on that stream, the
    next step's among them, run after them and cannot disturb them. Anything else is deep-copied.

    The training thread takes the snapshot, a background job serialises ``state()``::

        taken = snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        writer.put(lambda: save(path, taken.state()), "writing a checkpoint", key="checkpoint")
    """
    copier = _Copier()
    state = copier.copy(state)
    events = [torch.cuda.current_stream(device).record_event() for device in copier.devices]
    return Snapshot(state, events)


class _Copier:
    def __init__(self) -> None:
        self.devices: set[torch.device] = set()  # from which copies may be on their way
        self._copied: dict[Hashable, Tensor] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value.detach())
        if isinstance(value, dict):
            # a copy of the mapping keeps what rides on it, such as a state_dict's versions
            result = copy.copy(value)
            for key, part in value.items():
                result[key] = self.copy(part)
            return result
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.copy(part) for part in value))
        if isinstance(value, list | tuple):
            return type(value)(self.copy(part) for part in value)
        return copy.deepcopy(value)

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:
            return tensor.cpu().clone()
        place = (tensor.device, tensor.data_ptr())
        key = (*place, tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._copied:
            self._copied[key] = self._fresh(tensor)
        return self._copied[key]

    def _fresh(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            self.devices.add(tensor.device)
            target = torch.empty_like(tensor, device="cpu", pin_memory=True)
            return target.copy_(tensor, non_blocking=True)
        # from other accelerators this waits: torch promises no copy beside the host there
        return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
