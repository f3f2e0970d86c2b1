"""The loop: stopped anywhere it continues as if it had not been, and it leaves nothing open."""

import copy
import itertools
import math
import random
import re
import warnings
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from astkit import CachedLoss, RandomSubset, rng, system
from astkit.datasets import Images, Loader, load
from astkit.gating import Gate, Policy, RunInfo, Selection
from astkit.trainers import Budget, Metric, SampleBySampleTrainer, TrainConfig, Trainer
from astkit.trainers.optimisation import Accumulated
from tests import build as builder
from tests.build import refused
from tests.gating.syncs import Syncs
from tests.trainers.states import (
    Given,
    Hardest,
    flagged,
    hand_over,
    leave_after,
    outcome,
    same,
    timeless,
)

DIGITS = load("digits")[0]
TRAIN, VALIDATION = DIGITS.subset(range(40)), DIGITS.subset(range(40, 52))  # 5 and 2 batches of 8
PAIRS = TensorDataset(TRAIN.images / 255, TRAIN.labels)
LIMIT = 1_000  # records; no run here has as many, so reaching it means that the loop never ends


def network(seed: int = 0) -> nn.Module:
    return builder.network(64, 10, 16, nn.ReLU(), nn.Dropout(0.5), seed=seed)


def foreign(images: Any, shuffle: bool) -> DataLoader:
    """An ordinary DataLoader, which draws its order from torch's default generator."""
    return DataLoader(TensorDataset(images.images / 255, images.labels), 8, shuffle=shuffle)


def noisy(row: int) -> Any:
    """An image with noise from the default generators, as random transforms add it."""
    scale = 0.1 * random.random() + 0.1 * np.random.rand()
    return TRAIN.images[row] / 255 + scale * torch.rand(1, 8, 8), TRAIN.labels[row]


NOISY = builder.computed(len(TRAIN), noisy)


