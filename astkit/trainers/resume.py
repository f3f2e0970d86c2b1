"""Saves and restores the state of a trainer; checks that a resumed run has the same settings."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from inspect import isroutine
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from astkit import distributed
from astkit.datasets import BatchSource, Images
from astkit.gating.data_facts import class_labels
from astkit.identity import configuration, repeated_hash, tensor_hash
from astkit.trainers.learner import Learner
from astkit.trainers.metrics_file import MetricsFile
from astkit.trainers.parts import Parts
from astkit.trainers.state import Event, Observer, Position

HASHED = 256 << 20
"""Maximum bytes of training data to hash; larger data are subsampled evenly."""

_UNEQUAL = (
    "and process 0 do not both have checkpoints: pass the folder in all processes",
    "does not resume the same checkpoint as process 0: give all processes one shared folder",
    "has other settings than process 0: pass the same in all processes",
)


class Resumable(Parts):
    """Parts of a run whose state can be saved and loaded."""

    _saved: object = None  # position of the latest checkpoint

    def _open(self, resume: bool) -> None:
        """Continue from the newest checkpoint if requested.

        Raises ``ValueError`` for ``resume`` without a folder, for a run with other settings, and
        for processes that would not continue the same run.
        """
        self._identity = {} if self.checkpoints is None else self.described()
        found = None if self.checkpoints is None else self.checkpoints.open(resume)
        if distributed.world() > 1:
            self._agree("" if found is None else found[0].name)
        if self.checkpoints is None and resume:
            raise ValueError("resume is True, but checkpoints is not set: pass the folder")
        if found is not None:
            self._load(*found)
        elif resume:  # killed before its first checkpoint, possibly after its first metrics
            for observer in self.observers:
                if isinstance(observer, MetricsFile):
                    observer.load_state_dict({"lines": 0})

    def _agree(self, name: str) -> None:
        """Raise ``ValueError`` in all processes if one would continue another run than process 0.

        ``name`` is that of the checkpoint to resume.
        """
        texts = (name, repr(self._identity))
        hashes = [int(hashlib.sha256(text.encode()).hexdigest()[:15], 16) for text in texts]
        rows = distributed.gather(torch.tensor([self.checkpoints is not None, *hashes]))
        first, *others = ([int(each) for each in part] for (part,) in rows)
        for rank, other in enumerate(others, start=1):
            for place, sentence in enumerate(_UNEQUAL):
                if other[place] != first[place]:
                    raise ValueError(f"process {rank} {sentence}")

    def _batch_ended(self, epoch_ended: bool) -> None:
        keeping, position = self.checkpoints, self.position
        if keeping is None:
            return
        within = position.phase == "train" and position.batch > 0 and keeping.due(position.step)
        if (epoch_ended or within) and (self.done or keeping.rested()):
            self._save()

    def _save(self) -> Path | None:
        """Save the current state, unless it is saved already; returns the folder."""
        keeping = self.checkpoints
        if keeping is not None and self._place != self._saved:
            self.visits.exchange()
            self.ledger.pool()
            after = [each.sync() for each in self.observers if hasattr(each, "sync")]
            state = {
                "identity": self._identity,
                "model": distributed.whole(self.model.state_dict()),
                "optimizer": distributed.whole(self.optimizer.state_dict()),
                "loop": distributed.whole(self.state_dict()),
            }
            if distributed.rank() == 0:
                keeping.write(state, self.position.step, after)
            self._saved = self._place
        return None if keeping is None else keeping.folder

    @property
    def _place(self) -> tuple[object, ...]:
        position = self.position
        # epoch and phase distinguish the end of an epoch from its last batch
        return position.step, position.epoch, position.phase, position.validated

    def _save_alone(self) -> None:
        """Save the current state, except with other processes, which may not have stopped here."""
        if distributed.world() == 1:
            self._save()

    def _load(self, path: Path, state: dict[str, Any]) -> None:
        _compare(state["identity"], self._identity, path)
        try:
            own = self.model.state_dict()
            self.model.load_state_dict(
                {name: distributed.sharded_like(v, own[name]) for name, v in state["model"].items()}
            )
            _check_optimizer(self.optimizer.state_dict(), state["optimizer"])
            self.optimizer.load_state_dict(_sharded(state["optimizer"], self.optimizer))
            self.load_state_dict(state["loop"])
            self.schedule(self.progress)  # raises for a position with wrong types
        except Exception as e:
            what = f"{type(e).__name__}: {e}".splitlines()[-1].strip()
            raise ValueError(
                f"{path} does not hold the state of this run ({what}): remove it, or choose another"
                " folder"
            ) from e
        self._saved = self._place

    def described(self) -> dict[str, Any]:
        """Settings that must be equal in a resumed run, as plain values."""
        return {
            **self.config.to_dict(),
            "budget": configuration(self.budget),
            "step": configuration(getattr(self.step, "step", self.step)),
            "policy": configuration(self.policy),
            "optimizer": _optimizer(self.learner),
            "model": _structure(self.model),
            "criterion": configuration(self.learner.criterion),
            "data": data_identity(self.train),
        }

    def state_dict(self) -> dict[str, Any]:
        """State of the loop, without weights and optimizer.

        No RNG state is needed: random numbers depend on seed, step and purpose only.
        """
        self.evaluator.save(self.position)
        return {
            "events": [asdict(event) for event in self.steering.events],
            "position": asdict(self.position),
            "prepared": self.prepared,
            "settings": self.setting_up.state_dict(),
            "observers": {name: each.state_dict() for name, each in _stateful(self.observers)},
            **{name: part.state_dict() for name, part in self._stateful_parts()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``; the caller restores model and optimizer."""
        self.setting_up.load_state_dict(state["settings"])  # makes new updates
        self.position = Position(**state["position"])
        self.prepared = state["prepared"]
        self.evaluator.load(self.position)
        self.steering.events = [Event(**event) for event in state["events"]]
        for name, part in self._stateful_parts():
            part.load_state_dict(state[name])
        for name, observer in _stateful(self.observers):
            if name in state["observers"]:
                observer.load_state_dict(state["observers"][name])
        for observer in self.observers:
            if hasattr(observer, "records"):
                self.history.restore_steps(observer.records())

    def _stateful_parts(self) -> list[tuple[str, Any]]:
        names = ("ledger", "step", "policy", "feed", "switch", "costs")
        parts = {name: getattr(self, name) for name in names} | {"updates": self.learner.updates}
        if getattr(self.step, "gate", None) is self.policy:  # saved by the step
            del parts["policy"]
        return [(name, part) for name, part in parts.items() if part is not None]


