"""Arms that differ in one thing each: same start, same batches, one look at the test split."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from astkit.datasets import Loader, Splits, load
from astkit.gating import LogIntegral, OriginPI
from astkit.profiling.ledger import Ledger
from astkit.runs import arms
from astkit.trainers import Budget, TrainConfig

DIGITS = load("digits")[0]
TRAIN, VALIDATION, TEST = range(90), range(90, 120), range(120, 200)
SPLITS = Splits(*(DIGITS.subset(part) for part in (TRAIN, VALIDATION, TEST)))
TASK = arms.Task(
    SPLITS,
    "digits_cnn",
    epochs=2,
    batch_size=16,
    augment=("crop", "flip"),
    gate={"target_rate": 0.3, "score": "loss_and_contrast"},
    config=TrainConfig(lr=1e-2),
    device="cpu",
)
BATCHES = 6  # a pass over 90 rows in batches of 16
BUDGET = Budget(epochs=2)


def trainer(arm, seed=0, task=TASK):
    return arms.trainer(task, arm, seed, BUDGET)


@pytest.fixture(scope="module")
def results():
    """The result of every arm for seed 0, the batched gate before those that need its budget."""
    done = {}
    for arm in ["batched gate", *arms.ARMS]:
        if arm not in done:
            budget = arms.budget_for(arm, done.get("batched gate"))
            done[arm] = arms.run(TASK, arm, 0, budget)
    return done


def weights(model):
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_every_arm_starts_from_the_same_weights():
    start = weights(trainer("dense").model)
    torch.rand(5)  # the default generator has no say in it
    assert all(weights(trainer(arm).model) == start for arm in arms.ARMS)
    assert weights(trainer("dense", seed=1).model) != start


class Watching:
    """A step that keeps the batches that it is given."""

    def __init__(self, step):
        self.step, self.batches = step, []
        self.state_dict, self.load_state_dict = step.state_dict, step.load_state_dict

    def __call__(self, learner, batch, weight, ledger):
        self.batches.append((batch.index.clone(), batch.x.clone(), batch.y.clone()))
        return self.step(learner, batch, weight, ledger)


def seen(arm, seed=0):
    work = trainer(arm, seed)
    work.step = Watching(work.step)
    work.run()
    return work.step.batches


def test_every_arm_sees_the_same_batches():
    expected = seen("dense")
    assert len(expected) == 2 * BATCHES
    for arm in set(arms.ARMS) - {"dense", "random"}:
        batches = seen(arm)
        assert len(batches) == len(expected)
        for ours, theirs in zip(batches, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    other = seen("dense", seed=1)
    assert not torch.equal(other[0][0], expected[0][0])


def test_the_random_arm_sees_its_rows_as_the_others_see_them():
    whole = [
        {
            int(row): x
            for index, images, _ in seen("dense")[first : first + BATCHES]
            for row, x in zip(index, images, strict=True)
        }
        for first in (0, BATCHES)
    ]
    batches = seen("random")
    assert [len(index) for index, _, _ in batches] == [16, 11] * 2  # 27 of 90 rows a pass
    for number, (index, x, _) in enumerate(batches):
        assert all(
            torch.equal(whole[number // 2][int(row)], image)
            for row, image in zip(index, x, strict=True)
        )


def test_what_the_arms_did(results):
    visited = 2 * 90
    for arm, result in results.items():
        assert (result["arm"], result["seed"], result["device"]) == (arm, 0, "cpu")
        assert 0 <= result["test_accuracy"] <= 1
        assert result["val_accuracy"] == result["epochs"][-1]["val_accuracy"]
        assert result["samples_evaluated"] == 30 * len(result["epochs"]) + 80
        assert result["training_steps"] == len(result["steps"])
        assert result["seconds"] > 0
        assert result["evaluation_seconds"] > 0
    assert results["dense"]["samples_trained"] == visited
    assert results["random"]["samples_trained"] == 2 * 27
    assert results["random"]["samples_unloaded"] == visited - 2 * 27
    assert results["random"]["samples_scored"] == 0
    for arm in ("batched gate", "sample by sample, per batch"):
        result = results[arm]
        assert result["samples_scored"] == visited
        assert result["samples_trained"] + result["samples_skipped"] == visited
        assert 0.1 < result["rate"] < 0.6
    assert results["batched gate"]["flops"] < results["dense"]["flops"]
    assert results["random"]["flops"] == pytest.approx(0.3 * results["dense"]["flops"])
    assert [arm for arm, result in results.items() if result["rate"] is None] == [
        "dense",
        "dense, equal FLOPs",
        "dense, equal seconds",
        "random",
    ]


def test_results_are_plain_values(results):
    for result in results.values():
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert sum(result["phases"].values()) <= result["seconds"]
        ledger = Ledger()
        for name in asdict(ledger.samples):
            setattr(ledger.samples, name, result[f"samples_{name}"])
        assert result["origin_energy_units"] == ledger.origin_energy_units
        parts = [result[f"flops_{part}"] for part in ("scoring", "forward", "backward")]
        assert result["flops"] == pytest.approx(sum(parts))
        assert result["flops_evaluation"] > 0


def test_equal_flops_are_equal_to_within_one_batch(results):
    gate, dense = results["batched gate"]["flops"], results["dense, equal FLOPs"]
    batch = 16 * results["dense"]["flops"] / (2 * 90)
    assert gate <= dense["flops"] <= gate + 1.01 * batch
    assert all(step["flops"] < gate for step in dense["steps"][:-1])
    # the schedule ends where the budget ends: a full cosine, not the start of a longer one
    last = dense["steps"][-1]["lr"]
    assert last <= 0.01 * 0.5 * (1 + math.cos(math.pi * (1 - 1.1 * batch / gate)))
    assert last < 0.2 * dense["steps"][0]["lr"]
    assert dense["epochs"][-1]["progress"] == 1.0


def test_budgets_come_from_the_gate():
    gated = {"flops": 123.0, "seconds": 4.5}
    assert arms.budget_for("dense, equal FLOPs", gated) == Budget(flops=123.0)
    assert arms.budget_for("dense, equal seconds", gated) == Budget(seconds=4.5)
    for arm in arms.ARMS:
        if "equal" not in arm:
            assert arms.budget_for(arm, gated) is None
            assert arms.budget_for(arm, None) is None
        else:
            with pytest.raises(ValueError, match=rf"'{arm}' needs a result of 'batched gate'"):
                arms.budget_for(arm, None)
            with pytest.raises(ValueError, match=rf"'{arm}' needs the budget"):
                arms.trainer(TASK, arm, 0)


def test_the_same_seed_repeats_itself(results):
    again = arms.run(TASK, "batched gate", 0)
    times = {"seconds", "evaluation_seconds", "wall_seconds", "phases", "epochs"}
    for name in again.keys() - times:
        assert again[name] == results["batched gate"][name], name
    other = arms.run(TASK, "batched gate", 1)
    assert other["steps"] != again["steps"]


@pytest.mark.parametrize("arm", arms.ARMS)
def test_the_test_split_is_read_once_and_at_the_end(monkeypatch, arm):
    asked, read = [], []

    class Counting:
        """Splits that note each time that the test part is asked for."""

        train, validation = SPLITS.train, SPLITS.validation

        @property
        def test(self):
            asked.append(1)
            return SPLITS.test

    def batches(self, *arguments):
        read.append(self.data)
        return original(self, *arguments)

    original = Loader.batches
    monkeypatch.setattr(Loader, "batches", batches)
    task = replace(TASK, splits=Counting(), epochs=1)
    budget = Budget(epochs=1) if "equal" in arm else None
    work = arms.trainer(task, arm, 0, budget)
    work.run()
    assert asked == []
    assert {id(data) for data in read} == {id(SPLITS.train), id(SPLITS.validation)}
    read.clear()
    arms.run(task, arm, 0, budget)
    assert asked == [1]
    assert [data is SPLITS.test for data in read] == [False] * (len(read) - 1) + [True]


def test_the_test_accuracy_is_the_final_models(results):
    work = arms.trainer(TASK, "batched gate", 0)
    work.run()
    mean, std = SPLITS.train.channel_stats()
    x = (SPLITS.test.images / 255 - mean) / std
    work.model.eval()
    with torch.no_grad():
        right = work.model(x).argmax(1) == SPLITS.test.labels
    assert results["batched gate"]["test_accuracy"] == float(right.double().mean())


def test_only_the_training_split_is_shuffled_and_augmented():
    for part in ("validation", "test"):
        loader = TASK.loader(part)
        images = getattr(SPLITS, part)
        mean, std = SPLITS.train.channel_stats()  # of the training part, for all three
        x = torch.cat([batch.x for batch in loader.batches(0)])
        torch.testing.assert_close(x, (images.images / 255 - mean) / std)
    first, second = (next(TASK.loader("train").batches(epoch)) for epoch in (0, 1))
    assert not torch.equal(first.index, second.index)


def test_each_arm_does_what_its_name_says():
    kinds = {arm: type(trainer(arm).step).__name__ for arm in arms.ARMS}
    assert kinds == {
        "dense": "DenseStep",
        "dense, equal FLOPs": "DenseStep",
        "dense, equal seconds": "DenseStep",
        "random": "DenseStep",
        "batched gate": "GatedStep",
        "sample by sample, per batch": "SampleStep",
        "sample by sample, per sample": "SampleStep",
    }
    updates = {arm: getattr(trainer(arm).step, "update", None) for arm in arms.ARMS}
    assert updates["sample by sample, per batch"] == "per_batch"
    assert updates["sample by sample, per sample"] == "per_sample"
    policies = {arm: trainer(arm).policy for arm in arms.ARMS}
    assert [arm for arm, policy in policies.items() if policy is not None] == ["random"]
    assert policies["random"].rate == 0.3


def test_the_seed_reaches_dropout_and_policies():
    for arm in arms.ARMS:
        work = trainer(arm, seed=4)
        assert work.config == replace(TASK.config, seed=4)
        drawing = [getattr(work.step, "gate", None), work.policy]
        assert {part.seed for part in drawing if part is not None} <= {4}


def test_an_unknown_arm_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="unknown arm 'sparse': choose one of dense, dense, equal"):
        arms.trainer(TASK, "sparse", 0)


@pytest.mark.parametrize("arm", arms.ARMS)
def test_a_stepper_trains_one_batch_a_call_for_as_long_as_it_is_asked(arm):
    step = arms.stepper(TASK, arm)
    records = [step() for _ in range(2 * BATCHES + 1)]
    assert [record.phase for record in records] == ["train"] * len(records)
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    first, last = records[0].metrics["lr"], records[-1].metrics["lr"]
    assert first == pytest.approx(last, rel=1e-9)  # the end of the budget is out of sight


def test_a_preset_may_be_changed_in_part():
    task = arms.task(
        "digits", 0.25, device="cpu", gate={"controller": "origin_pi"}, config={"seed": 3}, epochs=1
    )
    preset = arms.PRESETS["digits"]
    assert task.gate == {**preset["gate"], "target_rate": 0.25, "controller": "origin_pi"}
    assert task.config == TrainConfig(**preset["config"], seed=3)
    assert (task.epochs, task.model, task.device) == (1, preset["model"], "cpu")
    assert preset["gate"].keys() == {"score", "controller"}  # and itself stays as it was
    assert isinstance(arms.trainer(task, "batched gate", 0).step.gate.controller, OriginPI)
    plain = arms.task("digits", device="cpu")
    assert isinstance(arms.trainer(plain, "batched gate", 0).step.gate.controller, LogIntegral)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dataset": "mnist"}, "unknown dataset 'mnist': choose one of digits, cifar10"),
        ({"config": {"momentum": 1}}, "unknown setting momentum"),
        ({"config": {"lr": 0}}, "lr is 0"),
    ],
)
def test_an_impossible_task_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        arms.task(**{"dataset": "digits", **arguments})


def test_absent_data_are_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.delenv("ASTKIT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        arms.task("cifar10", root=str(tmp_path))


def test_settings_hold_all_but_the_data():
    settings = json.loads(json.dumps(TASK.settings()))
    assert settings["dataset"] == "digits"
    assert settings["sizes"] == {"train": 90, "validation": 30, "test": 80}
    assert settings["config"] == TASK.config.to_dict()
    assert settings["gate"] == TASK.gate
    assert (settings["model"], settings["epochs"], settings["batch_size"]) == ("digits_cnn", 2, 16)


def test_observers_are_told(results):
    heard = []
    observer = SimpleNamespace(
        log=lambda step, *, phase, **metrics: heard.append(phase), close=lambda: heard.append("end")
    )
    arms.run(replace(TASK, epochs=1), "dense", 0, observers=[observer])
    assert heard == ["train"] * BATCHES + ["validate", "epoch", "end"]
