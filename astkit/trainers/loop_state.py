"""The state of the loop: all of a trainer's but weights and optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from astkit.trainers.history import Observer
from astkit.trainers.position import Position
from astkit.trainers.steering import Event

if TYPE_CHECKING:
    from astkit.trainers.trainer import Trainer


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Plain numbers, save for gradients that wait, rows that were selected, scores that remember.

    Random numbers need no state of their own: each is drawn by seed, step and purpose.
    """
    trainer.evaluator.save(trainer.position)
    return {
        "events": [asdict(event) for event in trainer.steering.events],
        "position": asdict(trainer.position),
        "ledger": trainer.ledger.state_dict(),
        "step": trainer.step.state_dict(),
        "sampler": None if trainer.sampler is None else trainer.sampler.state_dict(),
        "feed": trainer.feed.state_dict(),
        "costs": trainer.costs.state_dict(),
        "settings": trainer.setting_up.state_dict(),
        "updates": trainer.learner.updates.state_dict(),
        "observers": {name: each.state_dict() for name, each in _stateful(trainer.observers)},
    }


def restore(trainer: Trainer, state: dict[str, Any]) -> None:
    """Continue from ``state``, with the model and the optimizer restored before."""
    trainer.setting_up.load_state_dict(state["settings"])
    trainer.learner.updates.load_state_dict(state["updates"])
    trainer.position = Position(**state["position"])
    trainer.evaluator.load(trainer.position)
    trainer.steering.events = [Event(**event) for event in state["events"]]
    trainer.ledger.load_state_dict(state["ledger"])
    trainer.step.load_state_dict(state["step"])
    if trainer.sampler is not None:
        trainer.sampler.load_state_dict(state["sampler"])
    trainer.feed.load_state_dict(state["feed"])
    trainer.costs.load_state_dict(state["costs"])
    for name, observer in _stateful(trainer.observers):
        if name in state["observers"]:
            observer.load_state_dict(state["observers"][name])


def _stateful(observers: Iterable[Observer]) -> Iterator[tuple[str, Any]]:
    """The observers that have a state, each with a name that it has in every process."""
    seen: Counter[str] = Counter()
    for observer in observers:
        if hasattr(observer, "load_state_dict"):
            kind = type(observer).__name__
            seen[kind] += 1
            yield f"{kind} {seen[kind]}", observer
