"""Steering: changes are taken between batches, kept as events, and can be made again."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from astkit.gating import Gate, OriginPI, TopK
from astkit.trainers import Budget, DenseStep, GatedStep, Trainer
from astkit.trainers.steering import Event, Steering


def build(cnn, double_loader, gate=None, **options):
    step = GatedStep(gate or Gate(0.2))
    return Trainer(cnn(), double_loader(), budget=Budget(epochs=4), step=step, **options)


def finish(trainer, changes=()):
    """Run to the end, making each (step, name, value) of ``changes`` after that many batches."""
    wanted = list(changes)
    for record in trainer.steps():
        while wanted and wanted[0][0] == record.step:
            trainer.steer(*wanted.pop(0)[1:])
    return trainer


CHANGES = [(3, "target_rate", 0.5), (7, "gain", 2.0), (11, "controller", "top_k")]


def test_a_change_takes_effect_before_the_next_batch(cnn, double_loader):
    trainer = finish(build(cnn, double_loader), CHANGES)
    rates = [step["target_rate"] for step in trainer.history.steps]
    assert rates == [0.2] * 3 + [0.5] * 17
    assert isinstance(trainer.step.gate.controller, TopK)
    assert [step["rate"] for step in trainer.history.steps][11:] == [0.5] * 9
    assert [tuple(vars(event).values()) for event in trainer.steering.events] == CHANGES
    told = [(e["step"], e["name"], e["value"]) for e in trainer.history.events]
    assert told == CHANGES


def test_a_steered_run_can_be_replayed(cnn, double_loader, difference):
    steered = finish(build(cnn, double_loader), CHANGES)
    again = finish(
        build(cnn, double_loader, replay=json.loads(json.dumps(steered.state_dict()))["events"])
    )
    plain = finish(build(cnn, double_loader))
    assert difference(steered.model, again.model) == 0
    assert again.steering.events == steered.steering.events
    assert difference(steered.model, plain.model) > 1e-4


@pytest.mark.parametrize("cut", [2, 3, 5, 11, 12, 15])
def test_a_steered_run_resumes_with_its_events(cnn, double_loader, difference, cut):
    whole = finish(build(cnn, double_loader), CHANGES)
    first = build(cnn, double_loader, replay=whole.steering.events)
    for record in first.steps():
        if record.step == cut:
            break
    state = json.loads(json.dumps(first.state_dict()))
    second = build(cnn, double_loader, replay=whole.steering.events)
    second.model.load_state_dict(first.model.state_dict())
    second.learner.optimizer.load_state_dict(first.learner.optimizer.state_dict())
    second.load_state_dict(state)
    finish(second)
    assert difference(second.model, whole.model) == 0
    assert second.steering.events == whole.steering.events


def test_the_last_of_several_values_counts(cnn, double_loader):
    trainer = build(cnn, double_loader)
    for rate in (0.3, 0.4, 0.6):
        trainer.steer("target_rate", rate)
    finish(trainer)
    assert trainer.steering.events == [Event(0, "target_rate", 0.6)]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("target_rate", 1.5, "target_rate is 1.5"),
        ("momentum", 1.0, "no setting 'momentum' to steer: choose one of target_rate, controller"),
        ("controller", "pid", "unknown controller 'pid'"),
    ],
)
def test_a_slip_of_the_hand_does_not_end_the_run(cnn, double_loader, name, value, sentence):
    trainer = build(cnn, double_loader)
    trainer.steer(name, value)
    with pytest.warns(UserWarning, match=sentence):
        finish(trainer)
    assert trainer.done
    assert trainer.steering.events == []


def test_a_dense_step_cannot_be_steered(cnn, double_loader):
    trainer = Trainer(cnn(), double_loader(), budget=Budget(epochs=1), step=DenseStep())
    with pytest.raises(ValueError, match="DenseStep has no setting 'target_rate' to steer"):
        trainer.steer("target_rate", 0.3)


def test_gains_of_the_controller_can_be_turned(cnn, double_loader):
    gate = Gate(controller=OriginPI(0.2))
    trainer = build(cnn, double_loader, gate)
    trainer.steer("kp", 0.25)
    finish(trainer)
    assert gate.controller.kp == 0.25


def test_changes_come_from_any_thread():
    steering = Steering()
    threads = [threading.Thread(target=steering.put, args=(f"gain{i}", i)) for i in range(50)]
    for thread in threads:
        thread.start()
    taken = {}
    while len(taken) < 50:
        taken |= dict(steering.due(0))
    for thread in threads:
        thread.join()
    assert taken == {f"gain{i}": i for i in range(50)}
    assert steering.due(1) == []


def test_an_unsteered_run_is_as_before(cnn, double_loader, difference):
    assert finish(build(cnn, double_loader)).history.events == []
    assert torch.get_default_dtype() == torch.float32
