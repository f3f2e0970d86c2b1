"""Settings: known, in range, and refused by name otherwise."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from astkit.trainers import TrainConfig


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("lr", 0, "lr is 0: give a learning rate above 0"),
        ("lr", -1e-3, "lr is -0.001: give a learning rate above 0"),
        ("lr", math.nan, "lr is nan: give a learning rate above 0"),
        ("lr", math.inf, "lr is inf: give a learning rate above 0"),
        ("weight_decay", -0.1, "weight_decay is -0.1: give 0 or more"),
        ("weight_decay", math.nan, "weight_decay is nan: give 0 or more"),
        ("weight_decay", math.inf, "weight_decay is inf: give 0 or more"),
        ("clip_norm", 0, "clip_norm is 0: give a norm above 0, or None"),
        ("clip_norm", -1, "clip_norm is -1: give a norm above 0, or None"),
        ("clip_norm", math.nan, "clip_norm is nan: give a norm above 0, or None"),
        ("schedule", "linear", "schedule is 'linear': choose one of cosine, constant"),
        ("precision", "fp16", "precision is 'fp16': choose one of fp32, bf16"),
        ("precision", None, "precision is None: choose one of fp32, bf16"),
    ],
)
def test_a_value_out_of_range_is_refused(name, value, sentence):
    for build in (TrainConfig, lambda **settings: TrainConfig.from_dict(settings)):
        with pytest.raises(ValueError, match=sentence):
            build(**{name: value})


def test_the_edges_are_allowed():
    TrainConfig(lr=1e-12, weight_decay=0, clip_norm=None, schedule="constant", precision="bf16")
    TrainConfig(clip_norm=1e-9)


def test_unknown_keys_are_all_named_with_what_may_be_chosen():
    sentence = "unknown setting learning_rate, momentum: choose from channels_last, clip_norm, lr"
    with pytest.raises(ValueError, match=sentence):
        TrainConfig.from_dict({"lr": 0.1, "momentum": 0.9, "learning_rate": 1})
    with pytest.raises(ValueError, match="choose from another, channels_last"):
        TrainConfig.from_dict({"unknown": 1}, also=["another"])


def test_it_goes_through_json_and_back():
    config = TrainConfig(lr=0.3, clip_norm=None, precision="bf16", channels_last=True, seed=4)
    settings = json.loads(json.dumps(config.to_dict()))
    assert TrainConfig.from_dict(settings) == config
    assert settings.keys() == {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig.from_dict({}) == TrainConfig()


def test_it_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 1.0
