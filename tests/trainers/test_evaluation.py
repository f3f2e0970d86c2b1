"""Evaluation: equal to plain loops over rows; a part of the rows comes with an honest interval."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from astkit import distributed
from astkit.datasets import Batch, Loader, as_loader
from astkit.gating import cross_entropy_rows
from astkit.trainers import Metric, TrainConfig, Trainer
from astkit.trainers.evaluation import sampled_rows, wilson_interval
from tests.build import refused
from tests.gating.syncs import Syncs
from tests.trainers.states import Given


class Same(nn.Module):
    """Gives its inputs back: the outputs are what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


TRAIN = TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))


def trainer(model: nn.Module | None = None, train: Any = TRAIN, **options: Any) -> Trainer:
    return Trainer(model or Same(), train, epochs=1, device="cpu", **options)


def reference(model: nn.Module, source: Any) -> tuple[int, float, float]:
    """Row by row, in Python numbers."""
    hits, losses = [], []
    model.eval()
    for batch in source.batches(0):
        for x, y in zip(batch.x, batch.y, strict=True):
            with torch.no_grad():
                output = model(x[None])
            losses.append(float(cross_entropy_rows(output, y[None])))
            hits.append(int(output.argmax()) == int(y))
    return len(hits), math.fsum(losses) / len(hits), sum(hits) / len(hits)


def test_it_gives_what_plain_loops_give_and_leaves_no_trace(cnn, double_loader, unchanged):
    model, source = cnn(batch_norm=True), double_loader(rows=200, batch_size=32)
    rows, loss, accuracy = reference(model, source)
    model.train()
    work, state = trainer(model, source), torch.get_rng_state()
    with unchanged(model):
        found = work.evaluate(source)
    assert (found["samples"], found["accuracy"]) == (rows, accuracy)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["accuracy_interval"] == wilson_interval(round(accuracy * rows), rows)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    ledger = work.ledger
    assert ledger.samples.evaluated == rows
    assert ledger.seconds["evaluation"] > 0 == ledger.flops.total < ledger.flops.evaluation


def test_ignored_labels_are_neither_right_nor_wrong() -> None:
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    labels = torch.tensor([0, 0, -100, 0, -100])  # right, wrong, ignored, right, ignored
    work = trainer(metrics=Metric("first", lambda outputs, targets: outputs[:, 0], True))
    found = work.evaluate(Given((outputs, labels)))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["accuracy_interval"] == wilson_interval(2, 3)
    assert (found["samples"], found["first"]) == (5, pytest.approx(6 / 5))
    losses = cross_entropy_rows(outputs[[0, 1, 3]], labels[[0, 1, 3]])
    assert found["loss"] == pytest.approx(float(losses.mean()))
    nothing = work.evaluate(Given((outputs, torch.full((5,), -100))))
    assert (nothing["accuracy"], nothing["accuracy_interval"]) == (None, None)
    outputs[0] = math.nan
    assert math.isnan(work.evaluate(Given((outputs, labels)))["loss"])


