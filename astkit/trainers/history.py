"""Records of batches and epochs, the history that keeps them, and their way to observers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from astkit.gating.selection import Selection
from astkit.progress import in_notebook

NOTEBOOK_SECONDS = 0.5  # between reports in a notebook, and at least on an accelerator
SCORES, BATCHES = 32, 8  # rows of a batch, and batches of a report, whose scores are sent


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one training batch or epoch, yielded by ``Trainer.steps``.

    ``metrics["loss"]`` of a batch is a tensor on the device of the run: ``float`` of it waits for
    the device.
    """

    step: int
    phase: str  # "train" or "epoch"
    metrics: dict[str, Any]


class Observer(Protocol):
    """Receives the records of a run.

    Optional methods: ``watch(batch, result)``, called after each training batch with its `Batch`
    and `StepResult`; ``state_dict`` and ``load_state_dict``, saved in checkpoints. With an
    attribute ``needs_outputs`` that is true, the result of a step holds what the model predicts for
    its rows. With ``seconds``, and `Reports.add`, records come so often; with a true ``live`` the
    ``scores`` of some batches too.
    """

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Metrics of a batch ("train"), an "epoch", or a changed setting ("event").

        Batches arrive in groups, at each report.
        """

    def close(self) -> None:
        """Called when the run ends or iteration is stopped."""


class History:
    """Metrics of training batches, epochs and changes of settings, in chronological order.

    Above ``limit`` training batches, every second one is dropped.

    Attributes:
        steps: one mapping per training batch.
        epochs: one mapping per epoch, with validation metrics such as ``val_accuracy``.
        events: one mapping per changed setting, with ``name`` and ``value``.
    """

    def __init__(self, limit: int = 20_000) -> None:
        self.every, self.limit = 1, limit
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Store a record."""
        kept = {"train": self.steps, "epoch": self.epochs, "event": self.events}[phase]
        if phase != "train" or (step - 1) % self.every == 0:
            kept.append({"step": step, **metrics})
        if len(self.steps) > self.limit:
            self.every *= 2
            self.steps = self.steps[::2]

    def plot(self) -> Any:
        """A figure of the losses and the metrics by batch; see `plots.learning_curves`."""
        plots = import_module("astkit.widgets.plots")  # matplotlib is loaded for a figure only
        return plots.learning_curves(self.steps, self.epochs)

    def __repr__(self) -> str:
        latest = self.epochs[-1] if self.epochs else {}
        batches = latest.get("step", 0)
        if self.steps:
            batches = max(batches, self.steps[-1]["step"])
        parts = [f"{len(self.epochs)} epochs", f"{batches} batches"]
        for name, value in latest.items():
            if name.startswith("val_") and isinstance(value, float):
                parts.append(f"{name} {value:.4g}")
        return f"History({', '.join(parts)})"

    def close(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Epochs and events; batches are not saved, to limit the size of checkpoints."""
        return {"epochs": list(self.epochs), "events": list(self.events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore epochs and events; an observer may keep earlier batches."""
        self.epochs, self.events = list(state["epochs"]), list(state["events"])
        self.steps = []


class Reports:
    """The history, the observers of a run, and the records that they have not received yet.

    Values of batches stay on the device until they are sent: after ``every`` batches, twice a
    second in a notebook, and as often as an observer asks for; on an accelerator at most twice a
    second because of the time.
    """

    def __init__(self, history: History, observers: Sequence[Observer], every: int) -> None:
        self.history = history
        self.observers: list[Any] = [history, *observers]
        self.need_outputs = any(getattr(each, "needs_outputs", False) for each in observers)
        self.watchers = [each.watch for each in self.observers if hasattr(each, "watch")]
        self.unseen: list[tuple[StepRecord, Selection | None]] = []
        self.every, self._sent = every, 0.0
        self.seconds = NOTEBOOK_SECONDS if in_notebook() else math.inf

    def add(self, observer: Observer, accelerator: bool = False) -> None:
        """Send the records to ``observer`` too, every ``observer.seconds`` if it has them."""
        self.observers.append(observer)
        seconds = getattr(observer, "seconds", math.inf)
        least = NOTEBOOK_SECONDS if accelerator else 0.0
        self.seconds = min(self.seconds, max(seconds, least))

    def keep(self, record: StepRecord, chosen: Selection | None = None) -> bool:
        """Keep the record of a batch until it is sent; returns whether it is time to."""
        self.unseen.append((record, chosen))
        if len(self.unseen) >= self.every or record.step == 1:
            return True
        return time.perf_counter() - self._sent > self.seconds

    def send(self, shown: Mapping[str, Any], **latest: Any) -> None:
        """Send the kept records, the last one with the metrics ``latest``; waits for the device.

        ``shown`` and scores, of `BATCHES` at most, go to observers that are ``live``, and are not
        kept.
        """
        kept, self.unseen = self.unseen, []
        last, every = len(kept) - 1, -(-len(kept) // BATCHES)
        live = any(map(_is_live, self.observers))
        scores = [
            few_scores(chosen) if live and (last - place) % every == 0 else {}
            for place, (_, chosen) in enumerate(kept)
        ]
        found = _fetched([*(record.metrics for record, _ in kept), *scores])
        for place, (record, _) in enumerate(kept):
            known, more = (latest, shown) if place == last else ({}, {})
            metrics = {**record.metrics, **found[place], **known}
            if metrics["loss"] is not None and math.isnan(metrics["loss"]):
                metrics["loss"] = None  # no row had a label; another NaN was refused
            few = found[len(kept) + place]
            self.log(StepRecord(record.step, "train", metrics), {**few, **more})
        self._sent = time.perf_counter()

    def log(self, record: StepRecord, shown: Mapping[str, Any] | None = None) -> None:
        """Send a record to all observers; ``shown`` to those that are live."""
        for observer in self.observers:
            more = shown if shown and _is_live(observer) else {}
            observer.log(record.step, phase=record.phase, **record.metrics, **more)

    def _stateful(self) -> Iterator[tuple[str, Any]]:
        """The observers with state, by class and number."""
        seen: Counter[str] = Counter()
        for observer in self.observers:
            if hasattr(observer, "load_state_dict"):
                kind = type(observer).__name__
                seen[kind] += 1
                yield f"{kind} {seen[kind]}", observer

    def state_dict(self) -> dict[str, Any]:
        """States of the observers that have one."""
        return {name: observer.state_dict() for name, observer in self._stateful()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        for name, observer in self._stateful():
            if name in state:
                observer.load_state_dict(state[name])


def _is_live(observer: Any) -> bool:
    return getattr(observer, "live", False)


def few_scores(chosen: Selection | None) -> dict[str, Any]:
    """``scores`` of the first rows of a batch, and whether they are ``selected``, ``[n]`` each.

    Batches are shuffled, so these are random rows.
    """
    if chosen is None or chosen.scores is None:
        return {}
    scores = chosen.scores.float()
    selected = torch.zeros_like(scores)
    selected[chosen.index] = (chosen.weight > 0).to(scores.dtype)
    return {"scores": scores[:SCORES], "selected": selected[:SCORES]}


def _fetched(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The values that are tensors as numbers, or lists of them, in one copy from each device."""
    numbers: list[dict[str, Any]] = [{} for _ in metrics]
    places: dict[tuple[torch.device, torch.dtype], list[tuple[int, str]]] = {}
    for position, values in enumerate(metrics):
        for name, value in values.items():
            if isinstance(value, Tensor):
                places.setdefault((value.device, value.dtype), []).append((position, name))
    for entries in places.values():
        tensors = [metrics[place][name] for place, name in entries]
        copied = iter(torch.cat([tensor.reshape(-1) for tensor in tensors]).tolist())
        for (place, name), tensor in zip(entries, tensors, strict=True):
            own = list(islice(copied, tensor.numel()))
            numbers[place][name] = own if tensor.ndim else own[0]
    return numbers