class Both(RandomSubset):
    """Chooses before loading and after scoring."""

    def choose(self, batch: Any) -> Selection:
        return Selection(batch.score().losses.topk(batch.rows // 2).indices)


KINDS: dict[str, Any] = {
    "dense": dict,
    "gated": lambda: {"policy": Gate(0.4, "loss_and_contrast")},
    "gated, top k": lambda: {"policy": Gate(0.4, controller="top_k")},
    "per batch": lambda: {"policy": Gate(0.4), "update": "per_batch"},
    "per sample": lambda: {"policy": Gate(0.4, "loss_and_contrast"), "update": "per_sample"},
    "random": lambda: {"policy": {"name": "random", "rate": 0.45}},
    "random, then chosen": lambda: {"policy": Both(0.6)},
    "hardest": lambda: {"policy": Hardest(40)},
    "noisy": lambda: {"train": Loader(NOISY, 8, seed=3), "policy": Hardest(40)},
}
FOREIGN: dict[str, Any] = {
    "foreign": lambda: {"train": foreign(TRAIN, True), "validation": foreign(VALIDATION, False)},
    "noisy, foreign": lambda: {"train": DataLoader(NOISY, 8, shuffle=True)},
}
"""Loaders of others, which start a new pass where a run goes on in the middle of an epoch."""


def build(kind: str = "dense", **options: Any) -> Any:
    options = {
        "train": Loader(TRAIN, 8, augment=("crop", "flip"), seed=3),
        "validation": Loader(VALIDATION, 8, shuffle=False),
        "config": TrainConfig(lr=1e-2, seed=5),
        "device": "cpu",
        **(KINDS | FOREIGN)[kind](),
        **options,
    }
    if "budget" not in options:
        options.setdefault("epochs", 2)
    made = SampleBySampleTrainer if "update" in options else Trainer
    return made(options.pop("model", None) or network(), **options)


def finish(trainer: Trainer) -> list[Any]:
    records = list(itertools.islice(trainer.steps(), LIMIT))
    assert trainer.done, "the loop went on and on"
    return records


def training(records: list[Any]) -> list[dict[str, Any]]:
    return [record.metrics for record in records if record.phase == "train"]


def everything(trainer: Trainer) -> dict[str, Any]:
    return {**outcome(trainer), "steps": timeless(trainer.history.steps)}


@cache
def uninterrupted(kind: str) -> tuple[dict[str, Any], int]:
    trainer = build(kind)
    records = finish(trainer)
    return everything(trainer), len(records)


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("cut", [1, 3, 5, 6, 8])
def test_a_foreign_loader_starts_a_new_pass_in_an_epoch_of_the_usual_length(kind, cut):
    whole = build(kind)
    finish(whole)
    first = leave_after(build(kind), cut)
    second = hand_over(first, build(kind, model=network(seed=9)))
    assert (second.step, second.progress) == (first.step, first.progress)
    within = cut % 6 not in (0, 5)  # 5 batches and a record of the epoch
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        finish(second)
    told = [str(each.message) for each in said if "new pass" in str(each.message)]
    assert len(told) == within
    for words in told:
        assert "DataLoader starts a new pass: some rows of this epoch may come twice" in words
    assert (second.step, second.epoch, second.done) == (whole.step, whole.epoch, True)
    if not within:
        assert same(outcome(second)["weights"], outcome(whole)["weights"])


def test_validation_may_shuffle_and_a_test_may_not() -> None:
    words = "validation or test data are a DataLoader that shuffles, but runs are compared row by"
    runs = [build(validation=foreign(VALIDATION, each), stop_after=1) for each in (False, True)]
    refused((partial(runs[0].evaluate, foreign(VALIDATION, True)), words))
    for run in runs:
        finish(run)
    for one, other in zip(*(run.history.epochs for run in runs), strict=True):
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-6)
        assert one["val_accuracy"] == other["val_accuracy"]
    assert same(*(run.model.state_dict() for run in runs))


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("dense", "fp32"), ("gated", "bf16"), ("per sample", "bf16"), ("foreign", "fp32"),
     ("hardest", "bf16")],
)  # fmt: skip
def test_nothing_is_open_between_records(kind: str, precision: str) -> None:
    model: Any = network()
    model[1].eval()  # frozen by its owner
    trainer = build(kind, model=model, config=TrainConfig(lr=1e-2, precision=precision))
    state = torch.get_rng_state()
    modes = [True, True, False, True, True, True]
    for _ in trainer.steps():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)
    trainer.evaluate(foreign(VALIDATION, False))
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    "kind", ["dense", "gated", "per sample", "foreign", "noisy", "noisy, foreign"]
)
def test_the_default_generators_decide_nothing(kind: str) -> None:
    with rng.isolated("cpu", "elsewhere"):
        trainer = build(kind)
        for _ in trainer.steps():
            torch.rand(7), np.random.rand(), random.random()  # as a notebook might between records
    assert same(everything(trainer), uninterrupted(kind)[0])


def test_the_seed_decides_dropout_and_every_step_drops_other_units() -> None:
    model: Any = network()
    dropped: list[Tensor] = []
    other = build(config=TrainConfig(lr=1e-2, seed=6), model=model, validation=None)
    first = next(other.train_data.batches(0))
    other.find_targets()
    other.cost(first)  # counted
    model[3].register_forward_hook(lambda module, inputs, output: dropped.append(output == 0))
    finish(other)
    assert not same(outcome(other)["weights"], uninterrupted("dense")[0]["weights"])
    assert len({str(mask.tolist()) for mask in dropped}) == len(dropped) == 10


@pytest.mark.parametrize("leave", ["end", "close", "error"])
def test_modes_and_threads_are_restored_whichever_way_it_ends(leave: str) -> None:
    model: Any = network().eval()
    before = torch.get_num_threads()
    threads = 1 if before > 1 else min(2, system.allowed_cpus())
    steps = build(model=model, config=TrainConfig(lr=1e-2, seed=5, threads=threads)).steps()
    next(steps)
    assert all(module.training for module in model.modules())
    assert torch.get_num_threads() == threads
    if leave == "end":
        assert len(list(steps)) == 11
    elif leave == "close":
        steps.close()
    else:
        with torch.no_grad():
            model[4].weight.fill_(math.nan)
        with pytest.raises(FloatingPointError):
            next(steps)
    assert not any(module.training for module in model.modules())
    assert torch.get_num_threads() == before


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.closed = 0

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        self.heard.append((step, phase, metrics))

    def close(self) -> None:
        self.closed += 1


