"""What policies are told, and that one with a memory knows which samples it is told of."""

from __future__ import annotations

import pytest
import torch
from astkit.trainers.policy_feedback import TrainingData
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit import rng
from astkit.datasets import Loader, as_loader, indexed
from astkit.gating import Gate, Policy, RandomSubset, Selection
from astkit.trainers import DenseStep, GatedStep, SampleStep, Trainer

ROWS, SIZE, PASSES = 48, 8, 3
with rng.isolated("cpu", 0):
    X, Y = torch.randn(ROWS, 3), torch.randint(0, 4, (ROWS,))
X[:, 0] = torch.arange(ROWS) / ROWS  # says which row it is, whatever any index says
DATA = TensorDataset(X, Y)


def model():
    with rng.isolated("cpu", 1):
        return nn.Linear(3, 4)


class Memory(Policy):
    """Remembers the last loss of each sample; chooses the ``share`` with the highest."""

    needs_index = needs_outputs = True
    state = ("last",)

    def __init__(self, share=1.0):
        self.share, self.last, self.told = share, torch.zeros(ROWS), []

    def choose(self, batch):
        if self.share == 1.0:
            return None
        return Selection(batch.losses.topk(int(self.share * batch.rows)).indices)

    def observe(self, visit):
        self.last[visit.index] = visit.losses
        self.told.append(visit)


def shuffled(data):
    return DataLoader(data, SIZE, shuffle=True)


def test_a_loader_without_indices_gives_none_in_every_shuffled_pass():
    source = as_loader(shuffled(DATA))
    for epoch in range(PASSES):
        assert [batch.index for batch in source.batches(epoch)] == [None] * 6
    for make in (lambda: Memory(), lambda: Memory(0.5), lambda: Gate(0.3, "el2n")):
        with pytest.raises(ValueError, match=r"keeps per-sample state.*indexed\(data\)"):
            Trainer(model(), shuffled(DATA), epochs=PASSES, policy=make(), device="cpu").run()
    step = SampleStep(Gate(0.3, "el2n"))
    with pytest.raises(ValueError, match=r"keeps per-sample state.*indexed\(data\)"):
        Trainer(model(), shuffled(DATA), epochs=PASSES, step=step, device="cpu").run()


@pytest.mark.parametrize("make", [lambda: shuffled(indexed(DATA)), lambda: Loader(DATA, SIZE)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_memory_is_told_of_the_right_samples_in_every_shuffled_pass(make, share):
    policy, data = Memory(share), make()
    trainer = Trainer(model(), data, epochs=PASSES, policy=policy, device="cpu")
    trainer.run()
    seen = torch.cat([visit.index for visit in policy.told])
    assert torch.equal(seen.bincount(), torch.full((ROWS,), PASSES))  # scored or trained, once
    orders = seen.view(PASSES, ROWS).tolist()
    assert orders[0] != orders[1] != orders[2]
    trained = sum(len(visit.index) for visit in policy.told if visit.trained)
    assert trained == trainer.ledger.samples.trained == PASSES * ROWS * share


def test_visits_hold_what_the_model_said_before_the_step():
    """Held against plain torch, batch by batch."""
    policy = Memory(0.5)
    trainer = Trainer(model(), Loader(DATA, SIZE), epochs=1, policy=policy, device="cpu")
    steps = trainer.steps()
    for _ in range(6):
        with torch.no_grad():
            logits = trainer.model(X)
        next(steps)
        trained, scored = policy.told[-2:]
        assert (trained.trained, scored.trained) == (True, False)
        for visit in (trained, scored):
            of = logits[visit.index].log_softmax(1)
            losses = -of.gather(1, Y[visit.index][:, None])[:, 0]
            torch.testing.assert_close(visit.losses, losses)
            assert torch.equal(visit.correct, of.argmax(1) == Y[visit.index])
            torch.testing.assert_close(visit.confidence, of.exp().amax(1))
        assert float(trained.losses.min()) >= float(scored.losses.max())


@pytest.mark.parametrize("step", ["dense", "gated", "per_batch", "per_sample"])
def test_a_planning_policy_hears_of_the_rows_that_were_trained_on(step):
    class Telltale(RandomSubset):
        def observe(self, visit):
            told.append((visit.index.tolist(), visit.losses.tolist()))

    class Spy:
        def __call__(self, learner, batch, weight, ledger):
            result = inner(learner, batch, weight, ledger)
            rows = (batch.x[result.rows, 0] * ROWS).round().long().tolist()
            seen.append((rows, result.losses.tolist()))
            return result

        def state_dict(self):
            return {}

    told, seen, gate = [], [], Gate(0.3)
    inner = {"dense": DenseStep, "gated": lambda: GatedStep(gate)}.get(
        step, lambda: SampleStep(gate, step)
    )()
    Trainer(model(), Loader(DATA, SIZE), epochs=2, step=Spy(), policy=Telltale(0.6)).run()
    assert told == seen
    assert len({row for rows, _ in seen for row in rows}) > 8


def test_training_data_for_a_helper_come_in_another_order_each_time_and_are_paid_for():
    class Helped(Policy):
        def prepare(self, make_model, data):
            self.models = [make_model(), make_model()]
            optimizer = torch.optim.SGD(self.models[0].parameters(), lr=0.1)
            assert isinstance(data, TrainingData)
            assert data.samples == ROWS
            self.orders = []
            for _ in range(2):
                self.orders.append([])
                for batch in data:
                    self.orders[-1] += batch.index.tolist()
                    batch.train(self.models[0], optimizer)
            self.losses = torch.cat([batch.losses_of(self.models[0]) for batch in data])

    policy, start = Helped(), model()
    trainer = Trainer(model(), Loader(DATA, SIZE), epochs=1, policy=policy, device="cpu")
    trainer.run()
    assert sorted(policy.orders[0]) == sorted(policy.orders[1]) == list(range(ROWS))
    assert policy.orders[0] != policy.orders[1]
    assert torch.equal(policy.models[1].weight, start.weight)  # as the run began
    assert not torch.equal(policy.models[0].weight, start.weight)
    one = trainer._cost(next(trainer.train.batches(0)))
    assert trainer.ledger.flops.helper == ROWS * (2 * one.training + one.scoring)
    assert trainer.ledger.flops.total == pytest.approx(ROWS * (3 * one.training + one.scoring))
    assert trainer.ledger.samples.trained == ROWS
