"""Settings changed during a run take effect before the next batch, and are replayed."""

import json
from pathlib import Path
from typing import Any

import pytest

from astkit.gating import Gate, OriginPI, TopK
from astkit.trainers import Checkpoints, Event, Trainer
from tests import build
from tests.build import refused
from tests.trainers.states import hand_over, leave_after


def gated(**options: Any) -> Trainer:
    """18 steps."""
    return build.gated(**{"rate": 0.2, "epochs": 1.5, **options})


CHANGES = [(3, "rate", 0.5), (7, "gain", 2.0), (11, "controller", "top_k")]


def steered(run: Trainer, changes: Any = CHANGES) -> Trainer:
    """Run to the end, making each (step, name, value) of ``changes`` after that many batches."""
    wanted = list(changes)
    for record in run.steps():
        while wanted and wanted[0][0] == record.step:
            run.steer(*wanted.pop(0)[1:])
    return run


def test_a_change_takes_effect_before_the_next_batch_and_can_be_replayed(difference: Any) -> None:
    run = steered(gated())
    rates = [step["rate"] for step in run.history.steps]
    assert rates == [0.2] * 3 + [0.5] * 15
    assert isinstance(run.policy, Gate)
    assert isinstance(run.policy.controller, TopK)
    assert [step["measured_rate"] for step in run.history.steps][11:] == [0.5] * 7
    assert [tuple(vars(event).values()) for event in run.steering.events] == CHANGES
    assert [(e["step"], e["name"], e["value"]) for e in run.history.events] == CHANGES

    events = json.loads(json.dumps(run.history.events))
    again, plain = steered(gated(replay=events), []), steered(gated(), [])
    assert difference(run.model, again.model) == 0
    assert again.steering.events == run.steering.events
    assert plain.history.events == []
    assert difference(run.model, plain.model) > 1e-4
    for cut in (3, 12):  # a resumed run makes the changes that are left
        first = leave_after(gated(replay=events), cut)
        second = steered(hand_over(first, gated(replay=events)), [])
        assert difference(second.model, run.model) == 0
        assert second.steering.events == run.steering.events


def test_the_last_of_several_values_counts_and_gains_can_be_turned() -> None:
    run = build.trainer(policy=Gate(controller=OriginPI(0.2)))
    for rate in (0.3, 0.4, 0.6):
        run.steer("rate", rate)
    run.steer("kp", 0.25)
    run.run()
    assert run.steering.events == [Event(0, "rate", 0.6), Event(0, "kp", 0.25)]


def test_a_change_that_waits_is_saved_where_nothing_else_has_changed(tmp_path: Path) -> None:
    options: Any = {"checkpoints": Checkpoints(tmp_path, every=1)}
    first = gated(**options)
    steps = first.steps()
    next(steps)
    first.steer("rate", 0.5)
    steps.close()
    second = gated(**options, resume=True)
    second.run()
    assert second.steering.events == [Event(1, "rate", 0.5)]


def test_what_cannot_be_steered_or_replayed_is_named() -> None:
    event = Event(1, "rate", 0.5)
    refused(
        (lambda: build.trainer(replay=[event]), "Policy has no setting 'rate' to steer"),
        (lambda: build.trainer().steer("rate", 0.3), "has no setting 'rate' to steer: give the"),
    )
    with pytest.warns(UserWarning, match=r"the run ended before Event\(step=500, "):
        gated(replay=[event, Event(500, "rate", 0.9)]).run()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("rate", 1.5, "rate is 1.5"),
        ("rate", None, "the setting was not changed"),
        ("momentum", 1.0, "no setting 'momentum' to steer: choose one of rate, controller"),
    ],
)
def test_a_slip_of_the_hand_does_not_end_the_run(name: str, value: Any, sentence: str) -> None:
    run = gated()
    run.steer(name, value)
    with pytest.warns(UserWarning, match=sentence):
        run.run()
    assert run.done
    assert run.steering.events == []