def test_records_and_observers_tell_the_same_story(unchanged: Any) -> None:
    listener = Listener()
    trainer = build(observers=[listener])
    records = finish(trainer)
    epoch = ["train"] * 5 + ["epoch"]
    assert [record.phase for record in records] == epoch * 2
    assert [phase for _, phase, _ in listener.heard] == epoch * 2
    for record, (step, _, metrics) in zip(records, listener.heard, strict=True):
        assert record.step == step
        assert {name: metrics[name] for name in record.metrics} == record.metrics
    train = training(records)
    assert [record["progress"] for record in train] == pytest.approx(
        [number / 10 for number in range(1, 11)]
    )
    assert [r["trained"] for r in train] == [r["seen"] for r in train] == [8] * 10
    assert listener.closed == 1
    with unchanged(trainer.model):  # a spent trainer has nothing more to do
        assert list(trainer.steps()) == []
    leave_after(build(observers=[listener]), 1)
    assert listener.closed == 3


def test_visits_hold_what_the_model_said_before_the_step() -> None:
    class Half(Policy):
        needs_index = needs_outputs = True

        def choose(self, batch: Any) -> Selection:
            return Selection(batch.score().losses.topk(batch.rows // 2).indices)

        def observe(self, visit: Any) -> None:
            visits.append(visit)

    visits: list[Any] = []
    with rng.isolated("cpu", 1):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    trainer = Trainer(model, TRAIN, policy=Half(), batch_size=8, epochs=1, device="cpu")
    steps = trainer.steps()
    for _ in range(5):
        with torch.no_grad():
            logs = model(TRAIN.images / 255).log_softmax(1)
        next(steps)
        trained, scored = visits[-2:]
        assert (trained.trained, scored.trained) == (True, False)
        for visit in (trained, scored):
            own, labels = logs[visit.index], TRAIN.labels[visit.index]
            torch.testing.assert_close(visit.losses, F.nll_loss(own, labels, reduction="none"))
            assert torch.equal(visit.correct, own.argmax(1) == labels)
            torch.testing.assert_close(visit.confidence, own.exp().amax(1))
        assert float(trained.losses.min()) >= float(scored.losses.max())


def test_shorthands_and_the_names_of_other_libraries() -> None:
    short = Trainer(network(), TRAIN, epochs=1, lr=0.25, batch_size=8, device="cpu")
    assert (short.config.lr, short.budget) == (0.25, Budget(epochs=1))
    assert re.fullmatch(
        r"Trainer\(Sequential with 1,210 parameters on cpu, Policy, step 0, 0% of the budget\)",
        repr(short),
    )
    with pytest.raises(TypeError, match=r"fit: a Trainer is given .* when it is built: call run"):
        short.fit(TRAIN, epochs=3)


def by_length(inputs: Tensor) -> float:
    return 30.0 * inputs.shape[1]


@pytest.mark.parametrize(("flops", "row"), [(960, 960.0), (by_length, 30.0 * 64)])
def test_what_a_row_costs_may_be_given(flops: Any, row: float) -> None:
    data = TensorDataset(TRAIN.images.flatten(1) / 255, TRAIN.labels)
    options = {"policy": Gate(0.5), "batch_size": 8, "device": "cpu", "flops": flops}
    trainer = Trainer(builder.Spectral(64, 10), data, budget=Budget(flops=20 * row), **options)
    trainer.run()
    spent, trained = trainer.ledger.flops, trainer.ledger.samples.trained
    assert (spent.forward, spent.backward) == (trained * row / 3, trained * row * 2 / 3)
    assert spent.scoring == trainer.ledger.samples.scored * row / 3
    assert trainer.ledger.flops_dense == trainer.ledger.samples.scored * row
    assert trainer.ledger.uncounted == set()


@pytest.mark.parametrize("flops", [0, -1.0, math.inf, math.nan, True, "1e9", torch.ones(2)])
def test_a_cost_that_is_no_number_of_flops_is_refused(flops: Any) -> None:
    run = partial(builder.trainer, network(), TRAIN, epochs=1)
    refused(
        (partial(run, flops=flops), "flops is .*: give the FLOPs of training on one row"),
        (run(flops=lambda inputs: flops).run, "flops returns .*: give the FLOPs"),
    )


# --- data as they come


def test_the_callers_loader_stays_as_it_was() -> None:
    loader = Loader(TRAIN, 8, seed=3)
    loader.device = torch.device("meta")  # as if it delivered elsewhere
    for data in (loader, foreign(TRAIN, False)):
        before = dict(vars(data))
        options: dict[str, Any] = {"batch_size": 4} if data is loader else {}
        trainer = Trainer(network(), data, data, epochs=1, device="cpu", **options)
        trainer.run()
        assert trainer.train_data is not data
        assert vars(data).keys() == before.keys()
        assert [name for name in before if vars(data)[name] is not before[name]] == []


class Divided(IterableDataset):
    """27 rows, of which each worker yields its share."""

    def __len__(self) -> int:
        return 27

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (PAIRS[row] for row in range(first, 27, step))


class InBatches(Divided):
    """27 batches of 2 rows."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in super().__iter__():
            yield torch.stack([x, x]), torch.tensor([y, y])


class Forever(Divided):
    def __iter__(self) -> Iterator[Any]:
        return map(PAIRS.__getitem__, itertools.cycle(range(40)))


class Uneven:
    """A batch sampler that knows its length only roughly."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2], [3, 4, 5], [6], [7], [8, 9]])


class Misjudged(list):
    """Batches of which it says to have fewer."""

    def __len__(self) -> int:
        return 2


BATCHES = [PAIRS[part : part + 9] for part in range(0, 36, 9)]
LENGTHS: dict[str, tuple[Any, int]] = {
    "workers": (DataLoader(Divided(), 4, num_workers=2), 27),
    "workers without incomplete batches": (
        DataLoader(Divided(), 4, num_workers=2, drop_last=True), 24
    ),
    "a stream of batches": (DataLoader(InBatches(), None, num_workers=2), 54),
    "an endless stream": (DataLoader(Forever(), 4), 28),
    "a batch sampler": (DataLoader(PAIRS, batch_sampler=Uneven()), 10),
    "a list": (Misjudged(BATCHES), 36),
    "unknown": (DataLoader(builder.as_stream(PAIRS), 8), 40),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LENGTHS)
def test_a_loader_is_read_to_its_end_whatever_its_length_says(name: str) -> None:
    """That of a stream counts its rows, after which it may go on."""
    loader, rows = LENGTHS[name]
    trainer = build(train=loader)
    progress = [record["progress"] for record in training(finish(trainer))]
    assert [record["trained"] for record in trainer.history.epochs] == [rows, 2 * rows]
    assert [record["progress"] for record in trainer.history.epochs] == [0.5, 1.0]
    assert progress == sorted(progress)
    assert progress[-1] < 1 == trainer.progress
    assert trainer.evaluate(loader)["samples"] == rows


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 20),
    rate=st.floats(0.01, 1),
    cut=st.integers(0, 20),
)
def test_only_selected_rows_are_fetched(rows: int, size: int, rate: float, cut: int) -> None:
    reads: list[int] = []

    def fetch(row: int) -> Any:
        reads.append(row)
        return torch.full((3,), float(row)), row % 4

    data, policy = builder.computed(rows, fetch), RandomSubset(rate, seed=1)
    trainer = Trainer(builder.network(3, 4, 0), Loader(data, size), epochs=3, policy=policy)
    leave_after(trainer, cut)
    records = finish(trainer)
    chosen, looked_at = max(1, round(rate * rows)), min(2, rows, size)
    assert reads[:looked_at] == list(range(looked_at))  # once, before the first plan
    fetched = reads[looked_at:]
    assert len(fetched) == 3 * chosen
    plans = [policy.plan(RunInfo(rows, torch.arange(rows), epoch, 0, 0.0)) for epoch in range(3)]
    assert fetched == torch.cat([plan.index for plan in plans]).tolist()
    samples = trainer.ledger.samples
    assert (samples.trained, samples.unloaded) == (3 * chosen, 3 * (rows - chosen))
    if cut == 0:
        assert len(training(records)) == 3 * math.ceil(chosen / size)