def test_a_pass_reads_as_often_of_20_batches_as_of_one() -> None:
    counts = []
    for batches in (1, 20):
        work, batch = trainer(), (torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
        work.cost(Batch(None, *batch))  # checked and counted before
        with Syncs() as syncs:
            work.evaluate(Given(*[batch] * batches))
        counts.append(len(syncs.names))
    assert counts[0] == counts[1] > 0


class F1:
    """The F1 score of class 1, in the form of torchmetrics: no mean over rows."""

    def __init__(self) -> None:
        self.counts = torch.zeros(3)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        guess = outputs.argmax(1)
        hits = (guess & targets).sum()
        self.counts += torch.stack([hits, guess.sum() - hits, targets.sum() - hits])

    def compute(self) -> Tensor:
        hits, wrong, missed = self.counts
        return 2 * hits / (2 * hits + wrong + missed)


def test_an_object_with_update_and_compute_is_a_metric_of_the_whole_pass() -> None:
    metric = F1()
    work = trainer(metrics=Metric("f1", metric, True))
    outputs, labels = torch.randn(60, 2), torch.arange(60) % 2
    data = Given(*zip(outputs.split(7), labels.split(7), strict=True))
    guess = outputs.argmax(1)
    hits = int((guess & labels).sum())
    expected = 2 * hits / int(guess.sum() + labels.sum())
    for _ in range(2):  # each pass with a copy as the user made it
        assert work.evaluate(data)["f1"] == pytest.approx(expected, rel=1e-6)
    assert metric.counts.tolist() == [0, 0, 0]
    measured = work.measure(data, keep=10**6)
    assert "f1" not in measured.rows
    assert torch.equal(torch.cat([outputs for outputs, _ in measured.kept or []]), outputs)
    assert work.measure(data, keep=100).kept is None  # more than that


def test_the_direction_of_a_function_is_never_guessed_from_its_name() -> None:
    def function(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]

    for name in ("mape", "brier", "crps", "bits", "gini", "score"):
        words = rf"'{name}' does not say .*: give metrics=\[Metric\('{name}', function, higher_is_b"
        refused(
            (partial(trainer, metrics={name: function}), words),
            (partial(trainer, metrics={name: F1()}), words),
            (partial(Metric, name, function), words),
        )
    for higher in (True, False):
        assert Metric("bits", function, higher_is_better=higher).higher_is_better is higher
    for metrics in (3, {"a": 3}, {"a": MeanRecall}, MeanRecall()):
        refused((partial(trainer, metrics=metrics), r"metric.* give"))


def test_an_object_may_say_its_direction_itself() -> None:
    class Error(F1):
        higher_is_better = False

    (metric,) = trainer(metrics={"error": Error()}).validator.metrics
    assert metric.higher_is_better is False
    assert Metric("error", Error(), higher_is_better=True).higher_is_better is True
    Error.higher_is_better = None  # type: ignore[assignment]  # as of some of torchmetrics
    refused((lambda: trainer(metrics={"error": Error()}), "'error' does not say whether"))


def test_a_pass_without_a_batch_or_a_metric_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="the validation data gave no batch: lower batch_size"):
        trainer().evaluate(Given())
    data = Given((torch.randn(4, 3), torch.tensor([0, 1, 2, 0])))
    for function, gave in {
        lambda outputs, targets: outputs.mean(): r"shape \[\] for 4 rows",
        lambda outputs, targets: 0.5: "type float for 4 rows",
    }.items():
        with pytest.raises(ValueError, match=f"the metric 'mine' gave {gave}: return one value p"):
            trainer(metrics=Metric("mine", function, True)).evaluate(data)


@pytest.mark.parametrize("inside", [False, True])
def test_a_distributed_sampler_is_refused_in_several_processes(monkeypatch, inside):
    data = TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.int64))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    options: Any = {"sampler": sampler}
    if inside:
        options = {"batch_sampler": BatchSampler(sampler, 4, False)}
    work, loader = trainer(), DataLoader(data, **options)
    assert work.evaluate(loader)["samples"] == 4
    monkeypatch.setattr(distributed, "world", lambda: 2)
    refused((partial(work.evaluate, loader), "the validation data have a DistributedSampler"))


def test_a_fixed_share_of_the_rows_is_drawn_once_each(digits: Any) -> None:
    loader = Loader(digits.subset(range(500)), 32)
    for fraction in (0.001, 0.25, 0.9):
        index = sampled_rows(loader, fraction)
        assert torch.equal(index, sampled_rows(loader, fraction))
        assert len(index.unique()) == len(index) == max(1, round(fraction * 500))
        assert 0 <= int(index.min()) <= int(index.max()) < 500
    assert abs(sampled_rows(loader, 0.5).float().mean() - 250) < 25  # from all of them alike
    assert sampled_rows(loader, 1.0) is None
    ordinary = as_loader(DataLoader(TensorDataset(torch.zeros(10, 3), torch.zeros(10)), 2))
    refused((partial(sampled_rows, ordinary, 0.5), "an ordinary loader loads every row"))


