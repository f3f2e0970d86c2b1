"""Rows without a label have no part in the mean, are not chosen, and change no metric."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from astkit import Gate, Policy, RandomSubset, SampleBySampleTrainer, Selection, Trainer
from astkit import distributed as several
from astkit.comparison.training import RunRecord, _cost
from astkit.datasets import Loader
from astkit.gating import Scored, Visit
from astkit.gating.losses import ignored_label
from astkit.trainers import TrainConfig
from tests import build
from tests.trainers.worlds import in_world

RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(64, 4, generator=RANDOM, dtype=torch.float64)
Y = torch.randint(3, (64,), generator=RANDOM)
REAL = torch.arange(64) % 16 > torch.arange(64) // 16 * 4 + 2  # 13, 9, 5 and 1 of each 16 rows
TOKENS = torch.randint(3, (64, 5), generator=RANDOM).masked_fill(~REAL[:, None], -100)
TOKENS[1::2, 2:] = -100


def labels(ignored: int) -> Tensor:
    return Y.masked_fill(~REAL, ignored)


class PerToken(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 15, dtype=torch.float64)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).unflatten(1, (5, 3))


def mean_of_tokens(outputs: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs.movedim(-1, 1), TOKENS, reduction="none")
    return (losses.sum(1) / (TOKENS >= 0).sum(1).clamp_min(1))[REAL].mean()


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(ignore_index=255, reduction="none")

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.inner(outputs, targets)


def classes(outputs: Tensor) -> Tensor:
    return F.cross_entropy(outputs[REAL], Y[REAL])


# criterion, targets, and the mean over rows that have a label
CASES: dict[str, tuple[Any, Tensor, Callable[[Tensor], Tensor]]] = {
    "by default": (None, labels(-100), classes),
    "-1": (nn.CrossEntropyLoss(ignore_index=-1, reduction="none"), labels(-1), classes),
    "255": (nn.CrossEntropyLoss(ignore_index=255, reduction="none"), labels(255), classes),
    "of a part": (Wrapped(), labels(255), classes),
    "a partial": (partial(F.cross_entropy, ignore_index=7, reduction="none"), labels(7), classes),
    "a mask": (
        lambda o, y: (F.cross_entropy(o, y.clamp(max=2), reduction="none"), y < 3),
        labels(9),
        classes,
    ),
    "losses alone": (squares, labels(-100), lambda o: squares(o, Y)[REAL].mean()),
    "floats": (squares, labels(-100).double(), lambda o: squares(o, labels(-100)).mean()),
    "tokens": (None, TOKENS, mean_of_tokens),
    "tokens, own": (
        lambda o, y: F.cross_entropy(o.movedim(-1, 1), y, reduction="none"), TOKENS, mean_of_tokens
    ),
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "one batch": {"batch_size": 64},
    "micro-batches": {"batch_size": 64, "micro_batch": 5},
    "accumulated": {"batch_size": 16, "accumulation_steps": 4},
}


def settings(**options: Any) -> TrainConfig:
    return TrainConfig(clip_norm=None, schedule="constant", **options)


def trained(case: str, run: str, **options: Any) -> tuple[Trainer, Tensor, Tensor]:
    """A run of one step, and its weights beside those of a step on the mean of ``case``."""
    criterion, targets, mean = CASES[case]
    torch.manual_seed(0)
    model = PerToken() if targets is TOKENS else nn.Linear(4, 3, dtype=torch.float64)
    mean(model(X)).backward()
    expected = torch.cat([(each - 0.1 * each.grad).flatten() for each in model.parameters()])
    data, size = TensorDataset(X, targets), RUNS[run]["batch_size"]
    batches = [data[first : first + size] for first in range(0, 64, size)]
    given = {} if criterion is None else {"criterion": criterion}
    made = {name: value for name, value in RUNS[run].items() if name != "batch_size"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = settings(**made)
    kept = {"optimizer": optimizer, "config": config, **given, **options}
    trainer = Trainer(model, batches, data, epochs=1, **kept)
    before = float(mean(model(X)).detach())
    assert trainer.evaluate(data)["loss"] == pytest.approx(before)
    trainer.run(progress=False)
    assert run == "accumulated" or trainer.history.steps[0]["loss"] == pytest.approx(before)
    return trainer, torch.cat([each.detach().flatten() for each in model.parameters()]), expected


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("case", CASES)
def test_the_mean_is_over_rows_with_a_label(case: str, run: str) -> None:
    trainer, found, expected = trained(case, run)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if case in ("by default", "-1", "255"):
        right = (trainer.model(X).argmax(1) == Y)[REAL].double().mean()
        assert trainer.history.epochs[0]["val_accuracy"] == pytest.approx(float(right))
    assert trainer.ledger.samples.trained == 64  # all have passed


class Told(Policy):
    """Chooses all rows but the first, and keeps what it is told."""

    needs_index = True

    def __init__(self) -> None:
        self.told: list[int] = []

    def choose(self, batch: Scored) -> Selection:
        return batch.score().select(torch.arange(1, batch.rows))

    def observe(self, visit: Visit) -> None:
        assert visit.index is not None
        assert visit.losses.isfinite().all()
        self.told += visit.index.tolist()


class Planned(Told):
    choose = Policy.choose  # type: ignore[assignment]

    def plan(self, run: Any) -> Selection:
        return Selection(torch.arange(run.samples), torch.ones(run.samples), run.samples)


POLICIES: dict[str, Any] = {
    "gate": Gate(0.5, fallback=0),
    "entropy": Gate(0.5, "entropy", fallback=0),
    "top_k": Gate(0.5, controller="top_k"),
    "of one's own": Told(),
    "planned": RandomSubset(0.5),
    "planned in one's own way": Planned(),
}


@pytest.mark.parametrize("ignored", [-100, 255])
@pytest.mark.parametrize("name", POLICIES)
def test_rows_without_a_label_are_never_chosen(name: str, ignored: int) -> None:
    seen: list[list[float]] = []

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            seen.append(targets.tolist())
        return F.cross_entropy(outputs, targets, ignore_index=ignored, reduction="none")

    criterion.ignore_index = ignored  # type: ignore[attr-defined]
    data = Subset(TensorDataset(X, labels(ignored)), range(64))
    policy, model = copy.deepcopy(POLICIES[name]), nn.Linear(4, 3, dtype=torch.float64)
    trainer = Trainer(model, data, policy=policy, epochs=4, batch_size=16, criterion=criterion)
    trainer.run(progress=False)
    chosen = [label for batch in seen[2:] for label in batch]  # after FLOPs were counted
    assert chosen
    assert ignored not in chosen
    if isinstance(policy, Gate):
        assert policy.measured_rate == pytest.approx(0.5, abs=0.1)
        assert policy.seen == 4 * int(REAL.sum())
    elif isinstance(policy, Told):
        assert {*policy.told} <= {*REAL.nonzero()[:, 0].tolist()}
    else:
        assert trainer.ledger.samples.unloaded == pytest.approx(4 * int(REAL.sum()) / 2, abs=4)


def test_a_batch_without_a_label_takes_no_step() -> None:
    none = torch.full((16,), -100)
    for policy in (None, Gate(0.5), Gate(0.5, controller="top_k")):
        model = build.network(4, 3, 0)
        before = [each.clone() for each in model.parameters()]
        data = [(X[:16].float(), none)]
        run = Trainer(model, data, policy=policy, epochs=2, lr=0.1)
        run.run(progress=False)
        assert all(map(torch.equal, before, model.parameters()))


def test_row_by_row_too() -> None:
    data, gate = TensorDataset(X.float(), labels(-100)), Gate(0.5, fallback=0)
    run = SampleBySampleTrainer(nn.Linear(4, 3), data, policy=gate, epochs=2, batch_size=16)
    run.run(progress=False)
    assert gate.seen == 2 * int(REAL.sum())


def in_processes(policy: Any) -> Tensor:
    model = nn.Linear(4, 3, dtype=torch.float64)
    nn.init.eye_(model.weight), nn.init.zeros_(model.bias)
    wrapped = DistributedDataParallel(model) if several.world() > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"optimizer": optimizer, "config": settings(accumulation_steps=2, micro_batch=5)}
    data = TensorDataset(X, labels(-100))
    Trainer(wrapped, data, data, epochs=2, batch_size=16, policy=policy, **options).run(False)
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("policy", [None, RandomSubset(0.5), Gate(1.0)])
def test_two_processes_with_uneven_labels_train_as_one(policy: Any) -> None:
    (alone,) = in_world(1, in_processes, policy)
    for found in in_world(2, in_processes, policy):
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bad", [1, 30])
@pytest.mark.parametrize("score", ["loss", "contrast"])
@pytest.mark.parametrize("controller", ["log_integral", "top_k"])
def test_a_label_of_nan_stops_a_gate_as_dense_training(controller, score, bad) -> None:
    y = Y.double()
    y[:bad] = torch.nan
    gate, model = Gate(0.25, score, controller), nn.Linear(4, 1, dtype=torch.float64)
    before = model.weight.clone()
    run = Trainer(
        model, TensorDataset(X, y), policy=gate, epochs=1, criterion=squares, batch_size=64
    )
    with pytest.raises(FloatingPointError, match=r"became nan: .* inputs and labels for NaN"):
        run.run(progress=False)
    assert torch.equal(model.weight, before)

    def masked(outputs: Tensor, targets: Tensor) -> Any:
        return squares(outputs, targets), ~targets.isnan()

    data = TensorDataset(X, y)
    gate = Gate(0.5, score, controller)
    Trainer(model, data, policy=gate, epochs=2, criterion=masked, batch_size=64).run(progress=False)
    assert not torch.equal(model.weight, before)


def test_the_loss_shown_of_rows_chosen_without_scores_is_that_of_labelled_ones() -> None:
    class Even(Policy):
        def choose(self, batch: Scored) -> Selection:
            return Selection(torch.arange(0, batch.rows, 2))

    data = TensorDataset(X, labels(-100))
    model = nn.Linear(4, 3, dtype=torch.float64)
    steps = build.trainer(model, data, policy=Even(), batch_size=32).run(progress=False).steps
    assert all(0 < step["loss"] < 5 for step in steps)


def test_rows_without_a_label_count_by_their_weight_in_the_mean() -> None:
    class Heavy(Policy):
        def choose(self, batch: Scored) -> Selection:
            weight = torch.where(batch.targets == -100, 3.0, 1.0).double()
            return Selection(torch.arange(batch.rows), weight)

    gradients = []
    for policy in (Heavy(), None):
        model = nn.Linear(4, 3, dtype=torch.float64)
        nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
        options = {"policy": policy, "optimizer": build.sgd(model), "batch_size": 64}
        build.trainer(model, TensorDataset(X, labels(-100)), **options).run(progress=False)
        gradients.append(model.weight.detach() - 1)
    torch.testing.assert_close(*gradients)


class Lowest(Policy):
    """Takes the half of the lowest losses; keeps how many rows it saw, and what it was told."""

    needs_index = True

    def __init__(self) -> None:
        self.saw: list[int] = []
        self.told: list[tuple[int, bool]] = []

    def choose(self, batch: Scored) -> Selection:
        batch.score()
        assert batch.index is not None
        assert len(batch.losses) == len(batch.outputs) == len(batch.index) == batch.rows
        self.saw.append(batch.rows)
        return Selection(batch.losses.topk(-(-batch.rows // 2), largest=False).indices)

    def observe(self, visit: Visit) -> None:
        assert (visit.losses > 0).all()
        self.told += [(row, visit.trained) for row in visit.index.tolist()]  # type: ignore[union-attr]


def rows_of(data: Any, policy: Any, criterion: Any, **options: Any) -> tuple[Trainer, list[int]]:
    """A run, and the rows that it trained on."""
    given = {"policy": policy, "criterion": criterion, "batch_size": 16, **options}
    several = criterion is CASES["tokens, own"][0]
    model = PerToken() if several else nn.Linear(4, 3, dtype=torch.float64)
    trainer, rows = build.trainer(model, data, **given), list[int]()
    trainer.reports.watchers.append(lambda b, result: rows.extend(b.index[result.rows].tolist()))
    trainer.run(progress=False)
    return trainer, rows


@pytest.mark.parametrize("case", ["-1", "a mask", "losses alone", "tokens, own"])
def test_a_policy_sees_the_rows_with_a_label_alone(case: str) -> None:
    criterion, targets, _ = CASES[case]
    policy = Lowest()
    _, rows = rows_of(TensorDataset(X, targets), policy, criterion)
    assert sum(policy.saw) == 2 * int(REAL.sum())
    assert sorted(row for row, _ in policy.told) == sorted(2 * REAL.nonzero()[:, 0].tolist())
    assert sorted(row for row, trained in policy.told if trained) == sorted(rows)
    assert len(rows) == sum(-(-each // 2) for each in policy.saw)


def halves(*tensors: Tensor) -> ConcatDataset[Any]:
    whole = TensorDataset(*tensors)
    return ConcatDataset([TensorDataset(*whole[:40]), TensorDataset(*whole[40:])])


DATA: dict[str, Callable[..., Any]] = {
    "tensors": TensorDataset,
    "concatenated": halves,
    "a part of them": lambda *tensors: Subset(halves(*tensors), range(64)),
    "with an attribute": lambda x, y: build.computed(64, lambda row: (x[row], y[row]), targets=y),
}
UNREADABLE = {"unreadable": lambda x, y: build.computed(64, lambda row: (x[row], y[row]))}


@pytest.mark.parametrize("policy", ["random:rate=0.5", "infobatch", "class_balanced"])
@pytest.mark.parametrize("kind", DATA)
def test_a_plan_draws_rows_with_a_label_alone(kind: str, policy: str) -> None:
    for ignored in (-100, -1):
        criterion = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
        _, rows = rows_of(DATA[kind](X, labels(ignored)), policy, criterion)
        assert rows
        assert REAL[rows].all()
        if policy == "class_balanced":
            assert len(rows) == 2 * int(REAL.sum())
            assert Y[rows].bincount().tolist() == pytest.approx([len(rows) / 3] * 3, abs=2)
    sampler = RandomSubset(1.0).sampler(DATA[kind](X, labels(-100)), epochs=2)
    assert len(sampler) == len([*sampler]) == int(REAL.sum())


def test_a_plan_over_labels_that_cannot_be_read_ahead_says_so() -> None:
    ce, mask, squared = CASES["-1"][0], CASES["a mask"][0], lambda o, y: (squares(o, y), y > -200)
    for data, criterion in (
        (UNREADABLE["unreadable"](X, labels(-1)), ce),
        (TensorDataset(X, labels(9)), mask),
    ):
        with pytest.warns(
            UserWarning, match="plans rows without a label too, since labels"
        ) as said:
            rows_of(data, RandomSubset(0.5), criterion)
        assert len(said) == 1
    _, rows = rows_of(TensorDataset(X, labels(-100)), RandomSubset(1.0), squared, epochs=1)
    assert sorted(rows) == [*range(64)]  # of which the mask leaves out none


@pytest.mark.filterwarnings("ignore:.*plans rows without a label")
@pytest.mark.parametrize("kind", ["tensors", "concatenated", "unreadable"])
@pytest.mark.parametrize("policy", [Gate(0.25), Lowest(), RandomSubset(0.5)])
def test_a_random_control_trains_on_as_many_rows_with_a_label(policy: Policy, kind: str) -> None:
    y = Y.masked_fill(torch.arange(64) % 4 == 0, -100)
    ce, record = nn.CrossEntropyLoss(reduction="none"), RunRecord(64, torch.device("cpu"))
    data = {**DATA, **UNREADABLE}[kind](X, y)
    run, rows = rows_of(data, copy.deepcopy(policy), ce, epochs=20, observers=[record])
    _, others = rows_of(data, RandomSubset(_cost(run, record.offered)["rate"]), ce, epochs=20)
    assert int((y[rows] >= 0).sum()) == pytest.approx(int((y[others] >= 0).sum()), rel=0.06)
    assert record.losses[:, y < 0].isnan().all()


@pytest.mark.parametrize("policy", [None, "random:rate=0.5", "gate:rate=0.5", "class_balanced"])
def test_data_without_any_label_are_one_sentence(policy: str | None) -> None:
    for kind in DATA.values():
        data = kind(X.float(), torch.full((64,), -100))
        run = build.trainer(build.network(4, 3), data, policy=policy)
        build.refused((run.run, "all 64 labels of the training data are -100, which stands for no"))


@pytest.mark.parametrize("policy", [None, Gate(0.5), Gate(0.5, controller="top_k"), Lowest()])
def test_the_loss_shown_of_a_batch_without_a_label_is_none(policy: Any) -> None:
    y = Y.masked_fill(torch.arange(64) < 16, -1)
    data = Loader(TensorDataset(X, y), 16, shuffle=False)
    run, _ = rows_of(data, policy, CASES["-1"][0], epochs=1, batch_size=None)
    losses = [step["loss"] for step in run.history.steps]
    assert [loss is None for loss in losses] == [True, False, False, False]


SKIPPED = 5


class Losses:
    def __init__(self) -> None:
        self.inner = nn.CrossEntropyLoss(ignore_index=255, reduction="none")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.inner(outputs, targets)

    __call__ = loss


def closing_over(inner: Any) -> Any:
    return lambda outputs, targets: inner(outputs, targets)


def given_by_name(ignore_index: int) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=ignore_index, reduction="none")

    return loss


INNER = nn.CrossEntropyLoss(ignore_index=255, reduction="none")
CRITERIA: list[tuple[Any, int]] = [
    (INNER, 255),
    (Wrapped(), 255),
    (Losses(), 255),
    (Losses().loss, 255),
    (INNER.forward, 255),
    (partial(INNER), 255),
    (partial(Losses().loss), 255),
    (partial(F.cross_entropy, ignore_index=0, reduction="none"), 0),
    (closing_over(INNER), 255),
    (closing_over(Losses().loss), 255),
    (given_by_name(7), 7),
    (lambda o, y: INNER(o, y), 255),
    (lambda o, y, loss=INNER: loss(o, y), 255),
    (lambda o, y: F.cross_entropy(o, y, ignore_index=0, reduction="none"), 0),
    (lambda o, y: F.cross_entropy(o, y, None, ignore_index=SKIPPED, reduction="none"), SKIPPED),
    (nn.CrossEntropyLoss(reduction="none"), -100),
    (nn.MSELoss(reduction="none"), -100),
    (squares, -100),
]


@pytest.mark.parametrize("case", range(len(CRITERIA)))
def test_the_ignored_label_is_read_from_the_criterion(case: int) -> None:
    assert ignored_label(CRITERIA[case][0]) == CRITERIA[case][1]