@pytest.mark.parametrize("controller", [None, "top_k", "log_integral"])
def test_40_steps_read_nothing_from_the_device(controller, monkeypatch):
    trainer = Trainer(
        nn.Linear(6, 4),
        Given(*[(torch.randn(8, 6), torch.arange(8) % 4)] * 50),  # as they lie on the device
        policy=None if controller is None else Gate(0.4, controller=controller),
        epochs=1,
        config=TrainConfig(report_every=10**6),
        device="cpu",
    )
    flagged(monkeypatch, trainer.optimisation)
    # a total that is a tensor lies on the device
    weighted = Accumulated.weighted.fget
    away = property(lambda each: isinstance(each.total, Tensor) or weighted(each))
    monkeypatch.setattr(Accumulated, "weighted", away)
    labelled = Accumulated.labelled
    monkeypatch.setattr(Accumulated, "labelled", lambda each, unread: labelled(each, True))
    steps = trainer.steps()
    next(steps)  # the first batch is checked, counted and reported
    with Syncs() as syncs:
        for _ in range(40):
            next(steps)
        between = list(syncs.names)
        trainer.report()
    if controller == "log_integral":  # decides on the host
        assert len(between) >= 40
    else:
        assert between == []
    assert syncs.names
    steps.close()


# --- what cannot work is refused