def test_a_trainer_evaluates_those_rows_after_each_epoch(cnn: Any, digits: Any) -> None:
    data = digits.subset(range(500))
    trainer = Trainer(
        cnn(dtype=torch.float32),
        Loader(data, 64),
        Loader(data, 32, shuffle=False),
        epochs=2,
        config=TrainConfig(validation_fraction=0.25),
    )
    epochs = trainer.run().epochs
    rows = sampled_rows(Loader(data, 32), 0.25)
    assert trainer.ledger.samples.evaluated == 2 * len(rows)
    part = trainer.evaluate(Loader(data.subset(rows), 32, shuffle=False))
    assert epochs[-1]["val_accuracy"] == part["accuracy"]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5000), st.data(), st.sampled_from([0.5, 0.95, 0.99]))
def test_it_is_scipys_interval(total: int, data: Any, level: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    right = data.draw(st.integers(0, total))
    expected = stats.binomtest(right, total).proportion_ci(level, method="wilson")
    assert wilson_interval(right, total, level) == pytest.approx(expected, abs=1e-12)


class MeanRecall:
    """An aggregate that is called as the accuracy is."""

    def __init__(self) -> None:
        self.hits = [0.0, 0.0]

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.hits[0] += float((outputs.argmax(1) == targets).sum())

    def compute(self) -> float:
        return 0.125


@pytest.mark.parametrize("mapping", [False, True])
@pytest.mark.parametrize("averaged", [False, True])
def test_metrics_get_half_precision_as_float32(mapping: bool, averaged: bool) -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 2.0]), reduction="none")
    seen = []

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        seen.append(weighted(outputs["logits"] if mapping else outputs, targets))
        return seen[-1]

    class Latest:
        def update(self, outputs: Any, targets: Tensor) -> None:
            loss(outputs, targets)

        def compute(self) -> float:
            return float(seen[-1].mean())

    class Halved(Same):
        def forward(self, x: Tensor) -> Any:
            return {"logits": x.bfloat16()} if mapping else x.bfloat16()

    metric = Metric("weighted", loss if averaged else Latest(), False)
    values = trainer(Halved(), criterion=loss, metrics=[metric]).evaluate(TRAIN)
    assert values["weighted"] == values["loss"] > 0


class Giving:
    """A metric that gives ``value``, as collections and those without an average do several."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def update(self, outputs: Any, targets: Any) -> None:
        """Looks at nothing."""

    def compute(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


NUMBERS = (0.5, 3, True, torch.tensor(0.5), torch.ones(1, 1), np.float32(0.5), math.nan)
SEVERAL = ({"f1": 0.5}, torch.ones(3), None, [0.5, 0.2], (0.5,), np.ones(2), "0.5", {}, 1j)


@pytest.mark.parametrize("value", [*NUMBERS, *SEVERAL], ids=str)
def test_a_metric_gives_one_number_or_a_sentence_before_the_first_step(value: Any) -> None:
    run = trainer(
        nn.Linear(3, 2), validation=TRAIN, metrics=Metric("m", Giving(value), higher_is_better=True)
    )
    if any(value is each for each in NUMBERS):
        assert run.run(progress=False).epochs[0]["val_m"] == pytest.approx(
            float(value), nan_ok=True
        )
        return
    refused((run.run, r"the metric 'm' gave .* not one number: let compute return one"))
    assert run.step == 0


def test_what_a_metric_makes_of_two_rows_is_no_fault() -> None:
    def one_class(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0 * outputs[:, 0] / float(len(targets) > 2)

    odd = {"f": Metric("f", one_class, higher_is_better=True)}
    odd["m"] = Metric("m", Giving(ValueError("one class")), higher_is_better=True)
    with pytest.raises(ValueError, match=r"^one class$"):  # at the end of the epoch
        trainer(nn.Linear(3, 2), validation=TRAIN, metrics=list(odd.values())).run(progress=False)
    shapeless = Metric("f", lambda outputs, targets: None, higher_is_better=True)
    run = trainer(nn.Linear(3, 2), validation=TRAIN, metrics=shapeless)
    refused((run.run, r"the metric 'f' gave .* for 2 rows: return one value per row"))
    assert run.step == 0
