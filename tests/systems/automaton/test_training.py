"""The trainer of an automaton: a plain loop's updates, ledger, checkpoints, gate, learning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astkit import distributed
from astkit.gating import Gate, Policy
from astkit.systems.automaton import tasks
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.gradients import first_channel_loss, gradients
from astkit.systems.automaton.training import (
    EVALUATION,
    AutomatonTrainer,
    apply_gradients,
    evaluate,
)
from astkit.trainers import Budget, Checkpoints, TrainConfig

TINY = LogicCAConfig(2, 2, (8, 4, 2), (6, 4, 2), boundary="zero", fire_rate=0.6)
ASYNC = tasks.AutomatonTask("tiny", "checkerboard", TINY, 5, 6, 4, 3, 12, every=4, held_out=5)
HARDENED = ASYNC.scaled(hard_share=0.5)
LIFE = tasks.game_of_life().scaled(
    config=LogicCAConfig(1, 4, (8, 4, 2, 1), (8, 8, 4, 2, 1)), iterations=25
)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def cpu(task: tasks.AutomatonTask, **options: Any) -> AutomatonTrainer:
    return AutomatonTrainer(task, device="cpu", **options)


def adamw(model: LogicCA) -> torch.optim.AdamW:
    """The paper's, without weight decay."""
    return torch.optim.AdamW(model.parameters(), lr=0.05, betas=(0.9, 0.99), weight_decay=0.0)


def test_gradients_are_clipped_element_by_element() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    model.weight.data.zero_()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    apply_gradients(model, sgd, {"weight": torch.tensor([[50.0, 200.0, -300.0]])})
    assert model.weight.tolist() == [[-50.0, -100.0, 100.0]]
    assert model.weight.grad is None
    with pytest.raises(FloatingPointError, match="the gradient became nan"):
        apply_gradients(model, sgd, {"weight": torch.full((1, 3), torch.nan)})
    assert model.weight.tolist() == [[-50.0, -100.0, 100.0]]


@pytest.mark.parametrize("task", [HARDENED, LIFE], ids=["hardened", "life"])
def test_the_trainer_does_what_a_plain_loop_does(task: tasks.AutomatonTask) -> None:
    trainer = cpu(task, seed=3, iterations=6)
    trainer.run()
    model = LogicCA(replace(task.config, seed=3))
    optimizer, done = adamw(model), 0
    for epoch in range(2):
        for batch in task.source(3).batches(epoch):
            if done < 6:
                masks, hard = task.masks(batch.index, 3, done), task.hard(3, done)
                _, summed = gradients(model, batch.x, batch.y, task.steps, masks, hard=hard)
                apply_gradients(model, optimizer, summed)
                done += 1
    torch.testing.assert_close(weights(trainer.model), weights(model), rtol=0, atol=1e-6)
    assert trainer.step == 6
    assert [step["trained"] for step in trainer.history.steps] == [task.batch_size] * 6


def test_a_pass_is_evaluated_hard_beside_soft() -> None:
    trainer = cpu(ASYNC)
    history = trainer.run()
    assert [epoch["step"] for epoch in history.epochs] == [4, 8, 12]
    last, model = history.epochs[-1], trainer.model
    assert isinstance(model, LogicCA)
    found = evaluate(model, ASYNC)
    assert {name: last[f"val_{name}"] for name in found} == found
    batch = ASYNC.evaluation()
    masks = ASYNC.masks(batch.index, 0, EVALUATION)
    soft, hard = (model(batch.x, 4, masks, way) for way in (False, True))
    assert found["loss"] == pytest.approx(first_channel_loss(soft, batch.y).mean().item())
    assert found["hard_loss"] == pytest.approx(first_channel_loss(hard, batch.y).mean().item())
    assert found["wrong"] == int((hard[:, 0] != batch.y).sum())
    assert found["accuracy"] == pytest.approx(1 - found["wrong"] / (5 * 5 * 6))
    assert trainer.evaluate(ASYNC.source(7)).keys() == found.keys()


def test_the_ledger_counts_gates_of_the_model() -> None:
    larger = replace(LIFE.config, kernels=8)
    for model, config in ((None, LIFE.config), (LogicCA(larger), larger)):
        trainer = cpu(LIFE, iterations=5, model=model)
        trainer.run()
        gates, ledger = config.gates_per_cell * 9, trainer.ledger
        assert ledger.samples.trained == 100
        assert ledger.flops.forward == 100 * 6 * gates
        assert ledger.flops.backward == 100 * 16 * gates
        assert ledger.samples.evaluated == 2 * 512
        assert {"gradients", "optimizer"} <= set(ledger.phases)
        assert trainer.optimisation.steps == 5


