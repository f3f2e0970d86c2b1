"""Policies in loops of one's own, before loading through torch's DataLoader."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from astkit import Gate, RandomSubset
from astkit.datasets import indexed
from astkit.gating import Policy, RunInfo, Scored, Selection, Visit
from astkit.gating.policies.infobatch import InfoBatch
from astkit.trainers import TrainConfig, Trainer
from tests import build
from tests.integrations.loops import make_model

N = 50
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
PAIRS = TensorDataset(X, Y)
criterion = nn.CrossEntropyLoss(reduction="none")


class Rounds(Policy):
    """All rows of each round, twice, with the number of the round as their weight; remembers."""

    needs_index = True
    state = ("told",)

    def __init__(self, rounds: int = 1) -> None:
        self.rounds, self.told = rounds, torch.zeros(N)

    def plan(self, run: RunInfo) -> Selection:
        rows = run.rows.repeat(2)
        number = run.epoch * self.rounds + run.round + 1
        return Selection(rows, torch.full((len(rows),), float(number)), normaliser=len(rows))

    def observe(self, visit: Visit) -> None:
        assert visit.index is not None
        self.told.index_add_(0, visit.index, visit.losses)


def loop(
    policy: Policy,
    loader: DataLoader[Any],
    epochs: int,
    model: nn.Module | None = None,
    each: Callable[[Any], None] = lambda index: None,
) -> list[float]:
    """The losses of a loop that trains with ``policy.mean``."""
    model = make_model() if model is None else model
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(epochs):
        for index, batch in loader:
            x, y = (batch["x"], batch["labels"]) if isinstance(batch, dict) else batch
            loss = policy.mean(criterion(model(x), y), index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            each(index)
    return found


def loader_of(
    policy: Policy, data: Any = PAIRS, epochs: float = 10, size: int = 8, **options: Any
) -> DataLoader[Any]:
    sampler = policy.sampler(data, epochs=epochs)
    return DataLoader(indexed(data), batch_size=size, sampler=sampler, **options)


def stacked(pairs: list[Any]) -> Any:
    index, rows = zip(*pairs, strict=True)
    return torch.tensor(index), default_collate(list(rows))


WORKERS = {"num_workers": 2, "prefetch_factor": 4, "multiprocessing_context": "fork"}
LOADERS: dict[str, dict[str, Any]] = {
    "drop_last": {"drop_last": True},
    "dicts": {"data": build.as_dataset([{"x": x, "labels": y} for x, y in PAIRS])},
    "collate": {"collate_fn": stacked},
    "persistent": {**WORKERS, "persistent_workers": True},
}


@pytest.mark.parametrize("name", LOADERS)
def test_every_kind_of_loader_trains_as_the_plain_one(name: str) -> None:
    """One round an epoch: what is prefetched needs no losses of the same epoch."""
    options, size = LOADERS[name], 8 if name != "drop_last" else 7
    plain, other = InfoBatch(delta=0.8), InfoBatch(delta=0.8)
    losses, rows = [], []
    for policy, changes in ((plain, {}), (other, options)):
        seen: list[list[int]] = []
        loader = loader_of(policy, size=size, epochs=4, **changes)
        losses.append(loop(policy, loader, 4, each=lambda i, seen=seen: seen.append(i.tolist())))
        rows.append(seen)
    if name == "drop_last":
        assert {len(batch) for batch in rows[1]} == {7}
        assert rows[1][: N // 7] == rows[0][: N // 7]  # the same first epoch
        return
    assert rows[0] == rows[1]
    assert losses[0] == losses[1]
    assert len(rows[0]) < 4 * -(-N // 8)  # something was dropped


def test_weights_belong_to_visits() -> None:
    """Batches that were drawn before a new plan keep their weights, however late losses come."""
    policy = Rounds(10)
    drawn = [index for index, _ in loader_of(policy, size=10)]  # all loaded before any loss
    assert len(drawn) == 10
    for number, index in enumerate(drawn, 1):  # a batch is a round here
        losses = torch.rand(10)
        assert policy.mean(losses, index).item() == pytest.approx(number * losses.mean().item())
    second = [index for index, _ in loader_of(policy, size=20)]
    assert len(second) == 5
    for number, index in enumerate(second):  # a batch is two rounds of weights 11 to 20
        assert policy.mean(torch.ones(20), index).item() == 10 + 2 * number + 1.5


def test_a_loop_of_ones_own_trains_as_the_trainer_does() -> None:
    """Equal seeds give equal orders; everything is computed in float64."""
    data = TensorDataset(X.double(), Y)
    policy, other, model = InfoBatch(), InfoBatch(), make_model().double()
    twin = copy.deepcopy(model)
    loop(policy, loader_of(policy, data, epochs=5), 5, model)
    trainer = Trainer(
        twin,
        data,
        policy=other,
        epochs=5,
        batch_size=8,
        optimizer=torch.optim.SGD(twin.parameters(), 0.1),
        config=TrainConfig(schedule="constant", clip_norm=None),
        device="cpu",
    )
    trainer.run()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=0, atol=1e-6)
    torch.testing.assert_close(policy.losses, other.losses)


def batches_of(policy: Policy, size: int = 10) -> list[Tensor]:
    return [index for index, _ in loader_of(policy, size=size)]


def test_batches_may_be_skipped() -> None:
    policy = Rounds(5)
    drawn = batches_of(policy, 20)  # a round each
    for number in (0, 2, 4):
        assert policy.mean(torch.ones(20), drawn[number]).item() == number + 1
    with pytest.raises(ValueError, match=r"pass each batch's index once, in their order"):
        policy.mean(torch.ones(20), drawn[3])


WRONG: dict[str, Callable[[list[Tensor]], list[Tensor]]] = {
    "twice": lambda drawn: [drawn[0], drawn[0]],
    "an earlier one": lambda drawn: [drawn[2], drawn[0]],
    "not drawn": lambda drawn: [torch.arange(10)],
    "shuffled": lambda drawn: [drawn[0].flip(0)],
    "of no row": lambda drawn: [drawn[0] + N],
    "longer": lambda drawn: [torch.cat([drawn[-1], drawn[0]])],
}


def test_a_batch_that_was_not_drawn_or_comes_twice_is_refused() -> None:
    for wrong_batches in WRONG.values():
        policy = RandomSubset(1.0)
        *before, wrong = wrong_batches(batches_of(policy))
        for index in before:
            policy.mean(torch.ones(len(index)), index)
        with pytest.raises(ValueError, match="rows of this batch were not drawn by this sampler"):
            policy.mean(torch.ones(len(wrong)), wrong)


@pytest.mark.parametrize(("epochs", "over"), [(4, []), (2, [2]), (1.5, [1.5]), (1, [1])])
def test_a_schedule_that_is_over_says_so_once(epochs: float, over: list[float]) -> None:
    policy = InfoBatch()
    policy.begun = 2
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        loop(policy, loader_of(policy, epochs=epochs), 2)
    found = [str(each.message) for each in told]
    assert [each[: each.index(", so")] for each in found] == [
        f"InfoBatch has completed its {number} epochs" for number in over
    ]


class Both(Rounds):
    """Plans as `Rounds` does, and trains on the first half of each batch."""

    def choose(self, batch: Scored) -> Selection:
        return batch.select(torch.arange(batch.rows // 2))


class Gated(Rounds, Gate):
    """Plans as `Rounds` does, and gates each batch."""

    def __init__(self) -> None:
        Gate.__init__(self, 0.5, controller="top_k")
        Rounds.__init__(self)


@pytest.mark.parametrize("make", [Both, Gated])
def test_a_policy_that_plans_and_chooses_keeps_weights_and_position(make: type[Rounds]) -> None:
    policy, model = make(), make_model()
    policy.begun = 2  # so the weights of its plan are 3
    drawn = list(loader_of(policy))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (index, (x, y)) in enumerate(drawn[:2]):
            chosen, losses = policy(model, x, y, index), torch.rand(4)
            assert chosen.mean(losses).item() == pytest.approx(3 * losses.mean().item())
            assert bool(policy.told.any()) == bool(number)  # the batch before was observed
            policy.report_batch(losses, index[chosen.index], None, None)
    needs = f"{make.__name__} needs the index of each row, but got none"
    with pytest.raises(ValueError, match=needs):
        policy(model, *drawn[2][1])


def test_a_subclass_of_gate_that_chooses_nothing_takes_all_rows() -> None:
    class Undecided(Gate):
        def choose(self, batch: Scored) -> Any:
            return None

    assert len(Undecided()(make_model(), X[:8], Y[:8])) == 8


def test_outputs_reach_a_policy_that_needs_them() -> None:
    class Watching(Rounds):
        needs_outputs = True
        seen: Visit

        def observe(self, visit: Visit) -> None:
            self.seen = visit

    policy, model = Watching(), make_model().eval()
    index = batches_of(policy)[0]
    outputs = model(X[index])
    losses = F.cross_entropy(outputs, Y[index], reduction="none")
    policy.mean(losses.bfloat16(), index, outputs, Y[index]).backward()
    policy.exchange()
    seen: Any = policy.seen
    assert (seen.index.equal(index), seen.losses.dtype) == (True, torch.float32)
    assert seen.correct.equal(outputs.argmax(1) == Y[index])
    torch.testing.assert_close(seen.confidence, outputs.softmax(1).amax(1).detach())
    assert seen.trained
    assert not seen.losses.requires_grad


def test_an_index_of_other_rows_than_the_batch_is_refused() -> None:
    model, gate = make_model(), Gate(0.5)
    for index in (torch.arange(9), torch.arange(7)):
        with pytest.raises(ValueError, match=f"a batch of 8 rows was made from {len(index)} rows"):
            gate(model, *PAIRS[:8], index)
