"""A compiled forward pass for any batch size, with fallback to the eager model.

The gate is not compiled: selecting rows breaks the graph and synchronises with CUDA devices.
``mode="reduce-overhead"`` is not supported: it records a CUDA graph per batch size, and the size
of gated batches varies.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from astkit.batch import tensors


class Compiled:
    """Calls ``model``, compiled at the first call; falls back to eager mode if that fails.

    One graph is used for all batch sizes of 2 or more: only dimension 0 of the inputs is marked
    dynamic (``dynamic=True`` would mark all). The model itself is not modified and can still be
    called. Dropout draws different random numbers than in eager mode. The first call takes many
    seconds. If compilation fails (for example without a C++ compiler), a warning is issued.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._compiled: Any = None
        try:
            self._compiled = torch.compile(model)
        except RuntimeError as error:  # torch.compile does not support this platform
            self._give_up(error)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The model's outputs; batches of 0 or 1 rows, which need another graph, run eagerly."""
        marked = [tensor for tensor in tensors((args, keywords)) if tensor.ndim]
        if self._compiled is None or not marked or len(marked[0]) < 2:
            return self.model(*args, **keywords)
        from torch._dynamo import exc, maybe_mark_dynamic  # takes seconds to import

        for tensor in marked:
            maybe_mark_dynamic(tensor, 0)
        try:
            return self._compiled(*args, **keywords)
        except exc.TorchDynamoException as error:
            # errors of the model itself are raised here
            outputs = self.model(*args, **keywords)
            self._give_up(error)
            return outputs

    def _give_up(self, error: Exception) -> None:
        self._compiled = None
        error = getattr(error, "inner_exception", error)  # wrapped by torch
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "set TORCH_LOGS=dynamo to see the reason, or disable compile"
        if "compiler" in what.lower():
            remedy = "install a C++ compiler such as g++ (on Windows cl), or set CXX"
        sentence = f"torch.compile failed ({what}), so training continues uncompiled: {remedy}"
        warnings.warn(sentence, stacklevel=3)
