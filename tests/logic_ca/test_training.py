"""Training with the kit's own loop: the update by hand, ledger, checkpoints, gate, and that it
learns.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit import distributed
from astkit.gating import Gate, Policy, RandomSubset, Selection
from astkit.gating.proxy_topk import ProxyTopK
from astkit.gating.rho import Rho
from astkit.logic_ca import tasks, training
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.evaluation import EVALUATION, evaluate, gate_flops
from astkit.logic_ca.gradients import first_channel_loss, gradients
from astkit.logic_ca.training import apply_gradients, logic_trainer
from astkit.trainers import Budget, Checkpoints, TrainConfig, Trainer

TINY = LogicCAConfig(2, 2, (8, 4, 2), (6, 4, 2), boundary="zero", fire_rate=0.6)
ASYNC = tasks.Task("tiny", "checkerboard", TINY, 5, 6, 4, 3, 12, every=4, held_out=5)
HARDENED = ASYNC.scaled(hard_share=0.5)
PAPER = replace(training.SETTINGS, weight_decay=0.01)
LIFE = replace(
    tasks.game_of_life(), config=LogicCAConfig(1, 4, (8, 4, 2, 1), (8, 8, 4, 2, 1)), iterations=25
)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def cpu(task: tasks.Task, **options: Any) -> Trainer:
    return logic_trainer(task, device="cpu", **options)


def test_gradients_are_clipped_element_by_element() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    seen: list[list[float]] = []

    class Look(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(model.weight.grad.flatten().tolist())  # type: ignore[union-attr]

    found = {"weight": torch.tensor([[50.0, 200.0, -300.0]])}
    apply_gradients(model, Look(model.parameters()), found)
    assert seen == [[50.0, 100.0, -100.0]]
    assert model.weight.grad is None


def test_the_optimizer_is_the_papers() -> None:
    (group,) = training._optimizer(LogicCA(LIFE.config), PAPER).param_groups
    wanted = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False}
    assert {name: group[name] for name in wanted} == wanted


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = LogicCA(LIFE.config)
    before = [p.detach().clone() for p in model.parameters()]
    found = {name: torch.full_like(p, torch.nan) for name, p in model.named_parameters()}
    with pytest.raises(FloatingPointError, match="the gradient became nan"):
        apply_gradients(model, training._optimizer(model, PAPER), found)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("task", [HARDENED, LIFE], ids=["hardened", "life"])
def test_the_trainer_does_what_a_plain_loop_does(task: tasks.Task) -> None:
    trainer = cpu(task, seed=3, iterations=6)
    trainer.run()
    model = LogicCA(replace(task.config, seed=3))
    settings = replace(training.SETTINGS, weight_decay=task.weight_decay)
    optimizer = training._optimizer(model, settings)
    done = 0
    for epoch in range(2):
        for batch in task.source(3).batches(epoch):
            if done < 6:
                masks = task.masks(batch.index, 3, done)
                hard = task.hard(3, done)
                _, found = gradients(model, batch.x, batch.y, task.steps, masks, hard=hard)
                apply_gradients(model, optimizer, found)
                done += 1
    assert torch.equal(weights(trainer), torch.cat([p.flatten() for p in model.parameters()]))
    assert trainer.position.step == 6
    assert [step["trained"] for step in trainer.history.steps] == [task.batch_size] * 6


def test_every_way_ends_with_the_same_weights() -> None:
    ends = []
    for way in ({}, {"parallel": "vmap"}, {"parallel": "chunk", "chunk_size": 2}, {"recompute": 3}):
        trainer = cpu(HARDENED, iterations=5, model=LogicCA(TINY).double(), **way)
        trainer.run()
        ends.append(weights(trainer))
    assert max((end - ends[0]).abs().max() for end in ends) <= 1e-8


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
    assert model.training
    other = trainer.evaluate(ASYNC.source(7))
    assert set(other) == set(found)


def test_the_ledger_counts_gates() -> None:
    trainer = cpu(LIFE, iterations=5)
    trainer.run()
    gates = LIFE.config.gates_per_cell * 9
    ledger = trainer.ledger
    assert ledger.samples.trained == 100
    assert ledger.flops.forward == 100 * 6 * gates
    assert ledger.flops.backward == 100 * 16 * gates
    assert ledger.samples.evaluated == 2 * 512
    assert {"gradients", "optimizer"} <= set(ledger.phases)
    assert trainer.learner.updates.steps == 5


def test_the_gates_of_a_given_model_are_counted() -> None:
    larger = replace(LIFE.config, kernels=8)
    trainer = cpu(LIFE, iterations=1, model=LogicCA(larger))
    trainer.run()
    assert trainer.ledger.flops.forward == 20 * 6 * larger.gates_per_cell * 9


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
    assert torch.equal(weights(part), weights(whole))
    assert part.ledger.samples == whole.ledger.samples
    assert [e["val_loss"] for e in part.history.epochs] == [
        e["val_loss"] for e in whole.history.epochs
    ]


def test_the_gate_trains_on_the_rows_of_highest_loss() -> None:
    gate = Gate(0.25, controller="top_k", criterion=first_channel_loss)
    trainer = cpu(LIFE, policy=gate, iterations=1)
    batch = next(iter(LIFE.source(0).batches(0)))
    model = LogicCA(replace(LIFE.config, seed=0))
    scores = first_channel_loss(model(batch.x), batch.y).detach()
    result = trainer.step(trainer.learner, batch, None, trainer.ledger)
    assert len(result.rows) == 5
    assert result.scores is not None
    torch.testing.assert_close(result.scores, scores)
    left = [i for i in range(20) if i not in result.rows.tolist()]
    assert scores[result.rows].min() >= scores[left].max()
    optimizer = training._optimizer(model, training.SETTINGS)
    rows = batch.x[result.rows], batch.y[result.rows]
    apply_gradients(model, optimizer, gradients(model, *rows, 1)[1])
    assert torch.equal(weights(trainer), torch.cat([p.flatten() for p in model.parameters()]))
    trainer.steer("target_rate", 0.5)
    trainer.run()
    assert gate.target_rate == 0.5


def test_a_gate_that_chooses_nothing_changes_nothing() -> None:
    gate = Gate(0.04, controller="top_k", criterion=first_channel_loss, fallback=0)
    trainer = cpu(LIFE, policy=gate, iterations=1)  # which grants 0.8 of a row
    before = weights(trainer)
    trainer.run()
    assert torch.equal(weights(trainer), before)
    assert trainer.ledger.samples.trained == 0
    assert trainer.ledger.samples.scored == 20


def test_a_policy_chooses_before_loading() -> None:
    trainer = cpu(LIFE, policy=RandomSubset(0.25), budget=Budget(epochs=2))
    trainer.run()
    assert trainer.ledger.samples.trained == 2 * 120  # 128 rows, of which 8 fill no batch
    assert trainer.ledger.samples.unloaded == 2 * 384


@pytest.mark.parametrize("policy", [RandomSubset(0.5), Gate(0.5, criterion=first_channel_loss)])
def test_while_a_policy_is_switched_off_the_task_is_the_same(policy: Policy) -> None:
    off = replace(training.SETTINGS, switch_off=True)
    trainer, dense = cpu(HARDENED, policy=policy, settings=off), cpu(HARDENED)
    trainer.run()  # as short as the first probe, which is dense
    dense.run()
    assert not trainer.selecting
    assert torch.equal(weights(trainer), weights(dense))


class Looks(Policy):
    """Scores two rows of each batch by the model, and all by a helper."""

    def __init__(self) -> None:
        self.helper = LogicCA(replace(LIFE.config, seed=7))

    def choose(self, batch: Any) -> None:
        rows = torch.tensor([2, 0])
        torch.testing.assert_close(batch.take(rows).losses, batch.losses[rows])
        if batch.inputs.shape[1] == 1:
            batch.forward(self.helper)


def test_a_policy_scores_some_rows_with_the_masks_of_these_rows() -> None:
    cpu(HARDENED, policy=Looks(), iterations=2).run()


def test_what_a_policy_computes_beside_the_scores_is_booked_by_its_gates() -> None:
    trainer = cpu(LIFE, policy=Looks(), iterations=2)
    trainer.run()
    rows = 2 * (20 + 2)  # by the helper, and the part of each batch
    assert trainer.ledger.flops.helper == rows * gate_flops(LIFE.config, 3, 3, 1).forward


def test_rows_that_are_only_scored_are_rolled_out_as_those_trained_on() -> None:
    seen = []

    class Part(Policy):
        def plan(self, run: Any) -> Selection:
            return Selection(run.rows[:6], score_only=run.rows[6:9])

        def observe(self, visit: Any) -> None:
            seen.extend([] if visit.trained else [visit])

    trainer = cpu(HARDENED, policy=Part(), budget=Budget(epochs=1.5))
    steps = trainer.steps()
    next(steps), next(steps)
    model, index = trainer.model, torch.arange(6, 9)
    batch = HARDENED.source(0).grids(index)  # type: ignore[attr-defined]
    with torch.no_grad():
        states = model(batch.x, 4, HARDENED.masks(index, 0, 2), HARDENED.hard(0, 2))
    next(steps)
    (visit,) = seen
    assert visit.index.tolist() == [6, 7, 8]
    torch.testing.assert_close(visit.losses, first_channel_loss(states, batch.y))


@pytest.mark.full
def test_the_small_checkerboard_learns() -> None:
    """A smoke test on one seed, which decides how soon it is learnt."""
    trainer = cpu(tasks.checkerboard_small(), seed=3, iterations=400)
    epochs = trainer.run().epochs
    assert epochs[0]["val_loss"] > 14  # 16 for a guess of 1/2 in each of 64 cells
    assert epochs[-1]["val_loss"] < 4
    assert epochs[-1]["val_accuracy"] > 0.8


def test_wrong_arguments_are_refused() -> None:
    for settings, told in (
        (TrainConfig(), "settings.clip_norm is 1.0"),
        (replace(training.SETTINGS, precision="bf16"), "settings.precision is 'bf16'"),
        (replace(training.SETTINGS, accumulation_steps=2), "settings.accumulation_steps is 2"),
    ):
        with pytest.raises(ValueError, match=told):
            logic_trainer(LIFE, settings=settings)
    with pytest.raises(ValueError, match="iterations is 5, but a budget is given too"):
        logic_trainer(LIFE, iterations=5, budget=Budget(epochs=1))
    with pytest.raises(ValueError, match="iterations is 0: give 1 or more"):
        logic_trainer(LIFE, iterations=0)
    for policy in (Rho(), ProxyTopK()):
        with pytest.raises(ValueError, match=f"{type(policy).__name__}, which trains helper"):
            logic_trainer(LIFE, policy=policy)
    with pytest.raises(ValueError, match="LogicStep has no setting 'target_rate' to steer"):
        cpu(LIFE).steer("target_rate", 0.5)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(ValueError, match="2 processes train an automaton, but its step does not"):
        logic_trainer(LIFE)