class Returning(nn.Module):
    """Returns what ``change`` makes of a linear model's outputs."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change, self.inner = change, nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.change(self.inner(x.flatten(1)), self.training)


NINE = nn.Sequential(nn.Flatten(), nn.Linear(64, 9))


def labelled(labels: list[int]) -> Images:
    names = tuple(str(number) for number in range(10))
    return Images(DIGITS.images[: len(labels)], torch.tensor(labels), names, "made up")


def ordinary(labels: list[int], x: Tensor | None = None) -> DataLoader:
    x = torch.rand(len(labels), 64) if x is None else x
    return DataLoader(TensorDataset(x, torch.tensor(labels)), 4)


EMPTY = TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long))
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "scalar": ({"model": Returning(lambda out, _: out.mean())}, "criterion refused outputs of"),
    "averaged": ({"model": Returning(lambda out, _: out.mean(0, keepdim=True))}, "refused outputs"),
    "flat": ({"model": Returning(lambda out, _: out.flatten())}, "refused outputs of shape"),
    "nothing": ({"model": Returning(lambda out, _: None)}, "returned NoneType without logits"),
    "averaging": (
        {"criterion": nn.CrossEntropyLoss()},
        r"returned shape \[\].*averaging.*reduction='none'",
    ),
    "no fit": (
        {"criterion": nn.L1Loss(reduction="none")},
        "the criterion refused outputs of .* give it the shapes, types and labels that it",
    ),
    "late label": (
        {"model": NINE, "train": Loader(labelled([0] * 15 + [9]), 8, shuffle=False)},
        r"[Ll]abel 9.*9 outputs|has 9",
    ),
    "first label": ({"model": NINE, "train": ordinary([9, 0, 1, 2])}, r"[Ll]abel 9.*9 outputs"),
    "negative": ({"train": ordinary([-1, 0, 1, 2])}, r"[Ll]abel -1\b"),
    "empty": ({"train": DataLoader(EMPTY, 8)}, "yielded no batch|gave no batch"),
    "NaN loss": (
        {"model": Returning(lambda out, training: out + (math.nan if training else 0.0))},
        "training loss became nan: the weights were not changed.*lower lr",
    ),
    "NaN in inputs": (
        {"train": ordinary([0, 1], torch.full((2, 64), math.nan))},
        "inputs and labels for NaN|are NaN or infinite",
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:all scores")
@pytest.mark.parametrize("kind", ["dense", "gated", "per batch", "per sample"])
def test_what_cannot_work_is_refused_before_any_weight_changes(kind: str, unchanged: Any) -> None:
    failed = []
    for case, (options, sentence) in BAD.items():
        model = copy.deepcopy(options.get("model", network()))
        trainer = build(kind, **{"validation": None, **options, "model": model})
        with unchanged(model), pytest.raises((ValueError, FloatingPointError)) as caught:
            finish(trainer)
        if not re.search(sentence, str(caught.value)) or trainer.optimizer.state_dict()["state"]:
            failed.append((case, str(caught.value)))
    assert not failed


class Nothing(Policy):
    def plan(self, run: RunInfo) -> Selection:
        return Selection(run.rows[:0], candidates=len(run.rows))


class ZeroWeights(Policy):
    """Selects rows and gives them no weight."""

    def choose(self, batch: Any) -> Selection:
        return Selection(torch.arange(batch.rows), torch.zeros(batch.rows))


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    (
        {"train": DataLoader(builder.as_stream(PAIRS), 8), "policy": RandomSubset(0.5)},
        "selects rows before",
    ),
    ({"train": foreign(TRAIN, False), "policy": RandomSubset(0.5)}, "pass the data set inst"),
    ({"policy": Nothing()}, "no batch"),
    ({"policy": ZeroWeights()}, "ZeroWeights gave 8 rows weights"),
    ({"train": Loader(TRAIN, 8, drop_last=True), "policy": RandomSubset(0.1)}, "no batch"),
    ({"policy": "perplexity"}, "unknown policy 'perplexity'"),
    ({"policy": {"name": "random", "share": 0.1}}, r"cannot be made with .*share.*rate, seed"),
    ({"epochs": 1, "budget": Budget(epochs=2)}, "epochs and budget: give one of them"),
    ({"epochs": None}, "epochs and budget: give one of them, such as epochs=10"),
    ({"lr": 0.1}, "lr is 0.1, and config.lr is given too: give one of them"),
    (
        {"lr": 0.1, "config": None, "optimizer": torch.optim.SGD([torch.ones(1)], 0.1)},
        "lr is 0.1, and an optimizer is given too",
    ),
    ({"train": foreign(TRAIN, True), "batch_size": 4}, "own loader|batch_size"),
    ({"train": 7}, "cannot be iterated"),
    ({"metrics": F.mse_loss}, r"metrics holds a function: give metrics=\[Metric"),
    ({"metrics": Metric("label", F.mse_loss, False)}, "the name label twice, or one that is"),
    (
        {"metrics": Metric("accuracy_interval", F.mse_loss, False)},
        "the name accuracy_interval twice, or",
    ),
    ({"metrics": {1: F.mse_loss}}, "name is 1: pass a str"),
    # of another type
    *[
        ({name: value, "epochs": None if name == "budget" else 1}, f"{name} is .*: pass ")
        for name, value in {
            "optimizer": "sgd",
            "scheduler": "cosine",
            "budget": 3,
            "config": {},
            "device": "x",
        }.items()
    ],
]


@pytest.mark.parametrize(("options", "sentence"), IMPOSSIBLE)
def test_impossible_policies_and_arguments_are_refused(options, sentence, unchanged):
    model = network()
    with unchanged(model):
        refused((lambda: finish(build(model=model, **options)), sentence))


@pytest.mark.parametrize("policy", [None, "infobatch", CachedLoss(17 / 33), "auto", "gate"])
def test_a_single_row_that_batchnorm_refuses_is_skipped(policy: Any) -> None:
    data = TensorDataset(torch.rand(33, 4), torch.arange(33) % 3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    work = Trainer(model, data, data, policy=policy, batch_size=16, epochs=3, device="cpu")
    with pytest.warns(UserWarning, match="a batch of one row is skipped, since BatchNorm"):
        records = training(finish(work))
    counts = work.ledger.samples
    assert counts.trained + counts.skipped + counts.unloaded == 3 * 33
    assert min(record["trained"] for record in records) == 0
    assert math.isfinite(work.evaluate(work.validation)["loss"])


class Squared(nn.Linear):
    """A layer whose weights are multiplied in each pass, whatever the number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight @ self.weight.T @ self.weight)


