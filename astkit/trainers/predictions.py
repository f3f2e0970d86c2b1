"""What the model of a `Trainer` says of every row of some data: `Trainer.predict`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler

from astkit import distributed, rng
from astkit.datasets import BatchSource, Loader, as_loader
from astkit.datasets.batch import Batch, is_list_of_rows, map_tensors, tensors
from astkit.datasets.facts import underlying
from astkit.datasets.foreign import open_data, parts_of, sampler_of
from astkit.datasets.table import Table
from astkit.datasets.table_parts import read_inputs
from astkit.gating.losses import part_of, single
from astkit.gating.selection import evaluating, unchanged
from astkit.profiling.flops import BatchFlops, Costs, count_flops, shape_of
from astkit.progress import announce
from astkit.trainers.batches import length

WHOLE = "pass the data set itself, or a loader that gives each row once and in order"


def predict(trainer: Any, data: Any, probabilities: bool) -> Any:
    """See `Trainer.predict`."""
    table = underlying(trainer.train_data)[0]
    label = table.label if isinstance(table, Table) else None
    if probabilities and (label is None or label.task != "classes"):
        raise ValueError("probabilities is True, and the training data are no table of classes")
    source = _in_order(_rows_of(data, table), trainer.device)
    outputs = _outputs(trainer, source)
    if label is None or not isinstance(outputs, Tensor):
        return outputs
    values = single(outputs)
    if label.task == "regression":
        return values.reshape(-1) if values.numel() == len(values) else values
    if values.shape != (len(values), len(label.classes)):
        given = f"the model gives {list(values.shape)} for {len(label.classes)} classes"
        raise ValueError(f"{given}: return logits [rows, {len(label.classes)}]")
    chosen = [label.classes[each] for each in values.argmax(1).tolist()]
    return values.softmax(1) if probabilities else chosen


def _rows_of(data: Any, table: Any) -> Any:
    """``data``, of which files and DataFrames are read as the training ``table``."""
    source = isinstance(data, str | os.PathLike) or hasattr(data, "iloc")
    if isinstance(table, Table) and not source:
        held = underlying(data)[0]
        if not isinstance(held, Table) or held.encoder is not table.encoder:
            given = repr(data) if isinstance(data, Table) else f"a {type(data).__name__}"
            unlike = f"data are {given:.80}, read in another way than the training table"
            raise ValueError(f"{unlike}: pass the file or DataFrame, or Table(source, like=train)")
    if source:
        if not isinstance(table, Table):
            unread = f"data are a {type(data).__name__}, and the training data are no Table"
            raise ValueError(f"{unread} that says how it is read: pass a data set")
        data = read_inputs(data, table)
        for note in data.notes:
            announce(f"predict: {note}")
    return data


def _in_order(data: Any, device: torch.device) -> BatchSource:
    """Batches of all rows of ``data`` in order; ``ValueError`` where they are not."""
    source: Any = as_loader(open_data(data), device, shuffle=False)
    loader = getattr(source, "loader", source)
    in_order = isinstance(sampler_of(loader), SequentialSampler | None)
    kind, fault = type(data).__name__, ""
    if length(source) == math.inf or isinstance(loader, Iterator):
        fault = "is a stream, whose length or order is not known"
    elif any(getattr(part, "drop_last", False) for part in parts_of(loader)):
        fault = "has drop_last, so that the last rows would have no predictions"
    elif getattr(source, "shuffle", False) or not (in_order or source.streamed):
        fault = "shuffles, or draws rows by a sampler of its own"
    if fault:
        raise ValueError(f"data are a {kind} that {fault}: {WHOLE}")
    return source


def _outputs(trainer: Any, source: Any) -> Any:
    """Outputs for all rows on the CPU, of which each process computes its share."""
    model, device, ledger = trainer.model, trainer.device, trainer.ledger
    order = torch.arange(source.num_samples) if isinstance(source, Loader) else None
    costs = Costs(model, trainer.costs.flops)  # counted without a loss, as there may be no targets

    random = rng.restored(device, "evaluation")
    made: list[tuple[int, int, Any]] = []
    with ledger.clock("evaluation"), random, evaluating(model, device), ExitStack() as leaving:
        for buffer in model.buffers():
            leaving.callback(buffer.copy_, buffer.clone())
        distributed.same_buffers(model)
        for number, batch in enumerate(source.batches(0, order)):
            mine = batch.take(distributed.share(batch.rows))
            if not mine.rows:
                continue
            cost = costs.known.get((model, costs.trained, shape_of(mine)))
            if cost is None:
                with ledger.paused():
                    cost = costs.add(model, mine, _count)
            ledger.note(cost, evaluated=mine.rows, passes=trainer.passes(mine.rows))
            outputs = unchanged(trainer.forward, model, mine)[0]
            logits = part_of(outputs, "logits")
            outputs = map_tensors(Tensor.cpu, outputs if logits is None else logits)
            made.append((number, mine.rows, outputs))
    made = sorted(chain.from_iterable(distributed.gathered(made)), key=itemgetter(0))
    return _together([each for _, _, each in made], [rows for _, rows, _ in made])


def _count(model: nn.Module, batch: Batch) -> BatchFlops:
    def loss(outputs: Any, _: Any) -> Tensor:
        return torch.zeros(()) + sum(each.float().sum() for each in tensors(outputs))

    return count_flops(model, batch.x, batch.y, loss)


def _together(parts: list[Any], rows: list[int]) -> Any:
    """Outputs of consecutive batches of so many ``rows`` as those of all rows.

    Tensors are joined; those of other lengths become a list with an entry a row. What has no entry
    a row becomes a list with an entry a batch.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _together([part[name] for part in parts], rows) for name in first}
    of_rows = isinstance(first, list) and all(map(is_list_of_rows, parts, rows))
    if isinstance(first, tuple | list) and not of_rows:
        columns = [_together(list(each), rows) for each in zip(*parts, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, Tensor):
        of_rows = all(part.ndim and len(part) == n for part, n in zip(parts, rows, strict=True))
        if of_rows and len({part.shape[1:] for part in parts}) == 1:
            return torch.cat(parts)
    return list(chain.from_iterable(parts)) if of_rows else None if first is None else parts
