"""GPU test: ``torch.cuda.is_available()`` does not tell whether torch has kernels for the GPU.

For example, Kaggle's torch has none for the P100 (compute capability 6.0): all operations fail.
"""

from __future__ import annotations

import os
from multiprocessing import TimeoutError, get_context

import torch

WAIT_S = 180.0  # time limit of the test; first use of a GPU may compile kernels


def hide_unusable(wait_s: float = WAIT_S) -> str:
    """Hide CUDA from this process if it does not work here; returns the finding, in one line.

    The test runs in a separate process, since CUDA cannot be hidden after its first use. After
    a failed test ``CUDA_VISIBLE_DEVICES`` is empty, so that training uses the CPU. Raises
    ``RuntimeError`` if this process already uses CUDA.
    """
    if torch.version.cuda is None or torch.cuda.device_count() == 0:
        return "no CUDA device, so this runs on the CPU"
    with get_context("spawn").Pool(1) as pool:  # exit terminates a process that hangs
        try:
            fault = pool.apply_async(trial).get(wait_s)
        except TimeoutError:  # it hangs, or its process died
            fault = f"a trial of the GPU did not end within {wait_s:g} s"
    if fault is None:
        return f"CUDA works: {torch.cuda.device_count()} device(s)"
    if torch.cuda.is_initialized():
        raise RuntimeError(f"{fault}, but CUDA is in use already: restart and run from the top")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return f"{fault}: CUDA is hidden, and this runs on the CPU (a T4 would do)"


def trial() -> str | None:
    """Compute on every CUDA device; returns the error, or ``None``."""
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            ones = torch.ones(64, 64, device=f"cuda:{index}")  # uses one of torch's kernels
            total = float((ones @ ones).sum())
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            return f"torch {torch.__version__} cannot compute on {name} ({reason})"
        if total != 64.0**3:
            return f"{name} computes a wrong matrix product"
    return None
