"""A compiled forward pass that takes batches of any size, and falls back to the eager model.

The gate stays outside: choosing rows breaks the graph, and on CUDA waits for the device.
``mode="reduce-overhead"`` is not offered: it records a CUDA graph for every batch size, and behind
a gate nearly every batch has another one.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from astkit.batch import tensors


class Compiled:
    """Calls ``model``, compiled at the first call; eager from then on where compiling fails.

    One graph serves all batch sizes from 2 on: dimension 0 of the inputs is marked dynamic, the
    others are not (``dynamic=True`` would free all). The model itself stays as it is, and both can
    be called in turn. Dropout draws other numbers than in the eager model. The first call takes
    many seconds. Where it fails (no C++ compiler), one warning says so.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._compiled: Any = None
        try:
            self._compiled = torch.compile(model)
        except RuntimeError as error:  # a Python or a system that torch cannot compile for
            self._give_up(error)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The model's outputs; a batch of 0 or 1 rows, a graph of its own, is run eagerly."""
        marked = [tensor for tensor in tensors((args, keywords)) if tensor.ndim]
        if self._compiled is None or not marked or len(marked[0]) < 2:
            return self.model(*args, **keywords)
        from torch._dynamo import exc, maybe_mark_dynamic  # seconds to load

        for tensor in marked:
            maybe_mark_dynamic(tensor, 0)
        try:
            return self._compiled(*args, **keywords)
        except exc.TorchDynamoException as error:
            # a mistake in the model or its inputs is raised here instead
            outputs = self.model(*args, **keywords)
            self._give_up(error)
            return outputs

    def _give_up(self, error: Exception) -> None:
        self._compiled = None
        error = getattr(error, "inner_exception", error)  # that torch wraps in one of its own
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "see TORCH_LOGS=dynamo for its reasons, or leave compile off"
        if "compiler" in what.lower():
            remedy = "install a C++ compiler such as g++ (on Windows cl), or name yours in CXX"
        sentence = f"torch.compile failed ({what}), so training continues uncompiled: {remedy}"
        warnings.warn(sentence, stacklevel=3)