def test_a_resumed_run_is_one_that_was_never_left(tmp_path: Path) -> None:
    def gate() -> Gate:
        return Gate(0.5, criterion=first_channel_loss)

    whole = cpu(HARDENED, policy=gate())
    whole.run()
    for stop in (5, 9, None):
        checkpoints = Checkpoints(tmp_path, every=1)
        part = cpu(HARDENED, policy=gate(), checkpoints=checkpoints, resume=True)
        steps = part.steps()
        for record in steps:
            if record.step == stop:
                steps.close()
                break
    assert torch.equal(weights(part.model), weights(whole.model))
    assert part.ledger.samples == whole.ledger.samples
    assert [e["val_loss"] for e in part.history.epochs] == [
        e["val_loss"] for e in whole.history.epochs
    ]


@pytest.mark.parametrize("task", [HARDENED, LIFE], ids=["hardened", "life"])
def test_the_gate_trains_on_the_rows_of_highest_loss(task: tasks.AutomatonTask) -> None:
    gate = Gate(0.5, controller="top_k", criterion=first_channel_loss)
    trainer = cpu(task, policy=gate, iterations=1)
    batch = next(iter(task.source(0).batches(0)))
    model = LogicCA(replace(task.config, seed=0))
    masks, hard = task.masks(batch.index, 0, 0), task.hard(0, 0)
    scores = first_channel_loss(model(batch.x, task.steps, masks, hard), batch.y).detach()
    result = trainer.train_batch(batch, None)
    assert result.seen is not None
    torch.testing.assert_close(result.seen.losses, scores)
    rows = result.rows.sort().values
    assert 0 < len(rows) < len(scores)
    left = [i for i in range(len(scores)) if i not in rows.tolist()]
    assert scores[rows].min() >= scores[left].max()
    few, fires = batch.take(rows), None if masks is None else masks[:, rows]
    _, summed = gradients(model, few.x, few.y, task.steps, fires, hard=hard)
    apply_gradients(model, adamw(model), summed)
    torch.testing.assert_close(weights(trainer.model), weights(model), rtol=0, atol=1e-6)


class Looks(Policy):
    """Scores each batch by the model, and by a second one."""

    def __init__(self) -> None:
        self.helper = LogicCA(replace(LIFE.config, seed=7))

    def choose(self, batch: Any) -> None:
        batch.score()
        if batch.inputs.shape[1] == 1:
            batch.forward(self.helper)


def test_a_policy_scores_rows_with_their_masks_and_a_second_model_is_counted_by_gates() -> None:
    cpu(HARDENED, policy=Looks(), iterations=2).run()
    trainer = cpu(LIFE, policy=Looks(), iterations=2)
    trainer.run()
    assert trainer.ledger.samples.scored == 2 * 20
    assert trainer.ledger.flops.helper == 2 * 20 * 6 * LIFE.config.gates_per_cell * 9


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, told in (
        ({"iterations": 5, "budget": Budget(epochs=1)}, "iterations is 5, but a budget is given"),
        ({"iterations": 0}, "iterations is 0: give a whole number of 1 or more"),
        ({"validation": LIFE.evaluation()}, "AutomatonTrainer determines validation itself"),
        ({"metrics": first_channel_loss}, "AutomatonTrainer determines metrics itself"),
        ({"config": TrainConfig()}, "AutomatonTrainer determines config itself"),
    ):
        with pytest.raises((ValueError, TypeError), match=told):
            cpu(LIFE, **options)
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(ValueError, match="2 processes train an automaton, but its step does not"):
        cpu(LIFE)


@pytest.mark.parametrize("task", [ASYNC, tasks.game_of_life()], ids=["checkerboard", "life"])
def test_a_picture_has_the_cells_of_the_example_wrong_ones_red(task: tasks.AutomatonTask) -> None:
    trainer = cpu(task, seed=1)
    start, steps, true = task.example()
    masks = task.masks(torch.zeros(1, dtype=torch.int64), 0, EVALUATION)
    with torch.no_grad():
        wrong = trainer.automaton(start, steps, masks, hard=True)[0, 0].round() != true
    picture = trainer.picture()
    assert picture.shape == (*true.shape, 3)
    assert picture.dtype == np.uint8
    red = torch.from_numpy(picture[..., 0] != picture[..., 1])  # others are grey
    assert torch.equal(red, wrong)
    assert red.any()
    assert np.array_equal(picture, cpu(task, seed=1).picture())
