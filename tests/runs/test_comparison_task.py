"""What the arms of a comparison share: weights, batches, labels of policies, and their records."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from astkit import Budget, Gate, GatedStep, Loader, RandomSubset, indexed
from astkit.datasets import as_loader
from astkit.gating import DeviceGate
from astkit.runs import comparison_task, visits
from astkit.runs.comparison_task import Arm, Task
from astkit.trainers import Trainer
from astkit.trainers.resume import data_identity
from tests.runs import small_tasks
from tests.runs.small_tasks import ROWS, TEST, TRAIN, make_model


def test_arms_of_a_seed_share_weights_and_seeds_differ():
    task = Task(make_model, TRAIN, small_tasks.VALIDATION, small_tasks.TEST, None)
    first, same, other = (task.model(seed)[0].weight for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    own = Loader(TRAIN, 16, seed=5)
    for data in (TRAIN, own, DataLoader(TRAIN, 16, shuffle=True)):
        orders = [comparison_task.selectable(data, seed).order(0).tolist() for seed in (0, 0, 1)]
        assert orders[0] == orders[1] != orders[2]
    assert own.seed == 5


def test_a_torch_loader_keeps_its_batches():
    def collate(items):
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])

    pairs = indexed(TRAIN)
    for data, shuffled, custom in (
        (DataLoader(TRAIN, 5, shuffle=True, drop_last=True, collate_fn=collate), True, True),
        (DataLoader(pairs, 5), False, False),
        (DataLoader(pairs, 5, collate_fn=pairs.collate(collate)), False, True),
    ):
        loader = comparison_task.opened_loader(data)
        assert (loader.batch_size, loader.shuffle, loader.data) == (5, shuffled, TRAIN)
        assert loader.collate_fn is (collate if custom else None)
        assert loader.drop_last == data.drop_last
        assert next(loader.batches(0)).x.shape == (5, 4)


def own_pairs(items):
    return torch.tensor([i for i, _ in items]), default_collate([item for _, item in items])


def test_a_torch_loader_that_a_loader_cannot_stand_for_is_left_alone():
    pairs = indexed(TRAIN)
    some = RandomSampler(TRAIN, replacement=True, num_samples=50)
    for data in (
        DataLoader(TRAIN, 5, sampler=some),
        DataLoader(TRAIN, 5, sampler=RandomSampler(TRAIN, replacement=True)),
        DataLoader(TRAIN, 5, sampler=RandomSampler(TRAIN, num_samples=50)),
        DataLoader(TRAIN, 5, sampler=SequentialSampler(range(50))),
        DataLoader(TRAIN, 5, num_workers=1, worker_init_fn=print),
        DataLoader(pairs, 5, collate_fn=own_pairs),
        DataLoader(pairs, 5, collate_fn=partial(own_pairs)),
    ):
        assert comparison_task.opened_loader(data) is data
        with pytest.raises(ValueError, match="train is a DataLoader that loads all rows in its"):
            comparison_task.selectable(data, 0)
    task = Task(make_model, TRAIN, DataLoader(TRAIN, 5, sampler=some), None, None, device="cpu")
    assert sum(batch.rows for batch in task.held("validation").batches(0)) == 50
    kept = DataLoader(TRAIN, 5, worker_init_fn=print)  # which nobody calls without workers
    assert isinstance(comparison_task.opened_loader(kept), Loader)


def test_an_arm_has_its_own_seed_even_if_the_policy_names_one():
    named = {"name": "random", "rate": 0.5, "seed": 3}
    for policy in (named, RandomSubset(0.5, seed=3)):
        assert Arm("random(0.5)", policy, 7).fresh().seed == 7
    assert named["seed"] == 3
    assert Arm("dense", None, 7).fresh() is None


def test_arms_have_names_of_their_own():
    arms = [Arm("gate(0.25)", None, 0), Arm("gate 0.25", None, 0), Arm("gate(0.25)", None, 1)]
    assert len({arm.name for arm in arms}) == 3


def test_padding_rows_are_not_counted():
    for gate in (Gate(0.25), DeviceGate(0.25, "loss")):
        record = visits.Visits(GatedStep(gate), ROWS, lambda: 0.0)
        work = Trainer(
            make_model(), TRAIN, batch_size=16, step=record, epochs=1, config=small_tasks.CONFIG
        )
        work.run()
        assert int(record.trained.sum()) == work.ledger.samples.trained > 0


class Rows(torch.utils.data.Dataset):
    """A user's data set of scaled inputs; ``noise`` draws random numbers for each row."""

    def __init__(self, scale, noise=lambda: 0.0):
        self.scale, self.noise = scale, noise

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return self.scale * TRAIN[row][0] + self.noise(), TRAIN[row][1]


