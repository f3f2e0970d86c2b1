"""The origin's constructor with ordinary DataLoaders: only the class name differs."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit.compat import AdaptiveSparseTrainer, SampleAdaptiveSparseTrainer
from astkit.datasets import load
from tests import build

DIGITS = load("digits")[0]
KINDS = [AdaptiveSparseTrainer, SampleAdaptiveSparseTrainer]


network = partial(build.network, 64, 10, 32)


def data(first, last, batch_size=16, **options):
    images = DIGITS.images[first:last] / 255
    return DataLoader(TensorDataset(images, DIGITS.labels[first:last]), batch_size, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_class_name_differs(kind):
    model = network()
    trainer = kind(
        model,
        data(0, 240, shuffle=True),
        data(320, 400),
        modality="vision",
        device="cpu",
        config={"target_activation_rate": 0.4, "lr": 3e-3},
    )
    results = trainer.train(epochs=6)
    with torch.no_grad():
        right = model(DIGITS.images[320:400] / 255).argmax(1) == DIGITS.labels[320:400]
    assert all(f"``{key}``" in AdaptiveSparseTrainer.train.__doc__ for key in results)
    assert results["final_val_accuracy"] == float(right.double().mean())
    assert results["final_val_accuracy"] > 0.6  # it learned: chance is 0.1
    assert results["samples_trained"] + results["samples_skipped"] == 6 * 240
    assert 0.2 < results["avg_activation_rate"] < 0.7
    assert results["training_seconds"] > 0
    assert results["flops"] > 0
    assert len(results["epochs"]) == 6
    assert results["epochs"][-1]["val_accuracy"] == results["final_val_accuracy"]


@pytest.mark.parametrize(
    ("options", "score"),
    [
        ({}, "LossAndContrast"),
        ({"modality": "text"}, "Loss"),
        ({"config": {"score": "loss"}}, "Loss"),
    ],
)
def test_the_origins_defaults(options, score):
    trainer = AdaptiveSparseTrainer(network(), data(0, 32), **options)
    assert trainer.config.lr == 1e-4
    assert trainer.gate.rate == 0.1
    assert type(trainer.gate.significance).__name__ == score


def test_settings_reach_the_gate_and_the_run():
    kind = SampleAdaptiveSparseTrainer
    config = {
        "target_activation_rate": 0.25,
        "controller": "origin_pi",
        "score": "loss_contrast_constant",
        "fallback": 3,
        "min_active": 2,
        "seed": 7,
        "weight_decay": 0.5,
        "schedule": "constant",
    }
    trainer = kind(network(), data(0, 32), device="cpu", config=config)
    gate = trainer.gate
    assert (gate.rate, gate.fallback, gate.min_active, gate.seed) == (0.25, 3, 2, 7)
    assert type(gate.controller).__name__ == "OriginPI"
    assert type(gate.significance).__name__ == "LossContrastConstant"
    trainer.train(epochs=1)
    assert trainer.trainer.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert config["target_activation_rate"] == 0.25  # the caller's settings are his own


def test_settings_that_it_does_not_know_are_refused(unchanged):
    refused = [
        ({"learning_rate": 1e-3}, "unexpected keyword argument 'learning_rate'"),
        ({"rate": 0.5}, "unexpected keyword argument 'rate'"),
        ({"target_activation_rate": 1.5}, "rate is 1.5: give a share"),
        ({"precision": "half"}, "precision is 'half': give one of fp32, bf16"),
        ({"controller": "top_k"}, "TopK needs a whole batch"),
    ]
    for config, sentence in refused:
        model = network()
        with unchanged(model), pytest.raises((TypeError, ValueError), match=sentence):
            SampleAdaptiveSparseTrainer(model, data(0, 32), config=config).train(epochs=1)
    with unchanged(model), pytest.raises(ValueError, match="budget epochs is 0"):
        AdaptiveSparseTrainer(model, data(0, 32), device="cpu").train(0)


def test_a_criterion_of_ones_own_trains_and_scores(unchanged):
    kind, calls = AdaptiveSparseTrainer, []

    def smoothed(outputs, targets):
        calls.append(len(targets))
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.3)

    model = network()
    config = {"criterion": smoothed, "score": "loss"}
    trainer = kind(model, data(0, 64), data(64, 80), device="cpu", config=config)
    results = trainer.train(epochs=1)
    assert calls
    with torch.no_grad():
        outputs = model(DIGITS.images[64:80] / 255)
    expected = smoothed(outputs, DIGITS.labels[64:80]).mean()
    assert results["epochs"][-1]["val_loss"] == pytest.approx(float(expected), rel=1e-5)

    model = network()
    config = {"criterion": nn.CrossEntropyLoss()}
    with unchanged(model), pytest.raises(ValueError, match="reduction='none'"):
        kind(model, data(0, 64), device="cpu", config=config).train(epochs=1)