def test_the_cost_of_a_pass_counts_for_each_pass() -> None:
    data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 4)

    def run(batch: int, policy: Any = None, **config: Any) -> Any:
        model, settings = Squared(4, 4, bias=False), TrainConfig(**config)
        options: dict[str, Any] = {"policy": policy, "config": settings, "device": "cpu"}
        trainer = Trainer(model, data, batch_size=batch, epochs=1, **options)
        trainer.run()
        return trainer.ledger

    small, split = run(4), run(32, micro_batch=4)
    assert split.flops.total == small.flops.total
    assert split.flops_dense == small.flops_dense
    some = run(4, RandomSubset(0.25))
    assert some.flops_dense == small.flops_dense
    assert some.flops.total == pytest.approx(small.flops.total / 4)


def test_a_parameter_that_is_unfrozen_costs_its_gradient_from_the_next_epoch_on() -> None:
    def built(frozen: bool) -> Trainer:
        run = build("dense", epochs=2)
        next(run.model.parameters()).requires_grad_(not frozen)
        return run

    run, whole = built(True), built(False)
    spent = []
    for record in run.steps():
        if record.phase == "epoch":
            spent.append(run.ledger.flops.backward - sum(spent))
            next(run.model.parameters()).requires_grad_(True)
    finish(whole)
    assert spent[0] < spent[1] == whole.ledger.flops.backward / 2