def _stateful(observers: Iterable[Observer]) -> Iterator[tuple[str, Any]]:
    """The observers with state, by class and number."""
    seen: Counter[str] = Counter()
    for observer in observers:
        if hasattr(observer, "load_state_dict"):
            kind = type(observer).__name__
            seen[kind] += 1
            yield f"{kind} {seen[kind]}", observer


def _optimizer(learner: Learner) -> dict[str, Any]:
    """Class and settings of the optimizer, with initial learning rates."""
    groups = []
    for group, lr in zip(learner.optimizer.param_groups, learner.base_lr, strict=True):
        settings = {name: value for name, value in group.items() if name not in ("params", "lr")}
        groups.append({"lr": lr, "parameters": len(group["params"]), **configuration(settings)})
    return {"class": type(learner.optimizer).__name__, "groups": groups}


def _structure(model: nn.Module) -> str:
    """Hash of the model's modules, settings, functions, forward passes and weight shapes."""
    passes = [configuration(getattr(type(module), "forward", None)) for module in model.modules()]
    shapes = [(name, list(tensor.shape)) for name, tensor in model.state_dict().items()]
    functions = [
        (place, name, configuration(value))
        for place, module in model.named_modules()
        for name, value in vars(module).items()
        if callable(value) and isroutine(value)  # such as activation functions; callable is fast
    ]
    return hashlib.sha256(repr((str(model), shapes, functions, passes)).encode()).hexdigest()[:16]


def data_identity(source: BatchSource) -> dict[str, Any]:
    """Size, content hashes and loading settings of data.

    With a user's data set or ``collate_fn``, also of three rows, if they can be read again equally.
    """
    names, rows = ("batch_size", "seed", "shuffle", "drop_last"), source.num_samples
    found: dict[str, Any] = {"rows": rows, **{name: getattr(source, name, None) for name in names}}
    found |= getattr(source, "transforms", {})
    loader: Any = getattr(source, "loader", source)
    items: Any = getattr(loader, "data", getattr(loader, "dataset", None))
    data = getattr(items, "indexed_data", items)
    labels = None if rows is None else class_labels(data, rows)
    if isinstance(labels, Tensor):
        found["labels"] = tensor_hash(labels)
    if isinstance(data, Images) and len(data):
        found["images"] = _sample_hash(data.images)
    if tensors := getattr(data, "tensors", ()):
        found["tensors"] = [_sample_hash(tensor) for tensor in tensors]
    collate = getattr(loader, "collate_fn", None) or default_collate
    read = getattr(type(data), "__getitem__", None)
    known = read in (Images.__getitem__, TensorDataset.__getitem__) and collate is default_collate
    if rows and not known:
        batch = repeated_hash(lambda: collate([items[row] for row in (0, rows // 2, rows - 1)]))
        found |= {"batch": batch} if batch else {}
    return found


def _sample_hash(rows: Tensor) -> str:
    return tensor_hash(rows[:: 1 + rows.nbytes // HASHED])


def _sharded(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's ``state`` with tensors sharded as their parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    like = distributed.sharded_like
    entries = {
        number: {name: like(value, parameters[number]) for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    return {**state, "state": entries}


def _check_optimizer(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for settings of groups that would fail at the next training step.

    Entries are not compared: they may differ between parameters, as those of Adafactor do.
    """

    def kinds(value: Any) -> object:
        if isinstance(value, Mapping):
            return {name: kinds(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value), [kinds(part) for part in value]
        return float if type(value) is int else type(value)

    if kinds(now["param_groups"]) != kinds(then["param_groups"]):
        raise ValueError("the optimizer's groups have other settings")


def _compare(then: dict[str, Any], now: Mapping[str, Any], path: Path) -> None:
    before, after = _flat(then), _flat(now)
    if "data.labels" not in before:  # earlier versions found them in fewer data sets
        after.pop("data.labels", None)
    other = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    if other:
        changes = ", ".join(
            f"{name:.80} was {before.get(name)!r:.80} and is {after.get(name)!r:.80}"
            for name in other[:8]
        )
        raise ValueError(
            f"{path} was made with other settings ({changes}): resume with those, or choose another"
            " folder for a new run"
        )


def _flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names."""
    if isinstance(settings, list | tuple):
        settings = dict(enumerate(settings))
    if not isinstance(settings, Mapping):
        return {name: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{name}.{key}" if name else str(key))
    return flat