class Stream(torch.utils.data.IterableDataset):
    read = 0

    def __len__(self):
        return ROWS

    def __iter__(self):
        self.read += 1
        return iter(TRAIN)


def identity(data):
    return data_identity(as_loader(data))


def halved(items):
    x, y = default_collate(items)
    return x / 2, y


def test_edited_inputs_of_an_own_data_set_make_other_data():
    for wrap in (lambda data: data, indexed, lambda data: DataLoader(data, 5, num_workers=2)):
        assert identity(wrap(Rows(1.0))) == identity(wrap(Rows(1.0)))
        assert identity(wrap(Rows(1.0))) != identity(wrap(Rows(2.0)))
    for data in (Rows(1.0), TRAIN):
        assert identity(DataLoader(data, 5, collate_fn=halved)) != identity(DataLoader(data, 5))
    task = [Task(make_model, TRAIN, Rows(s), TEST, device="cpu", batch_size=5) for s in (1.0, 2.0)]
    one, other = (each.settings(Budget(epochs=1)) for each in task)
    assert [name for name in one if one[name] != other[name]] == ["validation"]


def generators():
    numpy = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist()


def test_random_rows_are_the_same_data_and_draw_from_no_global_generator():
    own = torch.Generator()
    for noise in (
        lambda: torch.rand(()),
        lambda: float(np.random.rand()),
        random.random,
        lambda: torch.rand((), generator=own),
    ):
        data = Rows(1.0, noise)
        before = generators()
        assert identity(data) == identity(data)
        assert generators() == before
    assert "batch" not in identity(data)


def test_streams_and_rows_that_cannot_be_read_have_an_identity_of_their_size():
    stream = Stream()
    for data in (DataLoader(stream, 5), Rows("a")):
        assert identity(data)["rows"] == ROWS
        assert "batch" not in identity(data)
    assert stream.read == 0


class Running(torch.nn.Module):
    """Cross-entropy that counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, outputs, targets):
        self.calls += 1
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_each_arm_has_its_own_criterion():
    given = Running()
    task = Task(make_model, *(TRAIN,) * 3, criterion=given, device="cpu", batch_size=ROWS)
    counts = []
    for _ in range(2):
        arm = task.trainer(None, 0, Budget(epochs=1))
        arm.run()
        counts.append(int(arm.learner.criterion.calls))
    assert counts[0] == counts[1] > int(given.calls) == 0


def test_each_arm_has_its_own_optimizer():
    data = (TRAIN, small_tasks.VALIDATION, small_tasks.TEST)

    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=0.3)

    task = Task(make_model, *data, None, make_optimizer=optimizer, device="cpu")
    first, second = (task.trainer(None, 0, Budget(epochs=1)) for _ in range(2))
    assert first.optimizer is not second.optimizer
    assert first.optimizer.param_groups[0]["params"][0] is first.model[0].weight
    assert (type(first.optimizer), first.learner.base_lr) == (torch.optim.SGD, [0.3])
    settings = task.settings(Budget(epochs=1))
    assert settings["optimizer"]["class"] == "SGD"
    assert settings != Task(make_model, *data, None).settings(Budget(epochs=1))
