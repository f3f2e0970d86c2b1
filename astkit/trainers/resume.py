"""The state of a trainer as plain values, and what a resumed run must have in common with it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from astkit.background import BackgroundWriter
from astkit.datasets import BatchSource, Images
from astkit.gating.sampler import class_labels
from astkit.identity import configuration, tensor_hash
from astkit.trainers.learner import Learner
from astkit.trainers.loop import Loop
from astkit.trainers.state import Event, Observer, Position


class Resumable(Loop):
    """A loop whose state can be saved and loaded: what `Checkpoints` needs of a run."""

    def _batch_ended(self, epoch_ended: bool) -> None:
        if self.checkpoints is not None:
            self.checkpoints.after_batch(self, epoch_ended)

    def _save(self) -> Path | None:
        if self.checkpoints is None:
            return None
        self.checkpoints.save(self)
        return self.checkpoints.folder

    def latest(self) -> Mapping[str, Any]:
        """Metrics of the latest epoch; empty before the first has ended."""
        return self.history.epochs[-1] if self.history.epochs else {}

    def direction(self, metric: str) -> bool | None:
        """Whether higher is better of a metric such as "val_loss"; ``None`` if unknown."""
        return self.evaluator.direction(metric)

    def sync(self) -> list[BackgroundWriter]:
        """Have what observers logged so far written; by whom."""
        return [each.sync() for each in self.observers if hasattr(each, "sync")]

    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one that it continues, plain values."""
        return {
            **self.config.to_dict(),
            "budget": configuration(self.budget),
            "step": configuration(getattr(self.step, "step", self.step)),
            "policy": configuration(self.policy),
            "optimizer": _optimizer(self.learner),
            "model": _structure(self.model),
            "data": _data(self.train),
        }

    def state_dict(self) -> dict[str, Any]:
        """All state of the loop beside weights and optimizer.

        Random numbers need no state of their own: each is drawn by seed, step and purpose.
        """
        self.evaluator.save(self.position)
        return {
            "events": [asdict(event) for event in self.steering.events],
            "position": asdict(self.position),
            "prepared": self.prepared,
            "ledger": self.ledger.state_dict(),
            "step": self.step.state_dict(),
            "policy": None if self.policy is None else self.policy.state_dict(),
            "feed": self.feed.state_dict(),
            "costs": self.costs.state_dict(),
            "settings": self.setting_up.state_dict(),
            "updates": self.learner.updates.state_dict(),
            "observers": {name: each.state_dict() for name, each in _stateful(self.observers)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, with the model and the optimizer restored by the caller."""
        self.setting_up.load_state_dict(state["settings"])
        self.learner.updates.load_state_dict(state["updates"])
        self.position = Position(**state["position"])
        self.prepared = state["prepared"]
        self.evaluator.load(self.position)
        self.steering.events = [Event(**event) for event in state["events"]]
        self.ledger.load_state_dict(state["ledger"])
        self.step.load_state_dict(state["step"])
        if self.policy is not None:
            self.policy.load_state_dict(state["policy"])
        self.feed.load_state_dict(state["feed"])
        self.costs.load_state_dict(state["costs"])
        for name, observer in _stateful(self.observers):
            if name in state["observers"]:
                observer.load_state_dict(state["observers"][name])
        for observer in self.observers:
            if hasattr(observer, "records"):
                self.history.restore_steps(observer.records())

    def restart(self) -> None:
        """Begin anew where an earlier attempt was killed before its first checkpoint."""
        for observer in self.observers:
            if hasattr(observer, "records"):
                observer.load_state_dict({"lines": 0})  # type: ignore[attr-defined]


def _stateful(observers: Iterable[Observer]) -> Iterator[tuple[str, Any]]:
    """The observers that have a state, each with a name that it has in every process."""
    seen: Counter[str] = Counter()
    for observer in observers:
        if hasattr(observer, "load_state_dict"):
            kind = type(observer).__name__
            seen[kind] += 1
            yield f"{kind} {seen[kind]}", observer


def _optimizer(learner: Learner) -> dict[str, Any]:
    """Class and settings of the optimizer, its learning rates as they were given."""
    groups = []
    for group, lr in zip(learner.optimizer.param_groups, learner.base_lr, strict=True):
        settings = {name: value for name, value in group.items() if name not in ("params", "lr")}
        groups.append({"lr": lr, "parameters": len(group["params"]), **configuration(settings)})
    return {"class": type(learner.optimizer).__name__, "groups": groups}


def _structure(model: nn.Module) -> str:
    """A hash of the model's modules, their settings and the shapes of its weights."""
    shapes = [(name, list(tensor.shape)) for name, tensor in model.state_dict().items()]
    return hashlib.sha256(repr((str(model), shapes)).encode()).hexdigest()[:16]


def _data(source: BatchSource) -> dict[str, Any]:
    """Size and content of the training data, and how they are loaded."""
    found: dict[str, Any] = {"rows": source.num_samples}
    for name in ("batch_size", "seed", "shuffle", "drop_last"):
        found[name] = getattr(source, name, None)
    data = getattr(source, "data", getattr(getattr(source, "loader", None), "dataset", None))
    labels = None if source.num_samples is None else class_labels(data, source.num_samples)
    if isinstance(labels, Tensor):
        found["labels"] = tensor_hash(labels)
    if isinstance(data, Images) and len(data):
        # every row would take seconds of a large set; these are spread over all of it
        found["images"] = tensor_hash(data.images[:: max(1, len(data) // 64)])
    tensors = getattr(data, "tensors", ())
    if tensors:
        found["tensors"] = [tensor_hash(tensor[:: max(1, len(tensor) // 64)]) for tensor in tensors]
    return found
