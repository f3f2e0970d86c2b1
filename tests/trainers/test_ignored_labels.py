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
from astkit.gating import Scored, Visit, cross_entropy_rows
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
    "by default": (cross_entropy_rows, labels(-100), classes),
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
    "tokens": (cross_entropy_rows, TOKENS, mean_of_tokens),
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


def linear() -> nn.Linear:
    model = nn.Linear(4, 3, dtype=torch.float64)
    nn.init.eye_(model.weight), nn.init.zeros_(model.bias)
    return model


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("case", CASES)
def test_the_mean_is_over_rows_with_a_label(case: str, run: str) -> None:
    criterion, targets, mean = CASES[case]
    model = PerToken() if targets is TOKENS else linear()
    mean(model(X)).backward()
    expected = torch.cat([(each - 0.1 * each.grad).flatten() for each in model.parameters()])
    data, made = TensorDataset(X, targets), dict(RUNS[run])
    size = made.pop("batch_size")
    batches = [data[first : first + size] for first in range(0, 64, size)]
    options = {"optimizer": build.sgd(model), "config": settings(**made), "criterion": criterion}
    trainer = Trainer(model, batches, data, epochs=1, **options)
    before = float(mean(model(X)).detach())
    assert trainer.evaluate(data)["loss"] == pytest.approx(before)
    trainer.run(progress=False)
    assert run == "accumulated" or trainer.history.steps[0]["loss"] == pytest.approx(before)
    torch.testing.assert_close(flat(model), expected, rtol=1e-9, atol=1e-12)
    if case in ("by default", "-1", "255"):
        right = (model(X).argmax(1) == Y)[REAL].double().mean()
        assert trainer.history.epochs[0]["val_accuracy"] == pytest.approx(float(right))
    assert trainer.ledger.samples.trained == 64  # all have passed


SCORES = ("loss", "entropy", "gradient_norm")
GATES = [*(Gate(0.5, score, fallback=0) for score in SCORES), Gate(0.5, controller="top_k")]


@pytest.mark.parametrize("kind", [Trainer, SampleBySampleTrainer])
@pytest.mark.parametrize("gate", GATES)
def test_a_gate_counts_the_rows_with_a_label_alone(gate: Gate, kind: Any) -> None:
    for ignored in (-100, 255):
        criterion = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
        own, data = copy.deepcopy(gate), TensorDataset(X, labels(ignored))
        options = {"update": "per_batch"} if kind is not Trainer else {}
        _, rows = rows_of(data, own, criterion, kind=kind, epochs=4, **options)
        assert rows
        assert REAL[rows].all()
        assert own.measured_rate == pytest.approx(0.5, abs=0.1)
        assert own.seen == 4 * int(REAL.sum())


def test_row_by_row_too() -> None:
    gate, data = Gate(0.5, fallback=0), Loader(TensorDataset(X, labels(-100)), 1)
    rows_of(data, gate, cross_entropy_rows, kind=SampleBySampleTrainer, batch_size=None)
    assert gate.seen == 2 * int(REAL.sum())


def test_a_batch_without_a_label_takes_no_step() -> None:
    for policy in (None, *GATES, Lowest()):
        model = linear()
        data = Loader(build.computed(16, lambda row: (X[row], torch.tensor(-100))), 16)
        build.trainer(model, data, policy=copy.deepcopy(policy)).run(progress=False)
        assert torch.equal(flat(model), flat(linear()))


class All(Policy):
    def choose(self, batch: Scored) -> None:
        batch.score()


def in_processes(policy: Any) -> Tensor:
    model = linear()
    wrapped = DistributedDataParallel(model) if several.world() > 1 else model
    config = settings(accumulation_steps=2, micro_batch=5)
    options = {"optimizer": build.sgd(model), "config": config, "policy": policy}
    data = TensorDataset(X, labels(-100))
    Trainer(wrapped, data, data, epochs=2, batch_size=16, **options).run(progress=False)
    return flat(model)


@pytest.mark.parametrize("policy", [None, RandomSubset(0.5), Gate(1.0), All()])
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
    run = partial(build.trainer, train=TensorDataset(X, y), batch_size=64)
    for criterion in (squares, lambda o, y: (squares(o, y), ~y.isnan())):
        model = linear()
        trained = run(model, policy=Gate(0.5, score, controller), criterion=criterion)
        if criterion is squares:
            with pytest.raises(FloatingPointError, match=r"became nan: .* and labels for NaN"):
                trained.run(progress=False)
        else:
            trained.run(progress=False)
        assert torch.equal(flat(model), flat(linear())) == (criterion is squares)


class Heavy(Policy):
    """Chooses without a score, so that it does not know which rows a mask leaves out."""

    def choose(self, batch: Scored) -> Selection:
        return Selection(torch.arange(batch.rows), 1.0 + 2.0 * (batch.targets == 9).double())


def test_rows_that_a_mask_leaves_out_count_by_their_weight_in_the_mean() -> None:
    found = []
    for policy in (Heavy(), None):
        model, criterion = linear(), CASES["a mask"][0]
        options = {"policy": policy, "optimizer": build.sgd(model), "criterion": criterion}
        run = build.trainer(model, TensorDataset(X, labels(9)), batch_size=64, **options)
        steps = run.run(progress=False).steps
        found.append([flat(model), torch.tensor([step["loss"] for step in steps])])
    torch.testing.assert_close(*found)


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
        assert visit.index is not None
        assert (visit.losses > 0).all()
        self.told += [(row, visit.trained) for row in visit.index.tolist()]


def rows_of(data: Any, policy: Any, criterion: Any, **options: Any) -> tuple[Trainer, list[int]]:
    """A run, and the rows that it trained on."""
    given = {"policy": policy, "criterion": criterion, "batch_size": 16, **options}
    model = PerToken() if criterion is CASES["tokens, own"][0] else linear()
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


class Planned(Policy):
    """Plans all rows, whatever the candidates are."""

    def plan(self, run: Any) -> Selection:
        return Selection(torch.arange(run.samples), torch.ones(run.samples), run.samples)


DATA: dict[str, Callable[..., Any]] = {
    "tensors": TensorDataset,
    "concatenated": halves,
    "a part of them": lambda *tensors: Subset(halves(*tensors), range(64)),
    "with an attribute": lambda x, y: build.computed(64, lambda row: (x[row], y[row]), targets=y),
}
UNREADABLE = {"unreadable": lambda x, y: build.computed(64, lambda row: (x[row], y[row]))}


@pytest.mark.parametrize(
    "policy", ["random:rate=0.5", "infobatch", "class_balanced", "auto", Planned()]
)
@pytest.mark.parametrize("kind", DATA)
def test_a_plan_draws_rows_with_a_label_alone(kind: str, policy: str) -> None:
    for ignored in (-100, -1):
        criterion = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
        run, rows = rows_of(DATA[kind](X, labels(ignored)), policy, criterion)
        assert run.ledger.samples.unloaded == 2 * int(REAL.sum()) - len(rows)
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
